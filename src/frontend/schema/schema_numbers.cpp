#include "frontend/schema/schema_numbers.h"

#include <map>
#include <utility>

namespace pipewright {
namespace {

template <typename Value>
Value look_up(const std::map<std::int64_t, Value>& meanings, const Json& number, const char* what) {
  const auto found = meanings.find(integer_of_json(number));
  if (found == meanings.end())
    throw ParseError(std::string("it has a ") + what + " that is not known: " + number.dump());
  return found->second;
}

}  // namespace

c10::ScalarType scalar_type_of(const Json& number) {
  using enum c10::ScalarType;
  static const std::map<std::int64_t, c10::ScalarType> known = {{1, Byte},
                                                                {2, Char},
                                                                {3, Short},
                                                                {4, Int},
                                                                {5, Long},
                                                                {6, Half},
                                                                {7, Float},
                                                                {8, Double},
                                                                {9, ComplexHalf},
                                                                {10, ComplexFloat},
                                                                {11, ComplexDouble},
                                                                {12, Bool},
                                                                {13, BFloat16},
                                                                {28, UInt16},
                                                                {29, Float8_e4m3fn},
                                                                {30, Float8_e5m2},
                                                                {31, Float8_e4m3fnuz},
                                                                {32, Float8_e5m2fnuz},
                                                                {34, UInt32},
                                                                {35, UInt64}};
  return look_up(known, number, "dtype");
}

c10::Layout layout_of(const Json& number) {
  static const std::map<std::int64_t, c10::Layout> known = {
      {1, c10::kSparse},    {2, c10::kSparseCsr}, {3, c10::kSparseCsc}, {4, c10::kSparseBsr},
      {5, c10::kSparseBsc}, {6, c10::kMkldnn},    {7, c10::kStrided}};
  return look_up(known, number, "layout");
}

c10::MemoryFormat memory_format_of(const Json& number) {
  static const std::map<std::int64_t, c10::MemoryFormat> known = {{1, c10::MemoryFormat::Contiguous},
                                                                  {2, c10::MemoryFormat::ChannelsLast},
                                                                  {3, c10::MemoryFormat::ChannelsLast3d},
                                                                  {4, c10::MemoryFormat::Preserve}};
  return look_up(known, number, "memory format");
}

c10::Device device_of_json(const Json& device) {
  const std::string type = text_field(device, "type");
  const Json& index = field(device, "index");
  try {
    return c10::Device(index.is_null() ? type : type + ":" + std::to_string(integer_of_json(index)));
  } catch (const c10::Error&) {
    throw ParseError("it has a device that is not known: " + type);
  }
}

}  // namespace pipewright
