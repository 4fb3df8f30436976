#pragma once

#include <vector>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// Under which modes the thread's operators run, compared to when this was made.
class ThreadModes {
 public:
  ThreadModes();
  NodeModes now() const;

 private:
  std::vector<NodeModes::Autocast> autocast_;
  int autocast_nesting_;
};

}  // namespace pipewright
