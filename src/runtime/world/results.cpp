#include "runtime/world/results.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "runtime/transport/message_format.h"
#include "runtime/world/running_system.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

/// What is no larger travels in one message.
constexpr std::size_t kInline = 4096;

void broadcast_bytes(World& world, at::Tensor bytes, int root) {
  std::vector<at::Tensor> tensors = {std::move(bytes)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  world.impl().finish(world.impl().control().broadcast(tensors, options));
}

at::Tensor make_bytes(std::size_t size) { return at::zeros({static_cast<std::int64_t>(size)}, at::kByte); }

template <typename Value>
void append(std::string& text, const Value& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// What `gather_timeline` gets from one process.
struct GatheredTimes {
  explicit GatheredTimes(std::string the_text) : text(std::move(the_text)) {
    machine = text.substr(0, kSystemText);
    start = next<std::int64_t>();
  }
  template <typename Value>
  Value next() {
    Value value;
    std::memcpy(&value, text.data() + at, sizeof value);
    at += sizeof value;
    return value;
  }

  std::string text;
  std::size_t at = kSystemText;
  std::string machine;
  std::int64_t start = 0;
};

std::byte* data_of(const at::Tensor& bytes) { return static_cast<std::byte*>(bytes.data_ptr()); }

}  // namespace

Values broadcast(World& world, const Values& values, int root) {
  const bool sends = world.rank() == root;
  Layout layout;
  Prefix prefix;
  if (sends) {
    layout = Layout::of(values);
    prefix.layout_bytes = static_cast<std::uint32_t>(layout_bytes(layout));
    prefix.payload_bytes = layout.payload_bytes();
    prefix.overflow = prefix.body_offset() + prefix.payload_bytes > kInline ? 1 : 0;
  }
  // Small ones in one message; of larger ones it says how large they are.
  at::Tensor first = make_bytes(kInline);
  if (sends) {
    std::memcpy(data_of(first), &prefix, sizeof prefix);
    if (!prefix.overflow) pack(values, layout, true, data_of(first) + Prefix::kSize);
  }
  broadcast_bytes(world, first, root);
  std::memcpy(&prefix, data_of(first), sizeof prefix);
  std::size_t offset = Prefix::kSize;
  if (prefix.overflow) {
    first = make_bytes(prefix.rest());
    if (sends) pack(values, layout, true, data_of(first));
    broadcast_bytes(world, first, root);
    offset = 0;
  }
  if (sends) return values;
  layout = read_layout(data_of(first) + offset, prefix.layout_bytes);
  return unpack(first, offset + prefix.body_offset() - Prefix::kSize, layout);
}

void share_results(World& world, const std::vector<int>& roots, std::size_t microbatches,
                   std::vector<at::Tensor>& losses, std::vector<Values>& outputs) {
  const std::vector<at::Tensor> own_losses = std::exchange(losses, {});
  const std::vector<Values> own_outputs = std::exchange(outputs, {});
  std::size_t first = 0;  // of this process's next replica with a last stage here
  for (const int root : roots) {
    Values values(1);
    if (root == world.rank()) {
      if (!own_losses.empty()) values[0] = at::stack(at::TensorList(own_losses).slice(first, microbatches));
      for (std::size_t at = first; at < std::min(first + microbatches, own_outputs.size()); ++at) {
        values.insert(values.end(), own_outputs[at].begin(), own_outputs[at].end());
      }
      first += microbatches;
    }
    values = broadcast(world, values, root);
    if (values[0].defined()) {
      for (const at::Tensor& loss : values[0].unbind()) losses.push_back(loss);
    }
    const auto each = static_cast<std::ptrdiff_t>((values.size() - 1) / microbatches);
    for (auto from = values.begin() + 1; from != values.end(); from += each) {
      outputs.emplace_back(from, from + each);
    }
  }
}

void gather_timeline(World& world, const std::vector<int>& processes, Clock::time_point start,
                     Timeline& timeline) {
  const std::int64_t own_start = start.time_since_epoch().count();
  std::string own = running_system();
  append(own, own_start);
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    if (processes[rank] != world.rank()) continue;
    append(own, timeline.ranks[rank].size());
    for (const TimedAction& each : timeline.ranks[rank]) append(own, each);
  }
  std::vector<GatheredTimes> all;
  std::map<std::string, std::int64_t> earliest;  // by machine
  for (std::string& text : world.all_gather(own)) {
    GatheredTimes& times = all.emplace_back(std::move(text));
    const auto [found, is_new] = earliest.emplace(times.machine, times.start);
    if (!is_new) found->second = std::min(found->second, times.start);
  }
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    GatheredTimes& times = all[static_cast<std::size_t>(processes[rank])];
    const std::chrono::duration<double, std::milli> later =
        Clock::duration(times.start - earliest.at(times.machine));
    std::vector<TimedAction>& actions = timeline.ranks[rank];
    actions.resize(times.next<std::size_t>());
    for (TimedAction& each : actions) {
      each = times.next<TimedAction>();
      each.start += later.count();
      each.end += later.count();
    }
  }
}

}  // namespace pipewright
