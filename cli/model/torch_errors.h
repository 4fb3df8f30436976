#pragma once

#include <c10/util/Exception.h>

#include "pipewright/base/error.h"

namespace pipewright::cli {

/// Does something; libtorch's errors come without the list of stack frames that they bring along.
template <typename Do>
void with_short_errors(Do something) {
  try {
    something();
  } catch (const c10::Error& error) {
    throw Error(error.what_without_backtrace());
  }
}

}  // namespace pipewright::cli
