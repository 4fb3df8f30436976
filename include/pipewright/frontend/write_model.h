#pragma once

#include <filesystem>

#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/graph.h"
#include "pipewright/frontend/tensor_file.h"
#include "pipewright/frontend/trace.h"

namespace pipewright {

/// Writes a model, or a stage of it, as a file that `torch.export.load` reads: what it computes, under which
/// names, and which of its sizes are dynamic is as in the model that it comes from.
///
/// `graph`: the model's own, or one of `partition` of it. What a stage takes and gives is positional, in the
/// order of its ports, numbers as numbers; so is a parameter that the first stage that has it sends to
/// others, and its gradient comes back as that of an output. `state`: its parameters and buffers by the
/// graph's names; a copy, `NAME@STAGE`, is `NAME` in the file. Buffers that are not persistent, and what the
/// graph never uses, may be missing, and are as in the model. Throws Error that names the file, and what
/// cannot be written.
void write_model(const std::filesystem::path& file, const ExportedModel& model, const Graph& graph,
                 const NamedTensors& state);

/// The same of a traced model. Inputs and outputs are positional; with `dynamic_batch` the batch is a size
/// that Python may change, and sizes that follow it are a·B+b or B/k: others cannot be written. Nor can
/// generators of random numbers of its own, and names that are words of Python's language, such as `in`.
/// Operators of its own must be registered in Python before it is loaded.
void write_model(const std::filesystem::path& file, const TracedModel& model, const Graph& graph,
                 const NamedTensors& state);

/// The state of all stages as the state dict of the unsplit model has it: without copies and buffers that are
/// not persistent, and with every name of a tensor that has several. `whole`: the graph before it was cut.
NamedTensors without_copies(const NamedTensors& state, const Graph& whole);

}  // namespace pipewright
