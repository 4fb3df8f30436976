#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>

#include "files.h"
#include "model/commands.h"
#include "model/model_options.h"
#include "model/stage_modules.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/write_model.h"
#include "torch/bytes_text.h"
#include "torch/command.h"

namespace pipewright::cli {
namespace {

struct SplitOptions {
  ModelOptions model;
  int stages = 0;
  std::string directory;
  bool graphs = false;
  bool json = false;
};

struct Tensors {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;

  void add(const Graph::Recorded& tensor) {
    std::int64_t own = 1;
    for (const std::int64_t size : tensor.sizes) own *= size;
    elements += own;
    bytes += own * static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
  }
};

/// Of what a graph's names name, each once.
Tensors tensors_of(const Graph& graph, const std::map<std::string, ValueId>& names) {
  Tensors all;
  std::set<ValueId> seen;
  for (const auto& [name, value] : names) {
    const auto known = graph.recorded.find(value);
    if (seen.insert(value).second && known != graph.recorded.end()) all.add(known->second);
  }
  return all;
}

std::string tensor_text(const Graph::Recorded& tensor) {
  std::ostringstream out;
  out << tensor.dtype << at::IntArrayRef(tensor.sizes);
  return out.str();
}

nlohmann::json ports_json(const Graph& graph, const std::vector<Graph::Port>& ports) {
  nlohmann::json all = nlohmann::json::array();
  for (const Graph::Port& port : ports) {
    const auto* value = std::get_if<ValueId>(&port.is);
    if (!value) continue;
    nlohmann::json one = {{"name", port.name}};
    if (const auto known = graph.recorded.find(*value); known != graph.recorded.end()) {
      one["dtype"] = c10::toString(known->second.dtype);
      one["sizes"] = known->second.sizes;
    }
    all.push_back(std::move(one));
  }
  return all;
}

/// What is told of a stage.
struct StageReport {
  std::size_t nodes;
  Tensors parameters;
  double share;  // of the cost
  std::vector<std::string> modules;
};

std::vector<StageReport> report(const CutModel& cut) {
  const auto modules = stage_modules(cut.graph(), cut.cuts());
  const double total = std::accumulate(cut.costs().begin(), cut.costs().end(), 0.0);
  std::vector<StageReport> stages;
  std::size_t begin = 0;
  for (std::size_t stage = 0; stage < modules.size(); ++stage) {
    const std::size_t end = stage == cut.cuts().size() ? cut.costs().size() : cut.cuts()[stage];
    const double cost = std::accumulate(cut.costs().begin() + static_cast<std::ptrdiff_t>(begin),
                                        cut.costs().begin() + static_cast<std::ptrdiff_t>(end), 0.0);
    const Graph& part = cut.parts().stages[stage];
    stages.push_back({.nodes = end - begin,
                      .parameters = tensors_of(part, part.parameters),
                      .share = total > 0 ? cost / total : 0,
                      .modules = modules[stage]});
    begin = end;
  }
  return stages;
}

nlohmann::json to_json(const CutModel& cut) {
  nlohmann::json stages = nlohmann::json::array();
  const std::vector<StageReport> reports = report(cut);
  for (std::size_t stage = 0; stage < reports.size(); ++stage) {
    const Graph& part = cut.parts().stages[stage];
    nlohmann::json inputs = ports_json(part, part.inputs);
    const std::vector<Source>& sources = cut.parts().routes[stage];
    for (std::size_t input = 0; input < sources.size(); ++input) {
      inputs[input]["from"] = {{"stage", sources[input].stage}, {"output", sources[input].output}};
    }
    stages.push_back({{"nodes", reports[stage].nodes},
                      {"parameters", reports[stage].parameters.elements},
                      {"parameter_bytes", reports[stage].parameters.bytes},
                      {"cost", reports[stage].share},
                      {"modules", reports[stage].modules},
                      {"inputs", inputs},
                      {"outputs", ports_json(part, part.outputs)}});
  }
  return {{"cuts", cut.cuts()}, {"stages", stages}, {"tied", cut.parts().tied}};
}

/// What a stage takes from earlier ones.
void print_inputs(const Graph& graph, const std::vector<Source>& sources) {
  for (std::size_t input = 0; input < sources.size(); ++input) {
    const Graph::Port& port = graph.inputs[input];
    const auto known = graph.recorded.find(std::get<ValueId>(port.is));
    std::cout << "    " << port.name << "  "
              << (known == graph.recorded.end() ? "a number" : tensor_text(known->second)) << "  from stage "
              << sources[input].stage << '\n';
  }
}

void print_table(const SplitOptions& options, const CutModel& cut) {
  const Graph& graph = cut.graph();
  const Tensors all = tensors_of(graph, graph.parameters);
  std::cout << options.model.file << ": " << graph.nodes.size() << " nodes, " << all.elements
            << " parameters (" << bytes_text(all.bytes) << "), costs " << options.model.costs << "\n\n"
            << "stage   nodes    parameters       bytes    cost  modules\n";
  const std::vector<StageReport> reports = report(cut);
  double most = 0;
  for (std::size_t stage = 0; stage < reports.size(); ++stage) {
    const StageReport& each = reports[stage];
    most = std::max(most, each.share);
    std::cout << std::setw(5) << stage << std::setw(8) << each.nodes << std::setw(14)
              << each.parameters.elements << std::setw(12) << bytes_text(each.parameters.bytes) << std::fixed
              << std::setprecision(1) << std::setw(6) << 100 * each.share << " %  ";
    const char* between = "";
    for (const std::string& module : each.modules) {
      std::cout << between << module;
      between = ", ";
    }
    std::cout << '\n';
  }
  std::cout << "The most expensive stage is at " << std::setprecision(2)
            << most * static_cast<double>(reports.size()) << " of an even share.\n";
  for (std::size_t stage = 1; stage < reports.size(); ++stage) {
    std::cout << "\nstage " << stage << " takes\n";
    print_inputs(cut.parts().stages[stage], cut.parts().routes[stage]);
  }
  for (const auto& group : cut.parts().tied) {
    std::cout << "\none parameter on several stages:";
    for (const std::string& name : group) std::cout << ' ' << name;
    std::cout << '\n';
  }
}

void write_stages(const CutModel& cut, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  for (std::size_t stage = 0; stage < cut.parts().stages.size(); ++stage) {
    const Graph& part = cut.parts().stages[stage];
    const std::filesystem::path file = directory / ("stage_" + std::to_string(stage) + ".pt2");
    write_model(file, cut.model(), part, cut.load(part));
    std::cerr << "wrote " << file.string() << '\n';
  }
  write_output(directory / "stages.json", to_json(cut).dump(1) + "\n");
}

void run(const SplitOptions& options) {
  if (options.stages < 0) throw ArgumentError("--stages must be at least 1");
  const CutModel cut(options.model, options.stages, nullptr);
  if (options.json) {
    std::cout << to_json(cut).dump(1) << '\n';
  } else if (!options.graphs) {
    print_table(options, cut);
  }
  if (!options.directory.empty()) write_stages(cut, options.directory);
  if (options.graphs) {
    for (std::size_t stage = 0; stage < cut.parts().stages.size(); ++stage) {
      std::cout << "## stage " << stage << '\n' << to_text(cut.parts().stages[stage]) << '\n';
    }
  }
}

}  // namespace

void add_split_command(CLI::App& app) {
  auto* command = add_command(app, "split", "Show how an exported model is cut into stages; write them");
  const auto options = std::make_shared<SplitOptions>();
  options->model.add_to(*command)->required();
  command->add_option("--stages", options->stages, "Number of stages, where nothing else says it");
  command->add_option("-o,--output", options->directory,
                      "Write each stage into this directory, stage_0.pt2, …, for torch.export.load, and "
                      "stages.json, which says where their inputs come from");
  auto* graphs =
      command->add_flag("--graphs", options->graphs, "Print what each stage computes, a line a node");
  command->add_flag("--json", options->json, "The same as JSON")->excludes(graphs);
  command->callback([options] { with_short_errors([&] { run(*options); }); });
}

}  // namespace pipewright::cli
