#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "frontend/schema/json_fields.h"

namespace pipewright {

// What the numbers of torch.export's schema mean, which are not those of c10. Each throws ParseError for one
// that is not known.

c10::ScalarType scalar_type_of(const Json& number);
c10::Layout layout_of(const Json& number);
c10::MemoryFormat memory_format_of(const Json& number);
c10::Device device_of_json(const Json& device);

// The other way round. Each throws Error for one that the schema does not have.

std::int64_t number_of(c10::ScalarType dtype);
std::int64_t number_of(c10::Layout layout);
std::int64_t number_of(c10::MemoryFormat format);
Json json_of(const c10::Device& device);

// What a tensor is.

Json sizes_json(c10::IntArrayRef sizes);
/// `sizes` and `strides`: as `sizes_json` has them, or with expressions. It requires no gradient.
Json tensor_meta_json(Json sizes, Json strides, c10::ScalarType dtype, const c10::Device& device);

}  // namespace pipewright
