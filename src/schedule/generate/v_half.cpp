// V-Half: half of 1F1B's memory on two stages a rank in a V (Qi et al., 2024,
// arXiv:2405.15362). One microbatch's block on four ranks, a slot a column, the
// next block six slots later; W goes where there is room:
//
//   rank 0  F.........F...I..........I.
//   rank 1  ..F......F......I.......I..
//   rank 2  ....F...F.........I....I...
//   rank 3  ......FF............I.I....
//
// (p+2)/2 activations, rounded down; half of 1F1B's bubble rate.

#include "schedule/generate/controlled_v.h"

namespace pipewright {

Schedule v_half(const Sizes& sizes) {
  const int p = sizes.ranks;
  const int shift = p % 2 == 0 ? 3 : 0;  // keeps the block's slots apart modulo six
  return controlled_v(sizes, {.slots = [p, shift](Rank rank) -> ControlledV::Slots {
                                return {2 * rank, 3 * p - rank - 2, 3 * p + shift + 2 * rank - 1,
                                        6 * p + shift - rank - 2};
                              },
                              .max_activations = 2 * ((p + 2) / 2)});
}

}  // namespace pipewright
