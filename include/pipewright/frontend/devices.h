#pragma once

#include <map>
#include <string>

#include "pipewright/frontend/graph.h"

namespace pipewright {

/// The same graph for another device than it was exported or traced on: what its operators make from nothing
/// is made there, autocast is that device's, and constants are copied to it.
Graph on_device(Graph graph, at::Device device);

/// Parameters and buffers on a device, for a GraphModule; those with several names stay one tensor.
std::map<std::string, at::Tensor> on_device(const std::map<std::string, at::Tensor>& state,
                                            at::Device device);

}  // namespace pipewright
