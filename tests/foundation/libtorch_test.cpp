// That the libtorch which the build found can be compiled against as C++20, and run.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

TEST(Libtorch, AddsTwoTensors) {
  const at::Tensor sum = at::ones({2, 3}) + at::ones({2, 3});
  EXPECT_EQ(sum.sum().item<double>(), 12.0);
}
