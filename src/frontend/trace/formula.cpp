#include "frontend/trace/formula.h"

#include <set>

namespace pipewright {

std::optional<Formula> fit(const Numbers& of, const Numbers& wanted) {
  if (of == wanted) return Formula{};
  if (std::set(of.begin(), of.end()).size() < 3) return std::nullopt;
  std::size_t other = 1;
  while (of[other] == of[0]) ++other;
  const std::int64_t run = of[other] - of[0];
  const std::int64_t rise = wanted[other] - wanted[0];
  Formula formula;
  if (rise % run == 0) {
    formula.factor = rise / run;
    formula.addend = wanted[0] - formula.factor * of[0];
  } else if (rise != 0 && run % rise == 0) {
    formula.divisor = run / rise;
  }
  for (std::size_t at = 0; at < of.size(); ++at) {
    const bool fits = formula.divisor == 1 ? wanted[at] == formula.factor * of[at] + formula.addend
                                           : of[at] == wanted[at] * formula.divisor;
    if (!fits) return std::nullopt;
  }
  return formula;
}

}  // namespace pipewright
