#include "pipewright/runtime/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "runtime/executor/current_action.h"

namespace pipewright {

std::optional<Action>& CurrentAction::slot() {
  thread_local std::optional<Action> action;
  return action;
}

std::optional<Action> current_action() { return CurrentAction::slot(); }

at::Generator seeded_generator(std::initializer_list<std::uint64_t> key) {
  // splitmix64, chained: every number of the key changes all bits.
  std::uint64_t state = 0;
  for (const std::uint64_t part : key) {
    state += part + 0x9e3779b97f4a7c15ULL;
    state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    state = (state ^ (state >> 27U)) * 0x94d049bb133111ebULL;
    state ^= state >> 31U;
  }
  return at::make_generator<at::CPUGeneratorImpl>(state);
}

}  // namespace pipewright
