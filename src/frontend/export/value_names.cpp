#include "frontend/export/value_names.h"

#include <cctype>

namespace pipewright {

ValueNames::ValueNames(const Graph& graph, const ProgramDescription& description)
    : graph_(graph), description_(description) {
  names_.reserve(graph.values.size());
  for (const std::string& value : graph.values) names_.push_back(fresh(value));
}

const ValueDescription& description_of(ValueId value, const Graph& graph,
                                       const ProgramDescription& description) {
  const std::string& name = graph.values[static_cast<std::size_t>(value)];
  auto found = description.values.find(name);
  if (found == description.values.end() && name.ends_with(kSent))  // it is what the parameter is
    found = description.values.find(name.substr(0, name.size() - kSent.size()));
  if (found == description.values.end())
    throw Error("the model does not say what '" + name + "' is: was it exported from another?");
  if (!found->second.unknown.empty())
    throw Error("it cannot be said what '" + name + "' is: " + found->second.unknown);
  return found->second;
}

std::string ValueNames::fresh(const std::string& like) {
  std::string name;
  for (const char each : like) name += std::isalnum(static_cast<unsigned char>(each)) != 0 ? each : '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0) name.insert(0, "_");
  return taken_.give(name);
}

}  // namespace pipewright
