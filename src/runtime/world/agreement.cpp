#include "runtime/world/agreement.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using nlohmann::json;

/// A number that stands for a rank's actions; different ones have, in practice, different numbers.
std::uint64_t fingerprint(std::span<const Action> actions) {
  std::uint64_t hash = 14695981039346656037U;
  const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211U; };
  for (const Action action : actions) {
    mix(action.stage);
    mix(static_cast<std::uint64_t>(action.kind));
    mix(action.microbatch);
    mix(action.link);
  }
  return hash;
}

json boundary_json(const std::optional<Boundary>& boundary) {
  if (!boundary) return nullptr;
  json slots = json::array();
  for (const Slot& slot : *boundary) {
    slots.push_back({{"sizes", slot.sizes}, {"dtype", c10::toString(slot.dtype)}, {"text", to_text(slot)}});
  }
  return slots;
}

/// What the replicas of a stage must have in common.
std::string parameters_text(const StageModel& model) {
  std::string text;
  if (!model.module) return text;
  for (const auto& item : model.module->named_parameters()) {
    text += item.key() + " " + to_text(item.value()) + (item.value().requires_grad() ? "\n" : " frozen\n");
  }
  return text;
}

json routes_json(const Routes& routes) {
  json stages = json::array();
  for (const std::vector<Source>& inputs : routes) {
    json sources = json::array();
    for (const Source& source : inputs) sources.push_back({source.stage, source.output});
    stages.push_back(std::move(sources));
  }
  return stages;
}

/// What a process has been given. What must be the same everywhere comes by a name that people understand.
json description(const Schedule& plan, const Mesh& mesh, const PipelineOptions& options,
                 const ReplicaModels& models) {
  json same = {{"version", PIPEWRIGHT_VERSION},
               {"number of microbatches", plan.microbatches},
               {"number of stages", plan.stage_count()},
               {"number of ranks", plan.rank_count()},
               {"placement of stages on ranks", plan.placement},
               {"routes between stages", routes_json(options.routes)},
               {"number of replicas", mesh.replicas()},
               {"sharding of parameters", options.sharded},
               {"dtype of reductions",
                options.reduce_dtype ? c10::toString(*options.reduce_dtype) : "the parameter's"},
               {"placement of ranks on processes", mesh.processes()}};
  json ranks = json::array();
  for (const auto& actions : plan.ranks) ranks.push_back(fingerprint(actions));
  json stages = json::object();
  for (const auto& [replica, local] : models) {
    for (const auto& [stage, model] : local) {
      stages[std::to_string(stage)] = {{"input", boundary_json(model.inputs)},
                                       {"output", boundary_json(model.outputs)}};
      if (mesh.replicas() > 1) stages[std::to_string(stage)]["parameters"] = parameters_text(model);
    }
  }
  return {{"same", same}, {"ranks", ranks}, {"stages", stages}};
}

std::string differs(const std::string& what, int process, const std::string& here, const std::string& there) {
  return "the processes do not agree on the " + what + ": process 0 has " + here + ", process " +
         std::to_string(process) + " has " + there;
}

/// Where two processes' lists of a rank's actions part.
std::string action_difference(World& world, const Schedule& plan, std::size_t rank, std::size_t process) {
  std::string text;
  for (const Action action : plan.ranks[rank]) text += to_text(action) + "\n";
  const std::vector<std::string> all = world.all_gather(text);
  const auto [here, there] = std::ranges::mismatch(all[0], all[process]);
  const auto line = std::count(all[0].begin(), here, '\n');
  const auto action_at = [](const std::string& list, std::ptrdiff_t number) -> std::string {
    std::size_t start = 0;
    for (; number > 0; --number) start = list.find('\n', start) + 1;
    return start >= list.size() ? "nothing" : list.substr(start, list.find('\n', start) - start);
  };
  return differs("action " + std::to_string(line) + " of rank " + std::to_string(rank),
                 static_cast<int>(process), action_at(all[0], line), action_at(all[process], line));
}

