// In place of cuda_graph.cpp, where libtorch has no CUDA.

#include "pipewright/base/error.h"
#include "runtime/device/cuda_graph.h"

namespace pipewright {

class CudaGraph::Impl {};

bool CudaGraph::is_supported() { return false; }

CudaGraph::CudaGraph(c10::Stream /*stream*/) { throw Error("this library was built without CUDA"); }
CudaGraph::~CudaGraph() = default;
void CudaGraph::capture(const std::function<void()>& /*work*/) {}
void CudaGraph::replay() {}

}  // namespace pipewright
