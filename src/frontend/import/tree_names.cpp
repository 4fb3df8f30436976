#include "frontend/import/tree_names.h"

namespace pipewright {
namespace {

constexpr int kDeepest = 64;

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// The node at the top of a tree's description, which comes with the version of its format.
Json tree_of(const std::string& spec) {
  const Json parsed = parse_json(spec);
  if (!parsed.is_array() || parsed.size() != 2 || parsed[0] != 1) {
    throw ParseError("the description of its arguments or results is in a format that is not known");
  }
  return parsed[1];
}

/// What each child is called.
std::vector<std::string> child_names(const Json& tree) {
  const Json& children = list_field(tree, "children_spec");
  std::vector<std::string> names;
  const Json& context = field(tree, "context");
  const Json keys = context.is_string() ? Json::parse(context.get<std::string>(), nullptr, false) : Json();
  for (std::size_t at = 0; at < children.size(); ++at) {
    const bool named = keys.is_array() && keys.size() == children.size() && keys[at].is_string();
    names.push_back(named ? keys[at].get<std::string>() : std::to_string(at));
  }
  return names;
}

void add_leaves(const Json& tree, const std::string& path, int depth, std::vector<std::string>& names) {
  if (depth > kDeepest) throw ParseError("its arguments or results are nested too deeply");
  if (field(tree, "type").is_null()) {
    names.push_back(path);
    return;
  }
  const std::vector<std::string> children = child_names(tree);
  for (std::size_t at = 0; at < children.size(); ++at) {
    add_leaves(tree["children_spec"][at], joined(path, children[at]), depth + 1, names);
  }
}

}  // namespace

std::vector<std::string> input_names(const std::string& in_spec,
                                     const std::vector<std::string>& argument_names) {
  const Json tree = tree_of(in_spec);
  const Json& both = list_field(tree, "children_spec");
  if (both.size() != 2)
    throw ParseError("the description of its arguments is not of positional and named ones");
  std::vector<std::string> names;
  const Json& positional = list_field(both[0], "children_spec");
  for (std::size_t at = 0; at < positional.size(); ++at) {
    add_leaves(positional[at], at < argument_names.size() ? argument_names[at] : std::to_string(at), 0,
               names);
  }
  const std::vector<std::string> keys = child_names(both[1]);
  for (std::size_t at = 0; at < keys.size(); ++at)
    add_leaves(both[1]["children_spec"][at], keys[at], 0, names);
  return names;
}

std::vector<std::string> output_names(const std::string& out_spec) {
  std::vector<std::string> names;
  add_leaves(tree_of(out_spec), "", 0, names);
  if (names.size() == 1 && names[0].empty()) names[0] = "0";
  return names;
}

}  // namespace pipewright