/// Whether a value can be what both sides of a boundary say; −1 is any size.
bool fits(const json& output, const json& input) {
  if (output["dtype"] != input["dtype"] || output["sizes"].size() != input["sizes"].size()) return false;
  for (std::size_t at = 0; at < output["sizes"].size(); ++at) {
    const auto out = output["sizes"][at].get<std::int64_t>();
    const auto in = input["sizes"][at].get<std::int64_t>();
    if (out != in && out != -1 && in != -1) return false;
  }
  return true;
}

std::string between_text(Stage from, Stage to) {
  return "stage " + std::to_string(from) + " and stage " + std::to_string(to) + " do not fit together: ";
}

/// What is wrong between an output and the input that it goes to.
std::string slot_difference(Stage from, std::size_t output, const json& is, Stage to, std::size_t input,
                            const json& expected) {
  if (fits(is, expected)) return {};
  return between_text(from, to) + "output " + std::to_string(output) + " is " +
         is["text"].get<std::string>() + ", input " + std::to_string(input) + " is " +
         expected["text"].get<std::string>();
}

/// What is wrong between a stage and the next, where both say what they expect.
std::string neighbour_difference(const std::map<int, json>& stages) {
  for (const auto& [stage, boundaries] : stages) {
    const auto next = stages.find(stage + 1);
    if (next == stages.end() || boundaries["output"].is_null() || next->second["input"].is_null()) continue;
    const json& output = boundaries["output"];
    const json& input = next->second["input"];
    if (output.size() != input.size()) {
      return between_text(stage, stage + 1) + std::to_string(output.size()) + " outputs, " +
             std::to_string(input.size()) + " inputs";
    }
    for (std::size_t slot = 0; slot < output.size(); ++slot) {
      const std::string found = slot_difference(stage, slot, output[slot], stage + 1, slot, input[slot]);
      if (!found.empty()) return found;
    }
  }
  return {};
}

/// The same where the routes say what goes where.
std::string route_difference(const std::map<int, json>& stages, const Routes& routes) {
  for (const auto& [stage, boundaries] : stages) {
    const json& inputs = boundaries["input"];
    if (inputs.is_null()) continue;
    const std::vector<Source>& sources = routes[static_cast<std::size_t>(stage)];
    for (std::size_t at = 0; at < std::min(sources.size(), inputs.size()); ++at) {
      const auto [from, slot] = sources[at];
      const auto found = stages.find(from);
      if (found == stages.end() || slot >= found->second["output"].size()) continue;
      std::string difference =
          slot_difference(from, slot, found->second["output"][slot], stage, at, inputs[at]);
      if (!difference.empty()) return difference;
    }
  }
  return {};
}

}  // namespace

void check_agreement(World& world, const Schedule& plan, const Mesh& mesh, const PipelineOptions& options,
                     const ReplicaModels& models) {
  std::vector<json> all;
  for (const std::string& text : world.all_gather(description(plan, mesh, options, models).dump())) {
    all.push_back(json::parse(text));
  }
  std::map<int, json> stages;
  for (std::size_t process = 0; process < all.size(); ++process) {
    for (const auto& [what, here] : all[0]["same"].items()) {
      const json& there = all[process]["same"][what];
      if (here != there) {
        throw Error(differs(what, static_cast<int>(process), here.dump(), there.dump()));
      }
    }
    for (std::size_t rank = 0; rank < all[0]["ranks"].size(); ++rank) {
      if (all[0]["ranks"][rank] != all[process]["ranks"][rank]) {
        throw Error(action_difference(world, plan, rank, process));
      }
    }
    for (const auto& [stage, own] : all[process]["stages"].items()) {
      const auto [known, is_new] = stages.emplace(std::stoi(stage), own);
      if (is_new || known->second == own) continue;
      throw Error("the replicas of stage " + stage + " differ: that of process " + std::to_string(process) +
                  " has not the same parameters or boundaries as the one before:\n" + known->second.dump() +
                  "\n" + own.dump());
    }
  }
  const std::string difference =
      options.routes.empty() ? neighbour_difference(stages) : route_difference(stages, options.routes);
  if (!difference.empty()) throw Error(difference);
}

std::string first_error(World& world, const std::string& own) {
  const std::vector<std::string> errors = world.all_gather(own);
  for (std::size_t process = 0; process < errors.size(); ++process) {
    if (!errors[process].empty()) return "process " + std::to_string(process) + ": " + errors[process];
  }
  return {};
}

}  // namespace pipewright
