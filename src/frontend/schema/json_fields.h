#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright {

using Json = nlohmann::json;

/// Throws ParseError for what is no JSON, or is nested so deeply that whoever walks through it needs too much
/// of a stack.
inline Json parse_json(const std::string& text) {
  constexpr int kDeepest = 200;
  const auto check_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) throw ParseError("it is nested too deeply");
    return true;
  };
  Json parsed = Json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw ParseError("it is not JSON");
  return parsed;
}

/// The field of an object. Throws ParseError where there is none.
inline const Json& field(const Json& object, const char* name) {
  if (object.is_object()) {
    if (const auto found = object.find(name); found != object.end()) return *found;
  }
  throw ParseError(std::string("it has no field '") + name + "' where there must be one");
}

inline const Json& list_field(const Json& object, const char* name) {
  const Json& list = field(object, name);
  if (!list.is_array()) throw ParseError(std::string("its field '") + name + "' is no list");
  return list;
}

inline std::string text_of_json(const Json& value) {
  if (!value.is_string())
    throw ParseError("it has something else where there must be text: " + value.dump().substr(0, 60));
  return value.get<std::string>();
}

inline std::string text_field(const Json& object, const char* name) {
  return text_of_json(field(object, name));
}

inline std::int64_t integer_of_json(const Json& value) {
  if (!value.is_number_integer()) {
    throw ParseError("it has something else where there must be an integer: " + value.dump().substr(0, 60));
  }
  return value.get<std::int64_t>();
}

/// Numbers that JSON has no form for come as text.
inline double number_of_json(const Json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  throw ParseError("it has something else where there must be a number: " + value.dump().substr(0, 60));
}

/// Of an object that holds one of several things, which.
inline std::pair<std::string, const Json&> only_field(const Json& object) {
  if (!object.is_object() || object.size() != 1) {
    throw ParseError("it has something else where there must be one of several things: " +
                     object.dump().substr(0, 60));
  }
  return {object.begin().key(), object.begin().value()};
}

}  // namespace pipewright
