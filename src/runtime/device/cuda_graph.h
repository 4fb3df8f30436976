#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace pipewright {

/// Work on a CUDA device that was recorded once and is done again and again by one launch. The memory that
/// the work allocates belongs to it: what is still held at its end keeps its place from replay to replay.
class CudaGraph {
 public:
  /// Whether this library was built with CUDA.
  static bool is_supported();

  /// `stream`: a CUDA stream other than the default one. REQUIRES: is_supported().
  explicit CudaGraph(c10::Stream stream);
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  /// Calls the work with the stream as the current one, on this thread. Nothing is computed: what is launched
  /// is recorded. What waits for the device throws, and is thrown on; then there is no graph, and everything
  /// is as before.
  void capture(const std::function<void()>& work);

  /// Does the work, on the stream, without waiting for it. REQUIRES: it was captured.
  void replay();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipewright
