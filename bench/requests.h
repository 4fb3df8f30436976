#pragma once

#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright {

/// Answers every line of the input by one of the output. Throws ArgumentError for a line that `answer` cannot
/// read.
inline void serve(std::istream& in, const std::function<nlohmann::json(std::istream& request)>& answer) {
  for (std::string line; std::getline(in, line);) {
    std::istringstream request(line);
    const nlohmann::json reply = answer(request);
    if (!request) throw ArgumentError("not a request: " + line);
    std::cout << reply << std::endl;
  }
}

}  // namespace pipewright
