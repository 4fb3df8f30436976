#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "frontend/schema/json_fields.h"

namespace pipewright {

// What the numbers of torch.export's schema mean, which are not those of c10. Each throws ParseError for one
// that is not known.

c10::ScalarType scalar_type_of(const Json& number);
c10::Layout layout_of(const Json& number);
c10::MemoryFormat memory_format_of(const Json& number);
c10::Device device_of_json(const Json& device);

}  // namespace pipewright
