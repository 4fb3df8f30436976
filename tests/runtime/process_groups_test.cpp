#include "runtime/world/process_groups.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/base/error.h"
#include "runtime/rendezvous.h"

namespace pipewright {
namespace {

/// In place of a group over NCCL: its end waits for that of another.
class EndsWithAnother final : public c10d::Backend {
 public:
  EndsWithAnother(Rendezvous& other, std::atomic<int>& ended, std::string name)
      : Backend(0, 1), other_(other), ended_(ended), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }
  void abort() override {
    if (other_.arrive()) ++ended_;
    throw Error("it has failed already");
  }

 private:
  Rendezvous& other_;
  std::atomic<int>& ended_;
  std::string name_;
};

TEST(ProcessGroups, OfNcclAreAbortedAtTheSameTime) {
  Rendezvous both;
  std::atomic<int> ended = 0;
  std::vector<ProcessGroup> groups;
  for (const char* name : {"nccl", "gloo", "nccl"})
    groups.push_back(c10::make_intrusive<EndsWithAnother>(both, ended, name));
  abort_nccl(groups).clear();
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace pipewright
