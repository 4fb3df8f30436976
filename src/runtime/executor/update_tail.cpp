#include "runtime/executor/update_tail.h"

#include <ATen/core/grad_mode.h>

#include <bit>
#include <utility>

#include "runtime/optim/non_finite.h"

namespace pipewright {

CapturedSteps::Tail make_tail(Update& update, bool look, std::function<std::vector<at::Tensor>()> gradients) {
  const auto key = [&update, look] {
    CapturedSteps::Key all = update.fixed();
    all.push_back(std::bit_cast<std::int64_t>(&update));
    all.push_back(look ? 1 : 0);
    return all;
  };
  const auto launch = [&update, look,
                       gradients = std::move(gradients)](const std::vector<at::Tensor>& losses) {
    const at::AutoGradMode no_grad(false);
    if (!look) {
      update.apply({});
      return at::Tensor();
    }
    at::Tensor telling = telling_numbers(losses, gradients());
    update.apply(any_non_finite(telling));
    return telling;
  };
  return {.key = key, .prepare = [&update] { update.prepare(); }, .launch = launch};
}

}  // namespace pipewright
