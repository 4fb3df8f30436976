#include "runtime/backward/backward.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backward/gradient_sums.h"
#include "runtime/backward/node_traits.h"
#include "runtime/backward/parts.h"
#include "runtime/device/streams.h"

namespace pipewright {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Whether nobody else can see it: it may be added to in place.
bool is_own(const at::Tensor& sum) {
  return sum.use_count() == 1 && sum.has_storage() && sum.storage().use_count() == 1 &&
         sum.is_non_overlapping_and_dense();
}

/// `sum` += `grad`, in place where that can be done.
void accumulate(at::Tensor& sum, at::Tensor grad) {
  if (!grad.defined()) return;
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (sum.is_sparse()) {
    sum = grad + sum;  // sparse + dense is dense; the dense one must come first
  } else if (is_own(sum) && !grad.is_sparse()) {
    sum.add_(grad);
  } else {
    sum = sum + grad;
  }
}

/// Whether others hold memory of a gradient, too; not what it is a view of, if only the view holds that.
bool shares_memory(const at::Tensor& grad) {
  if (!grad.is_view()) return grad.storage().use_count() > 1;
  return grad.storage().use_count() > 2 || grad._base().use_count() > 1;
}

/// A gradient that stays where it ends must not share its memory with one that goes on, as two views
/// of one tensor do: what is added to it later would change both.
void own_memory(variable_list& grads) {
  for (at::Tensor& grad : grads) {
    if (grad.defined() && grad.has_storage() && shares_memory(grad)) grad = grad.clone();
  }
}

void run_pre_hooks(Node& node, variable_list& grads) {
  for (const auto& hook : node.tensor_pre_hooks()) grads = (*hook)(grads);
  for (const auto& [slot, hook] : node.retains_grad_hooks()) (*hook)(grads);
  for (const auto& hook : node.pre_hooks()) grads = (*hook)(grads);
}

/// While it lives, what is computed is on the stream of an operator's forward. Where that is not the calling
/// thread's, it waits for that before and is waited for afterwards.
class OnStreamOf {
 public:
  OnStreamOf(Node& node, const variable_list& grads) {
    const std::optional<c10::Stream> own = node.stream();
    if (!own) return;
    const c10::Stream callers = current_stream(own->device());
    if (callers == *own) return;
    crossed_ = {.own = *own, .callers = callers};
    wait_for(*own, callers);
    keep_for(grads, *own);
    guard_.reset_stream(*own);
  }
  ~OnStreamOf() {
    if (crossed_) wait_for(crossed_->callers, crossed_->own);
  }
  OnStreamOf(const OnStreamOf&) = delete;
  OnStreamOf& operator=(const OnStreamOf&) = delete;

  void give(const variable_list& results) const {
    if (crossed_) keep_for(results, crossed_->callers);
  }

 private:
  struct Streams {
    c10::Stream own;
    c10::Stream callers;
  };
  std::optional<Streams> crossed_;
  c10::OptionalStreamGuard guard_;
};

/// Runs one operator's backward with its hooks, as the autograd engine would.
variable_list call(Node& node, variable_list grads) {
  static const std::function<std::string(const std::string&)> say = [](const std::string& message) {
    return "in a backward: " + message;
  };
  const OnStreamOf stream(node, grads);
  run_pre_hooks(node, grads);
  if (node.post_hooks().empty()) {
    variable_list results = node(std::move(grads));
    torch::autograd::validate_outputs(node.next_edges(), results, say);
    stream.give(results);
    return results;
  }
  variable_list results = node(variable_list(grads));
  torch::autograd::validate_outputs(node.next_edges(), results, say);
  for (const auto& hook : node.post_hooks()) results = (*hook)(results, grads);
  stream.give(results);
  return results;
}

}  // namespace

/// One walk over a graph, from the outputs' gradients down: an operator runs when all
/// that lead to it have run, the latest made first, in the autograd engine's own order.
class BackwardPass {
 public:
  /// `grads`: by output slot; roots without a gradient are left out.
  BackwardPass(const StageGraph& graph, const Values& grads) : inputs_(graph.inputs_) {
    for (std::size_t at = 0; at < graph.roots_.size(); ++at) {
      const at::Tensor& grad = grads.at(graph.root_slots_[at]);
      if (!grad.defined()) continue;
      roots_.push_back(graph.roots_[at]);
      root_grads_.push_back(grad);
    }
    static const std::function<std::string(const std::string&)> say = [](const std::string& message) {
      return "a gradient that does not fit the stage's output: " + message;
    };
    torch::autograd::validate_outputs(roots_, root_grads_, say);
    discover();
  }

  explicit BackwardPass(WeightWork work) : roots_(std::move(work.roots)), root_grads_(std::move(work.grads)) {
    discover();
  }

  /// Everything. Gradients that reach the stage's inputs stay there.
  void run_all() {
    for (std::size_t at = 0; at < roots_.size(); ++at) give(roots_[at], std::move(root_grads_[at]));
    start();
    while (!ready_.empty()) {
      Visit& visit = next();
      if (visit.node == inputs_.get() || sums_.takes(*visit.node, visit.grads)) continue;
      if (adds_part(visit)) {
        arrive(visit.node->next_edge(0));
      } else {
        run_whole(visit);
      }
    }
    sums_.finish();
  }

