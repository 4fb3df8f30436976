#include "runtime/backward/parts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/operator_counter.h"

namespace pipewright {
namespace {

std::int64_t random_from(std::int64_t least, std::int64_t most, std::mt19937& random) {
  return std::uniform_int_distribution(least, most)(random);
}

/// A tensor that may be permuted, and is no leaf.
struct Whole {
  explicit Whole(std::mt19937& random) {
    std::vector<std::int64_t> sizes;
    for (std::int64_t dims = random_from(1, 4, random); dims > 0; --dims) {
      sizes.push_back(random_from(1, 4, random));
    }
    leaf = torch::randn(sizes).requires_grad_();
    value = leaf * 1;
    if (random_from(0, 1, random) == 0) return;
    std::vector<std::int64_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    if (random_from(0, 1, random) == 1) order.front() -= static_cast<std::int64_t>(sizes.size());
    value = value.permute(order);
  }
  at::Tensor leaf;
  at::Tensor value;
};

/// Parts along one dimension that do not overlap, in any order; perhaps not all.
std::vector<at::Tensor> random_parts(const at::Tensor& whole, std::mt19937& random) {
  const std::int64_t dim = random_from(0, whole.dim() - 1, random);
  const std::int64_t size = whole.size(dim);
  std::vector<at::Tensor> parts;
  for (std::int64_t at = 0; at < size;) {
    const std::int64_t end = random_from(at + 1, size, random);
    if (end == at + 1 && random_from(0, 1, random) == 0) {
      parts.push_back(whole.select(dim - (random_from(0, 1, random) == 0 ? whole.dim() : 0), at));
    } else {
      const bool from_end = at > 0 && random_from(0, 1, random) == 0;
      parts.push_back(whole.slice(dim, from_end ? at - size : at, end == size ? size + 3 : end));
    }
    at = end;
  }
  std::ranges::shuffle(parts, random);
  if (parts.size() > 1 && random_from(0, 3, random) == 0) parts.pop_back();
  return parts;
}

TEST(Parts, JoinedAreTheGradientThatAutogradGives) {
  std::mt19937 random(7);
  int complete = 0;
  constexpr int kTrials = 500;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Whole whole(random);
    const std::vector<at::Tensor> picked = random_parts(whole.value, random);
    std::vector<at::Tensor> grads;
    std::int64_t elements = 0;
    Parts parts;
    for (const at::Tensor& part : picked) {
      // Now and then one that does not lie in rows.
      grads.push_back(random_from(0, 5, random) == 0 ? torch::randn({}).expand(part.sizes())
                                                     : torch::randn_like(part));
      elements += part.numel();
      ASSERT_TRUE(picks_a_part(*part.grad_fn()));
      ASSERT_TRUE(parts.add(*part.grad_fn(), grads.back()));
    }
    ASSERT_EQ(parts.complete(), elements == whole.value.numel());
    complete += parts.complete() ? 1 : 0;
    const at::Tensor expected = torch::autograd::grad(picked, {whole.value}, grads).front();
    ASSERT_TRUE(torch::equal(parts.join(), expected));
    EXPECT_TRUE(parts.empty());
  }
  EXPECT_GT(complete, kTrials / 2);
  EXPECT_LT(complete, kTrials);
}

/// As attention has them: each gradient lies as its part of what was permuted.
TEST(Parts, AreJoinedByOneOperatorAsTheWholeLayBefore) {
  const at::Tensor before = torch::randn({2, 5, 3, 4, 6}).requires_grad_() * 1;
  const at::Tensor whole = before.permute({2, 0, 3, 1, 4});
  Parts parts;
  for (const int at : {1, 0, 2}) {
    const at::Tensor part = whole[at];
    ASSERT_TRUE(parts.add(*part.grad_fn(), torch::randn_like(part)));
  }
  const OperatorCounter counter;
  const at::Tensor joined = parts.join();
  EXPECT_EQ(joined.strides(), whole.strides());
  EXPECT_EQ(counter.calls_of("aten::cat"), 1);
  EXPECT_EQ(counter.calls_of("aten::zero_") + counter.calls_of("aten::copy_"), 0);
}

TEST(Parts, ThatMayOverlapAreRefused) {
  const at::Tensor whole = torch::randn({4, 4}).requires_grad_() * 1;
  const at::Tensor first = whole.slice(0, 0, 2);
  const at::Tensor every_second = whole.slice(0, 1, 4, 2);
  const auto takes = [](const at::Tensor& kept, const at::Tensor& another) {
    Parts parts;
    EXPECT_TRUE(parts.add(*kept.grad_fn(), torch::ones_like(kept)));
    return parts.add(*another.grad_fn(), torch::ones_like(another));
  };
  EXPECT_TRUE(takes(first, whole.slice(0, 2, 3)));
  EXPECT_FALSE(takes(first, whole.slice(0, 1, 3)));
  EXPECT_FALSE(takes(first, whole.select(0, 1)));
  EXPECT_FALSE(takes(first, whole.slice(1, 2, 3)));
  EXPECT_FALSE(takes(first, every_second));
  EXPECT_FALSE(takes(every_second, whole.select(0, 2)));
}

TEST(Parts, OneThatIsAllIsTheGradient) {
  const at::Tensor all = (torch::randn({4, 4}).requires_grad_() * 1).slice(0, 0, 4);
  const at::Tensor grad = torch::ones_like(all);
  Parts parts;
  ASSERT_TRUE(parts.add(*all.grad_fn(), grad));
  EXPECT_TRUE(parts.join().is_same(grad));
}

}  // namespace
}  // namespace pipewright
