// Interleaved 1F1B: several stages a rank, microbatches in rounds of about p,
// depth first (Narayanan et al., 2021, arXiv:2104.04473). Two ranks, two stages:
//
//   rank 0  0F0 0F1 2F0 2F1 .   .   0F2 2B0 0F3 2B1 2F2 0B0 …
//   rank 1  .   1F0 1F1 .   3F0 3B0 3F1 3B1 1F2 1B0 …
//
// Bubble (p−1)(F+B)/v for a peak of (pv+p−1)/v activations.

#include "schedule/generate/interleaved.h"

namespace pipewright {

Schedule interleaved_1f1b(const Sizes& sizes) { return one_forward_one_backward_in_rounds(sizes, 2, false); }

}  // namespace pipewright
