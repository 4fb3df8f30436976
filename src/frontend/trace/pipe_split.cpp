#include "pipewright/frontend/pipe_split.h"

#include "frontend/trace/recorder.h"

namespace pipewright {
namespace {

void record_split() {
  if (Recorder* recorder = Recorder::current()) recorder->add_split();
}

}  // namespace

at::Tensor pipe_split(at::Tensor value) {
  record_split();
  return value;
}

Values pipe_split(Values values) {
  record_split();
  return values;
}

}  // namespace pipewright
