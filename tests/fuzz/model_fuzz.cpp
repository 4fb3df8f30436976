// Any bytes as what a model's file is made of, by the first of them: the whole archive, the description of
// its graph, a file of tensors in either format. All is refused with an Error, or read; a graph that was read
// is checked, cut and made ready to run, but not run: what an operator does with odd arguments is its own
// affair.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "frontend/graph/program.h"
#include "frontend/import/graph_reader.h"
#include "frontend/schema/json_fields.h"
#include "pipewright/base/error.h"
#include "pipewright/frontend/exported_model.h"
#include "pipewright/frontend/partition.h"
#include "pipewright/frontend/split.h"
#include "pipewright/frontend/tensor_file.h"

namespace pipewright {
namespace {

/// Bytes as a file that has a name.
class MemoryFile {
 public:
  MemoryFile(const std::string& bytes, const std::string& suffix)
      : descriptor_(memfd_create("fuzz", 0)), link_("/tmp/model_fuzz_" + std::to_string(getpid()) + suffix) {
    if (write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    unlink(link_.c_str());
    if (symlink(("/proc/self/fd/" + std::to_string(descriptor_)).c_str(), link_.c_str()) != 0) std::abort();
  }
  ~MemoryFile() {
    unlink(link_.c_str());
    close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return link_; }

 private:
  int descriptor_;
  std::string link_;
};

/// Nothing but an Error may be thrown, and a cut that is allowed gives graphs that are in order.
void try_graph(const Graph& graph) {
  check(graph);
  to_text(graph);
  try {
    const GraphProgram program(graph);
  } catch (const Error&) {
    return;  // an operator that is not known
  }
  if (graph.nodes.size() < 2) return;
  try {
    const auto cuts = balanced_cuts(graph, 2, estimate_costs(graph));
    const PartitionedGraph parts = partition(graph, cuts);
    for (const Graph& part : parts.stages) check(part);
  } catch (const ArgumentError&) {
    // it cannot be cut
  }
}

void try_bytes(char kind, const std::string& bytes) {
  switch (kind) {
    case 'a': {
      const MemoryFile file(bytes, ".pt2");
      const ExportedModel model(file.path());
      try_graph(model.graph());
      model.load(model.graph());
      return;
    }
    case 'g': try_graph(read_graph(parse_json(bytes), {}).graph); return;
    case 'p': read_tensors(MemoryFile(bytes, ".pt").path()); return;
    case 's': read_tensors(MemoryFile(bytes, ".safetensors").path()); return;
    default: return;
  }
}

}  // namespace
}  // namespace pipewright

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    pipewright::try_bytes(static_cast<char>(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const pipewright::Error&) {
    return 0;
  }
  return 0;
}
