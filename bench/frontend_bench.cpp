// What running an imported model costs, in lines of JSON; compare_frontend.py prints them beside Python.
//
//   frontend_bench steps MODEL INPUTS   for each line `STEPS` of the input, forwards and backwards of the
//   model;
//                                       INPUTS: a file of tensors by name
//   frontend_bench nodes ROUNDS         a chain of the cheapest operators: interpreted, and called directly
//   frontend_bench load MODEL STAGES    opens a file, cuts the model, and loads the second stage, every byte
//   of it

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph_module.h"
#include "pipewright/frontend/partition.h"
#include "pipewright/frontend/split.h"
#include "pipewright/frontend/tensor_file.h"

namespace pipewright {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void print(const nlohmann::json& line) { std::cout << line.dump() << std::endl; }

void steps(const std::string& file, const std::string& inputs_file) {
  const ExportedModel model(file);
  GraphModule module(model.graph(), model.load(model.graph()));
  const NamedTensors named = read_tensors(inputs_file);
  Values inputs;
  for (const Graph::Port& port : model.graph().inputs) inputs.push_back(named.at(port.name));
  for (int count = 0; std::cin >> count;) {
    std::vector<double> seconds;
    for (int step = 0; step < count; ++step) {
      const double start = seconds_now();
      const Values outputs = module.forward(inputs);
      outputs[0].sum().backward();
      seconds.push_back(seconds_now() - start);
      for (at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
    }
    print({{"seconds", seconds}, {"nodes", model.graph().nodes.size()}});
  }
}

/// `length` times relu, each of what the one before gives.
Graph chain(std::size_t length) {
  Graph graph;
  graph.values = {"x"};
  graph.inputs = {{"x", ValueId{0}}};
  for (std::size_t at = 0; at < length; ++at) {
    GraphNode node;
    node.op = "aten::relu";
    node.arguments = {{static_cast<ValueId>(at)}};
    node.outputs = {{static_cast<ValueId>(at + 1)}};
    graph.values.push_back("y" + std::to_string(at));
    graph.nodes.push_back(std::move(node));
  }
  graph.outputs = {{"y", static_cast<ValueId>(length)}};
  return graph;
}

void nodes(int rounds) {
  constexpr std::size_t kLength = 1000;
  GraphModule module(chain(kLength), {});
  const at::Tensor x = at::ones({1});
  const at::NoGradGuard no_grad;
  for (int round = 0; round < rounds; ++round) {
    const double start = seconds_now();
    module.forward({x});
    const double middle = seconds_now();
    at::Tensor y = x;
    for (std::size_t at = 0; at < kLength; ++at) y = at::relu(y);
    const double end = seconds_now();
    print({{"interpreted", (middle - start) / kLength}, {"direct", (end - middle) / kLength}});
  }
}

void load(const std::string& file, Stage stages) {
  const double start = seconds_now();
  const ExportedModel model(file);
  const auto cuts = balanced_cuts(model.graph(), stages, parameter_costs(model.graph()));
  const PartitionedGraph parts = partition(model.graph(), cuts);
  double bytes = 0;
  double sum = 0;  // of one number of every page: so that all are read
  for (const auto& [name, tensor] : model.load(parts.stages.at(stages > 1 ? 1 : 0))) {
    constexpr std::int64_t kPage = 1024;
    bytes += static_cast<double>(tensor.nbytes());
    sum += tensor.detach().flatten().slice(0, 0, tensor.numel(), kPage).sum().item<double>();
  }
  print({{"seconds", seconds_now() - start}, {"bytes", bytes}, {"sum", sum}});
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  try {
    if (what == "steps" && arguments.size() == 3) {
      pipewright::steps(arguments[1], arguments[2]);
    } else if (what == "nodes" && arguments.size() == 2) {
      pipewright::nodes(std::stoi(arguments[1]));
    } else if (what == "load" && arguments.size() == 3) {
      pipewright::load(arguments[1], std::stoi(arguments[2]));
    } else {
      std::cerr << "usage: frontend_bench steps MODEL INPUTS | nodes ROUNDS | load MODEL STAGES\n";
      return 2;
    }
  } catch (const std::exception& error) {
    std::cerr << "frontend_bench: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