  /// What lies on a path to the stage's inputs; the rest goes to `later`.
  void run_input_path(WeightWork& later) {
    find_path();
    for (std::size_t at = 0; at < roots_.size(); ++at) {
      give_or_defer(roots_[at], std::move(root_grads_[at]), later);
    }
    start();
    while (!ready_.empty()) {
      Visit& visit = next();
      if (visit.on_path && visit.node != inputs_.get()) run_on_path(visit, later);
    }
  }

  /// What has reached the stage's inputs, by slot.
  Values input_grads(const StageGraph& graph) {
    Values grads(graph.input_count_);
    const auto found = index_.find(inputs_.get());
    if (found == index_.end()) return grads;
    variable_list& arrived = visits_[found->second].grads;
    if (arrived.empty()) return grads;
    run_pre_hooks(*inputs_, arrived);  // what the model has put on its inputs
    for (std::size_t at = 0; at < arrived.size(); ++at) {
      grads[graph.input_slots_[at]] = std::move(arrived[at]);
    }
    return grads;
  }

 private:
  struct Visit {
    Node* node;
    std::uint32_t waiting_for = 0;
    bool on_path = false;
    variable_list grads = {};
    std::vector<Parts> parts = {};  // by gradient, as long as there are only parts of it

    void make_room() {
      if (grads.empty()) grads.resize(node->num_inputs());
    }
    Parts& parts_of(std::uint32_t grad) {
      if (parts.empty()) parts.resize(grads.size());
      return parts[grad];
    }
    /// From now on there is a whole, if there are parts.
    void join_parts(std::size_t grad) {
      if (!parts.empty() && !parts[grad].empty()) grads[grad] = parts[grad].join();
    }
  };

  void discover() {
    for (const Edge& root : roots_) visit_of(root.function.get());
    // Grows while it is walked.
    for (std::size_t at = 0; at < visits_.size(); ++at) {
      for (const Edge& edge : visits_[at].node->next_edges()) {
        if (edge.is_valid()) ++visits_[visit_of(edge.function.get())].waiting_for;
      }
    }
  }

  std::size_t visit_of(Node* node) {
    const auto [found, is_new] = index_.emplace(node, visits_.size());
    if (is_new) visits_.push_back({.node = node});
    return found->second;
  }

  Visit& visit_at(const Edge& edge) { return visits_[index_.find(edge.function.get())->second]; }

  void give(const Edge& edge, at::Tensor grad) {
    Visit& visit = visit_at(edge);
    visit.make_room();
    visit.join_parts(edge.input_nr);
    accumulate(visit.grads[edge.input_nr], std::move(grad));
  }

  void make_ready(const Visit& visit) {
    ready_.emplace(visit.node->sequence_nr(), static_cast<std::size_t>(&visit - visits_.data()));
  }

  void start() {
    for (const Visit& visit : visits_) {
      if (visit.waiting_for == 0) make_ready(visit);
    }
  }

  Visit& next() {
    Visit& visit = visits_[ready_.top().second];
    ready_.pop();
    visit.make_room();
    for (std::size_t grad = 0; grad < visit.parts.size(); ++grad) visit.join_parts(grad);
    return visit;
  }

  void arrive(const Edge& edge) {
    Visit& visit = visit_at(edge);
    if (--visit.waiting_for == 0) make_ready(visit);
  }

  void deliver(const Edge& edge, at::Tensor grad) {
    if (!edge.is_valid()) return;
    give(edge, std::move(grad));
    arrive(edge);
  }

  /// Keeps the gradient of a part of a tensor until the others are there, or adds it to that of the whole;
  /// the operator itself would put zeros around each. False where it has to run.
  bool adds_part(Visit& visit) {
    Node& node = *visit.node;
    const at::Tensor& grad = visit.grads.front();
    if (!picks_a_part(node) || has_hooks(node) || !grad.defined() || grad.is_sparse()) return false;
    const Edge& edge = node.next_edge(0);
    if (!edge.is_valid()) return false;
    Visit& target = visit_at(edge);
    target.make_room();
    const at::Tensor& sum = target.grads[edge.input_nr];
    if (!sum.defined() && target.parts_of(edge.input_nr).add(node, grad)) {
      if (target.parts_of(edge.input_nr).complete()) target.join_parts(edge.input_nr);
    } else {
      target.join_parts(edge.input_nr);
      if (!is_own(sum)) return false;
      part_of(sum, node).add_(grad);
    }
    visit.grads.clear();
    return true;
  }

  void run_whole(Visit& visit) {
    Node& node = *visit.node;
    edge_list& edges = node.next_edges();
    edge_list added(edges.size());
    for (const std::size_t at : sums_.add_products(node, visit.grads)) {
      std::swap(edges[at], added[at]);  // the operator is not asked for it again
    }
    if (edges.empty()) own_memory(visit.grads);
    variable_list results;
    {
      const std::unique_lock lock = GradientSums::lock(node);
      results = call(node, std::move(visit.grads));
    }
    node.release_variables();
    for (std::size_t at = 0; at < edges.size(); ++at) {
      if (added[at].is_valid()) std::swap(edges[at], added[at]);
      deliver(edges[at], std::move(results[at]));
    }
  }

