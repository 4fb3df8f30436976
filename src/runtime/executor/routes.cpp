#include "pipewright/runtime/routes.h"

#include <set>
#include <string>

#include "pipewright/base/error.h"

namespace pipewright {

std::vector<Skip> skips_of(const Routes& routes, Stage stages) {
  if (routes.empty()) return {};
  if (routes.size() != static_cast<std::size_t>(stages)) {
    throw ArgumentError("the routes are for " + std::to_string(routes.size()) + " stages, the schedule has " +
                        std::to_string(stages));
  }
  if (!routes[0].empty()) throw ArgumentError("the routes give inputs to stage 0, which takes the batch's");
  std::set<Skip> skips;
  for (Stage to = 0; to < stages; ++to) {
    const std::vector<Source>& inputs = routes[static_cast<std::size_t>(to)];
    for (std::size_t input = 0; input < inputs.size(); ++input) {
      const Stage from = inputs[input].stage;
      if (from < 0 || from >= to) {
        throw ArgumentError("the routes take input " + std::to_string(input) + " of stage " +
                            std::to_string(to) + " from stage " + std::to_string(from) +
                            ", which does not come before it");
      }
      if (from + 1 < to) skips.insert({.from = from, .to = to});
    }
  }
  return {skips.begin(), skips.end()};
}

}  // namespace pipewright
