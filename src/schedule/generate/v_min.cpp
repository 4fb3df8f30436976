// V-Min: a third of 1F1B's memory on two stages a rank in a V (Qi et al., 2024,
// arXiv:2405.15362). One microbatch's block on four ranks, a slot a column, the
// next block six slots later; W goes where there is room:
//
//   rank 0  F......FI......I
//   rank 1  .F....F..I....I.
//   rank 2  ..F..F....I..I..
//   rank 3  ...FF......II...
//
// (p+4)/3 activations, rounded down; about two thirds of 1F1B's bubble.

#include "schedule/generate/controlled_v.h"

namespace pipewright {

Schedule v_min(const Sizes& sizes) {
  const int p = sizes.ranks;
  const int shift = p % 3 == 0 ? 2 : 0;  // keeps the block's slots apart modulo six
  return controlled_v(sizes, {.slots = [p, shift](Rank rank) -> ControlledV::Slots {
                                return {rank, 2 * p - rank - 1, 2 * p + shift + rank,
                                        4 * p + shift - rank - 1};
                              },
                              .max_activations = 2 * ((p + 4) / 3)});
}

}  // namespace pipewright
