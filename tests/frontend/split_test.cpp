#include "pipewright/frontend/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "pipewright/base/error.h"
#include "pipewright/frontend/partition.h"

namespace pipewright {
namespace {

/// A row of operators, each on what the one before gives, in modules `a`, `b`, ….
Graph row_of(const std::vector<std::string>& operators) {
  Graph graph;
  graph.values = {"x"};
  graph.recorded[0] = {.sizes = {4}, .dtype = at::kFloat};
  graph.inputs = {{"x", ValueId{0}}};
  for (const std::string& op : operators) {
    GraphNode node;
    node.op = "aten::" + op;
    node.arguments = {{static_cast<ValueId>(graph.values.size() - 1)}};
    node.outputs = {{static_cast<ValueId>(graph.values.size())}};
    node.modules = {"", std::string(1, static_cast<char>('a' + graph.nodes.size()))};
    graph.recorded[static_cast<ValueId>(graph.values.size())] = {.sizes = {4}, .dtype = at::kFloat};
    graph.values.push_back("y" + std::to_string(graph.nodes.size()));
    graph.nodes.push_back(std::move(node));
  }
  graph.outputs = {{"y", static_cast<ValueId>(graph.values.size() - 1)}};
  return graph;
}

Graph row_of(std::size_t length) { return row_of(std::vector<std::string>(length, "relu")); }

double most_expensive(const std::vector<std::size_t>& cuts, const NodeCosts& costs) {
  double most = 0;
  std::size_t begin = 0;
  for (std::size_t stage = 0; stage <= cuts.size(); ++stage) {
    const std::size_t end = stage == cuts.size() ? costs.size() : cuts[stage];
    most = std::max(most, std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin),
                                          costs.begin() + static_cast<std::ptrdiff_t>(end), 0.0));
    begin = end;
  }
  return most;
}

/// By trying all.
double least_possible(const NodeCosts& costs, std::size_t stages) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> cuts;
  const std::function<void(std::size_t)> choose = [&](std::size_t from) {
    if (cuts.size() + 1 == stages) {
      least = std::min(least, most_expensive(cuts, costs));
      return;
    }
    for (std::size_t cut = from; cut < costs.size(); ++cut) {
      cuts.push_back(cut);
      choose(cut + 1);
      cuts.pop_back();
    }
  };
  choose(1);
  return least;
}

TEST(BalancedCuts, AreWithinFivePercentOfTheBest) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const std::size_t nodes = 2 + random() % 10;
    const std::size_t stages = 1 + random() % nodes;
    NodeCosts costs(nodes);
    for (double& cost : costs) cost = static_cast<double>(random() % 20);
    const auto cuts = balanced_cuts(row_of(nodes), static_cast<Stage>(stages), costs);
    ASSERT_EQ(cuts.size() + 1, stages);
    ASSERT_TRUE(std::ranges::is_sorted(cuts));
    ASSERT_LE(most_expensive(cuts, costs), 1.05 * least_possible(costs, stages) + 1e-6) << trial;
  }
}

TEST(BalancedCuts, AreWhereLittleCrosses) {
  Graph graph = row_of(8);
  graph.recorded[4].sizes = {1000000};  // what node 3 gives: a cut before node 4 is dear
  NodeCosts costs(8, 100);
  costs[3] = costs[4] = 1;
  EXPECT_NE(balanced_cuts(graph, 2, costs), std::vector<std::size_t>{4});
  graph.recorded[4].sizes = {1};  // and now cheap
  EXPECT_EQ(balanced_cuts(graph, 2, costs), std::vector<std::size_t>{4});
}

TEST(BalancedCuts, ThatCannotBeAreTold) {
  EXPECT_THROW(balanced_cuts(row_of(3), 4, NodeCosts(3, 1)), ArgumentError);
  EXPECT_THROW(balanced_cuts(row_of(3), 0, NodeCosts(3, 1)), ArgumentError);
  EXPECT_THROW(balanced_cuts(row_of(3), 2, NodeCosts(2, 1)), ArgumentError);
  EXPECT_EQ(balanced_cuts(row_of(3), 3, NodeCosts(3, 0)), (std::vector<std::size_t>{1, 2}));
}

/// a = relu(x), b = relu(a), then relu_(a) and b + a: a and b are apart, but a view of a is not.
TEST(Cuts, BetweenViewsAndAWriteToTheirMemoryAreRefused) {
  Graph graph = row_of({"relu", "alias", "relu_", "relu"});
  graph.nodes[2].arguments = {{ValueId{1}}};  // written to: what node 0 gives, and with it its view
  graph.nodes[3].arguments = {{ValueId{2}}};  // read: the view
  EXPECT_NO_THROW(partition(graph, {1}));     // both are made behind it
  try {
    partition(graph, {2});
    FAIL() << "the view would not see what is written";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string(error.what()).find("'y0' and 'y1' share memory"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(partition(graph, {3}));  // all is written before it
  EXPECT_EQ(balanced_cuts(graph, 2, NodeCosts(4, 1)), std::vector<std::size_t>{3});
}

TEST(Costs, OfMatrixProductsAreTheirOperations) {
  Graph graph = row_of({"relu", "linear", "view"});
  graph.recorded[1].sizes = {8, 32};
  graph.recorded[2].sizes = {8, 64};
  graph.values.push_back("weight");
  graph.recorded[4] = {.sizes = {64, 32}, .dtype = at::kFloat};
  graph.parameters["a.weight"] = 4;
  graph.nodes[1].arguments.push_back({ValueId{4}});
  const NodeCosts costs = estimate_costs(graph);
  EXPECT_GE(costs[1], 2.0 * 8 * 32 * 64);
  EXPECT_GT(costs[1], 10 * costs[0]);
  EXPECT_EQ(costs[2], 0);  // a view
  EXPECT_EQ(parameter_costs(graph), (NodeCosts{0, 64 * 32, 0}));
}

TEST(Lists, SayWhichModulesAreOnAStage) {
  const Graph graph = row_of(5);
  EXPECT_EQ(listed_cuts(graph, {{"a", "b"}, {"c"}, {"d", "e"}}), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(listed_cuts(graph, {{"a"}, {"d"}}), std::vector<std::size_t>{3});  // b and c go with a
  EXPECT_THROW(listed_cuts(graph, {{"a", "d"}, {"c"}}), ArgumentError);
  EXPECT_THROW(listed_cuts(graph, {{"a"}, {}}), ArgumentError);
  EXPECT_THROW(listed_cuts(graph, {{"a"}, {"z"}}), ArgumentError);
}

TEST(Bytes, AcrossACutAreThoseOfWhatIsNeededBehindIt) {
  Graph graph = row_of(3);
  graph.nodes[2].op = "aten::add";
  graph.nodes[2].overload = "Tensor";
  graph.nodes[2].arguments = {{ValueId{0}}, {ValueId{2}}};  // x once more
  const std::vector<double> bytes = bytes_across(graph);
  EXPECT_EQ(bytes[1], 32);  // x and y0
  EXPECT_EQ(bytes[2], 32);  // x and y1
}

}  // namespace
}  // namespace pipewright
