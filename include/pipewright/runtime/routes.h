#pragma once

#include <cstddef>
#include <vector>

#include "pipewright/schedule/schedule.h"

namespace pipewright {

/// Where an input of a stage comes from: an output of an earlier stage.
struct Source {
  Stage stage;
  std::size_t output;
  friend bool operator==(const Source&, const Source&) = default;
};

/// For each stage, where each of its inputs comes from. Stage 0 has none here: it takes the batch's.
/// An output may go to several inputs, of one stage or of several; its gradient is then their sum, that of
/// the last stage first, as in the backward of the unsplit model. Only the last that takes it may change it
/// in place.
using Routes = std::vector<std::vector<Source>>;

/// The skips that routes take, as a schedule lists them. Throws ArgumentError for routes that do not fit
/// `stages`: another number of them, or inputs from a stage that does not come before.
std::vector<Skip> skips_of(const Routes& routes, Stage stages);

}  // namespace pipewright
