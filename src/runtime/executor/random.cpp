#include "pipewright/runtime/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "runtime/executor/current_action.h"

namespace pipewright {

std::optional<CurrentAction::Running>& CurrentAction::slot() {
  thread_local std::optional<Running> running;
  return running;
}

std::optional<Action> current_action() {
  const auto& running = CurrentAction::slot();
  return running ? std::optional(running->action) : std::nullopt;
}

std::optional<Microbatch> current_microbatch() {
  const auto& running = CurrentAction::slot();
  if (!running || !has_microbatch(running->action.kind)) return std::nullopt;
  return running->first_microbatch + static_cast<Microbatch>(running->action.microbatch);
}

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
