#include "pipewright/schedule/costs.h"

#include <algorithm>
#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// A JSON object whose fields are asked for by name; what nobody asked for is an error.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("must be an object");
  }
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  const json* find(const char* name) {
    asked_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() ? nullptr : &*found;
  }

  /// A number ≥ 0; `value` keeps what it has where the field is not given.
  void number(const char* name, double& value) {
    if (const json* field = find(name)) value = checked(name, *field);
  }
  void number(const char* name, std::optional<double>& value) {
    if (const json* field = find(name)) value = checked(name, *field);
  }
  Rank rank(const char* name, Rank ranks) {
    const json* field = find(name);
    if (field == nullptr || !field->is_number_integer()) fail(std::string(name) + " must be a rank");
    const auto value = field->get<std::int64_t>();
    if (value < 0 || value >= ranks) {
      fail(std::string(name) + " is not a rank of 0 to " + std::to_string(ranks - 1));
    }
    return static_cast<Rank>(value);
  }

  void check_all_known() const {
    for (const auto& [name, _] : object_.items()) {
      if (!asked_.contains(name)) fail("has an unknown field \"" + name + "\"");
    }
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw ParseError("costs: " + where_ + " " + message);
  }

 private:
  double checked(const char* name, const json& field) const {
    const double value = field.is_number() ? field.get<double>() : -1;
    if (!(value >= 0) || std::isinf(value)) fail(std::string(name) + " must be a number of at least 0");
    return value;
  }

  const json& object_;
  std::string where_;
  std::set<std::string> asked_;
};

StageCosts parse_stage(const json& object, StageCosts costs, const std::string& where) {
  Fields fields(object, where);
  fields.number("f", costs.f);
  fields.number("i", costs.i);
  fields.number("w", costs.w);
  fields.number("b", costs.b);
  fields.number("activation", costs.activation);
  fields.number("held_for_w", costs.held_for_w);
  fields.number("message", costs.message);
  fields.check_all_known();
  return costs;
}

void parse_link(Fields& fields, LinkCosts& link) {
  fields.number("latency", link.latency);
  fields.number("bandwidth", link.bandwidth);
  if (link.bandwidth <= 0) fields.fail("bandwidth must be more than 0");
}

OverlapCost parse_overlap(const json& value, const Fields& fields) {
  if (value == "sum") return OverlapCost::Sum;
  if (value == "max") return OverlapCost::Max;
  if (value == "serial") return OverlapCost::Serial;
  fields.fail("overlap must be \"sum\", \"max\" or \"serial\"");
}

ordered_json stage_json(const StageCosts& stage) {
  ordered_json result = {{"f", stage.f}, {"i", stage.i}, {"w", stage.w}};
  if (stage.b) result["b"] = *stage.b;
  result["activation"] = stage.activation;
  if (stage.held_for_w) result["held_for_w"] = *stage.held_for_w;
  result["message"] = stage.message;
  return result;
}

/// JSON has no infinity. Where leaving the bandwidth out would not mean it, the largest number does.
void add_link(ordered_json& object, const LinkCosts& link, double bandwidth_if_left_out) {
  object["latency"] = link.latency;
  if (link.bandwidth != bandwidth_if_left_out) {
    object["bandwidth"] = std::min(link.bandwidth, std::numeric_limits<double>::max());
  }
}

const char* overlap_text(OverlapCost overlap) {
  switch (overlap) {
    case OverlapCost::Sum: return "sum";
    case OverlapCost::Max: return "max";
    case OverlapCost::Serial: return "serial";
  }
  return "";
}

}  // namespace

Costs uniform_costs(const Placement& placement, const RankCosts& rank) {
  Costs costs;
  costs.link.latency = rank.comm;
  Rank ranks = 0;
  for (const Rank home : placement) ranks = std::max(ranks, home + 1);
  std::vector<int> stages_of(static_cast<std::size_t>(ranks));
  for (const Rank home : placement) {
    if (home >= 0) ++stages_of[static_cast<std::size_t>(home)];
  }
  for (const Rank home : placement) {
    const double share = home < 0 ? 1 : 1.0 / stages_of[static_cast<std::size_t>(home)];
    costs.stages.push_back(
        {.f = rank.f * share, .i = rank.i * share, .w = rank.w * share, .activation = share});
  }
  return costs;
}

Costs parse_costs(std::istream& in, const Placement& placement) {
  json root;
  try {
    root = json::parse(in);
  } catch (const json::exception& error) {
    throw ParseError(std::string("costs: not valid JSON: ") + error.what());
  }
  Fields fields(root, "the file");
  const Costs even = uniform_costs(placement);
  Costs costs = even;
  if (const json* stages = fields.find("stages")) {
    if (!stages->is_array() || stages->size() != placement.size()) {
      fields.fail("stages must be a list of " + std::to_string(placement.size()) + ", one for each stage");
    }
    for (std::size_t stage = 0; stage < stages->size(); ++stage) {
      costs.stages[stage] =
          parse_stage((*stages)[stage], even.stages[stage], "stage " + std::to_string(stage));
    }
  }
  if (const json* link = fields.find("link")) {
    Fields link_fields(*link, "link");
    parse_link(link_fields, costs.link);
    link_fields.check_all_known();
  }
  if (const json* links = fields.find("links")) {
    if (!links->is_array()) fields.fail("links must be a list");
    const Rank ranks = placement.empty() ? 0 : *std::ranges::max_element(placement) + 1;
    for (const json& entry : *links) {
      Fields link_fields(entry, "links[" + std::to_string(costs.links.size()) + "]");
      Costs::LinkOverride link{
          .from = link_fields.rank("from", ranks), .to = link_fields.rank("to", ranks), .link = costs.link};
      parse_link(link_fields, link.link);
      link_fields.check_all_known();
      costs.links.push_back(link);
    }
  }
  if (const json* overlap = fields.find("overlap")) costs.overlap = parse_overlap(*overlap, fields);
  fields.check_all_known();
  return costs;
}

std::string to_json(const Costs& costs) {
  ordered_json root = {{"stages", ordered_json::array()}, {"link", ordered_json::object()}};
  for (const StageCosts& stage : costs.stages) root["stages"].push_back(stage_json(stage));
  add_link(root["link"], costs.link, std::numeric_limits<double>::infinity());
  for (const Costs::LinkOverride& entry : costs.links) {
    ordered_json link = {{"from", entry.from}, {"to", entry.to}};
    add_link(link, entry.link, costs.link.bandwidth);
    root["links"].push_back(std::move(link));
  }
  root["overlap"] = overlap_text(costs.overlap);
  return root.dump(2) + "\n";
}

}  // namespace pipewright