  bool leads_on(const Edge& edge) { return edge.is_valid() && visit_at(edge).on_path; }

  void give_or_defer(const Edge& edge, at::Tensor grad, WeightWork& later) {
    if (!edge.is_valid() || !grad.defined()) return;
    if (visit_at(edge).on_path) {
      give(edge, std::move(grad));
    } else {
      later.roots.push_back(edge);
      later.grads.push_back(std::move(grad));
      later.separated |= !is_cheap(*edge.function);
    }
  }

  /// Marks the operators from which the stage's inputs can be reached. A stage without
  /// differentiable inputs, the first, has none: there the path ends at the operators
  /// nearest to the data, so that its I and W cost what they cost elsewhere.
  void find_path() {
    std::vector<std::uint32_t> waiting;
    waiting.reserve(visits_.size());
    std::vector<std::size_t> order;
    order.reserve(visits_.size());
    for (std::size_t at = 0; at < visits_.size(); ++at) {
      waiting.push_back(visits_[at].waiting_for);
      if (waiting[at] == 0) order.push_back(at);
    }
    for (std::size_t at = 0; at < order.size(); ++at) {
      for (const Edge& edge : visits_[order[at]].node->next_edges()) {
        if (!edge.is_valid()) continue;
        const std::size_t to = index_.find(edge.function.get())->second;
        if (--waiting[to] == 0) order.push_back(to);
      }
    }
    for (const std::size_t at : std::views::reverse(order)) {
      Visit& visit = visits_[at];
      visit.on_path = visit.node == inputs_.get() ||
                      std::ranges::any_of(visit.node->next_edges(), [this](const Edge& edge) {
                        return leads_on(edge) || (!inputs_ && edge.is_valid() && !is_cheap(*edge.function));
                      });
    }
  }

  void run_on_path(Visit& visit, WeightWork& later) {
    Node& node = *visit.node;
    if (picks_a_part(node) && leads_on(node.next_edge(0)) && adds_part(visit)) {
      arrive(node.next_edge(0));
      return;
    }
    const bool mixed = std::ranges::any_of(
        node.next_edges(), [this](const Edge& edge) { return edge.is_valid() && !visit_at(edge).on_path; });
    if (mixed && computes_gradients_apart(node) && !has_hooks(node)) {
      run_apart(visit, later);
      return;
    }
    variable_list results = call(node, std::move(visit.grads));
    node.release_variables();
    const edge_list& edges = node.next_edges();
    for (std::size_t at = 0; at < edges.size(); ++at) {
      give_or_defer(edges[at], std::move(results[at]), later);
      if (leads_on(edges[at])) arrive(edges[at]);
    }
  }

  /// Computes only what goes on along the path and cuts the node off from it: what
  /// stays in the graph is the weights' part.
  void run_apart(Visit& visit, WeightWork& later) {
    Node& node = *visit.node;
    edge_list& edges = node.next_edges();
    edge_list weights(edges.size());
    for (std::size_t at = 0; at < edges.size(); ++at) {
      if (!leads_on(edges[at])) std::swap(edges[at], weights[at]);
    }
    const NodePtr owner = node.getptr();
    for (std::size_t at = 0; at < visit.grads.size(); ++at) {
      if (!visit.grads[at].defined()) continue;
      later.roots.emplace_back(owner, static_cast<std::uint32_t>(at));
      later.grads.push_back(visit.grads[at]);
    }
    later.separated = true;
    variable_list results = call(node, std::move(visit.grads));
    std::swap(edges, weights);
    for (std::size_t at = 0; at < weights.size(); ++at) deliver(weights[at], std::move(results[at]));
    cut_.push_back(std::move(weights));
  }

  NodePtr inputs_;
  edge_list roots_;
  variable_list root_grads_;
  GradientSums sums_;
  std::vector<Visit> visits_;
  std::vector<edge_list> cut_;  // keeps what lies behind them alive for the rest of this pass
  ska::flat_hash_map<Node*, std::size_t> index_;
  std::priority_queue<std::pair<std::uint64_t, std::size_t>> ready_;
};

Values run_full_backward(const StageGraph& graph, const Values& grads) {
  const at::AutoGradMode no_grad(false);
  BackwardPass pass(graph, grads);
  pass.run_all();
  return pass.input_grads(graph);
}

Values run_input_backward(const StageGraph& graph, const Values& grads, WeightWork& weight_work) {
  const at::AutoGradMode no_grad(false);
  BackwardPass pass(graph, grads);
  pass.run_input_path(weight_work);
  return pass.input_grads(graph);
}

void run_weight_backward(WeightWork work) {
  const at::AutoGradMode no_grad(false);
  BackwardPass(std::move(work)).run_all();
}

}  // namespace pipewright
