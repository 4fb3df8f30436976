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

template <typename Value>
std::int64_t find_number(const std::map<std::int64_t, Value>& meanings, Value value,
                         const std::string& what) {
  for (const auto& [number, meaning] : meanings) {
    if (meaning == value) return number;
  }
  throw Error("torch.export has no number for " + what);
}

const std::map<std::int64_t, c10::ScalarType>& dtypes() {
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
  return known;
}

const std::map<std::int64_t, c10::Layout>& layouts() {
  static const std::map<std::int64_t, c10::Layout> known = {
      {1, c10::kSparse},    {2, c10::kSparseCsr}, {3, c10::kSparseCsc}, {4, c10::kSparseBsr},
      {5, c10::kSparseBsc}, {6, c10::kMkldnn},    {7, c10::kStrided}};
  return known;
}

const std::map<std::int64_t, c10::MemoryFormat>& memory_formats() {
  using enum c10::MemoryFormat;
  static const std::map<std::int64_t, c10::MemoryFormat> known = {
      {1, Contiguous}, {2, ChannelsLast}, {3, ChannelsLast3d}, {4, Preserve}};
  return known;
}

}  // namespace

c10::ScalarType scalar_type_of(const Json& number) { return look_up(dtypes(), number, "dtype"); }

c10::Layout layout_of(const Json& number) { return look_up(layouts(), number, "layout"); }

c10::MemoryFormat memory_format_of(const Json& number) {
  return look_up(memory_formats(), number, "memory format");
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

std::int64_t number_of(c10::ScalarType dtype) {
  return find_number(dtypes(), dtype, std::string("tensors of type ") + c10::toString(dtype));
}
std::int64_t number_of(c10::Layout layout) { return find_number(layouts(), layout, "a layout"); }
std::int64_t number_of(c10::MemoryFormat format) {
  return find_number(memory_formats(), format, "a memory format");
}

Json json_of(const c10::Device& device) {
  return {{"type", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
          {"index", device.has_index() ? Json(device.index()) : Json()}};
}

Json sizes_json(c10::IntArrayRef sizes) {
  Json list = Json::array();
  for (const std::int64_t size : sizes) list.push_back({{"as_int", size}});
  return list;
}

Json tensor_meta_json(Json sizes, Json strides, c10::ScalarType dtype, const c10::Device& device) {
  return {{"dtype", number_of(dtype)},
          {"sizes", std::move(sizes)},
          {"requires_grad", false},
          {"device", json_of(device)},
          {"strides", std::move(strides)},
          {"storage_offset", {{"as_int", 0}}},
          {"layout", number_of(c10::kStrided)}};
}

}  // namespace pipewright
