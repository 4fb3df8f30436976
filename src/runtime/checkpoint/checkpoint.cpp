#include "pipewright/runtime/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "pipewright/base/error.h"
#include "runtime/checkpoint/files.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/optimizer_state.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/world/agreement.h"

namespace pipewright {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kPartial = ".partial";

/// Runs what each process does by itself; what one of them throws, all throw.
void each_process(World* world, const std::function<void()>& run) {
  std::string error;
  try {
    run();
  } catch (const std::exception& thrown) {
    if (!world) throw;
    error = thrown.what();
  }
  if (!world) return;
  if (const std::string first = first_error(*world, error); !first.empty()) throw Error(first);
}

/// `step-12.3`: the step and, where it was saved more than once, how often before.
struct SavedName {
  std::int64_t step = 0;
  int again = 0;

  auto operator<=>(const SavedName&) const = default;
  std::string text() const {
    return kPrefix + std::to_string(step) + (again == 0 ? "" : "." + std::to_string(again));
  }
};

std::optional<SavedName> parse_name(const std::string& text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  SavedName name;
  const char* const end = text.data() + text.size();
  std::from_chars_result read =
      std::from_chars(text.data() + std::string_view(kPrefix).size(), end, name.step);
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '.') {
    read = std::from_chars(read.ptr + 1, end, name.again);
  }
  return read.ec == std::errc() && name.text() == text ? std::optional(name) : std::nullopt;
}

/// The whole ones in a directory, the newest last.
std::vector<SavedName> saved_in(const std::filesystem::path& directory) {
  std::vector<SavedName> all;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator(directory, none)) {
    if (const auto name = parse_name(each.path().filename().string())) all.push_back(*name);
  }
  std::ranges::sort(all);
  return all;
}

/// What saves and removals that did not come to their end have left.
std::vector<std::filesystem::path> leftovers_in(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> all;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator(directory, none)) {
    const std::string name = each.path().filename().string();
    if (name.starts_with(kPrefix) && name.ends_with(kPartial)) all.push_back(each.path());
  }
  return all;
}

std::string memory_name(const std::string& parameter, const std::string& what) {
  return "optimizer/" + parameter + "/" + what;
}
std::string random_name(const World* world) { return "random/" + std::to_string(world ? world->rank() : 0); }
at::Generator random_generator() { return at::detail::getDefaultCPUGenerator(); }

/// A tensor to save or to load: whole, or a flat part.
LocalParameter whole_tensor(std::string name, const at::Tensor& tensor) {
  return {.name = std::move(name), .tensor = tensor, .sizes = tensor.sizes().vec()};
}

/// All that this process saves.
struct Contents {
  std::vector<LocalParameter> tensors;
  std::map<std::string, std::int64_t> values;
};

Contents contents_of(const Pipeline& pipeline, const torch::optim::Optimizer* optimizer, const World* world) {
  Contents contents;
  for (const LocalParameter& each : pipeline.local_parameters()) {
    if (!each.counts) continue;
    contents.tensors.push_back(each);
    const auto memory = optimizer ? memory_of(*optimizer, each.tensor) : std::nullopt;
    if (!memory) continue;
    for (const auto& [what, tensor] : memory->tensors) {
      LocalParameter entry = each;
      entry.name = memory_name(each.name, what);
      entry.tensor = tensor;
      contents.tensors.push_back(std::move(entry));
    }
    contents.values[memory_name(each.name, "steps")] = memory->steps;
  }
  for (const LocalParameter& each : pipeline.local_buffers()) {
    if (each.counts) contents.tensors.push_back(each);
  }
  contents.tensors.push_back(whole_tensor(random_name(world), random_generator().get_state()));
  return contents;
}

/// Writes this process's file, and says what is in it.
Manifest write_part(Files& files, const std::filesystem::path& directory, const std::string& file,
                    const Contents& contents) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const LocalParameter& each : contents.tensors) {
    std::string name = each.name;
    if (each.tensor.sizes() != at::IntArrayRef(each.sizes)) {
      name +=
          "[" + std::to_string(each.offset) + ":" + std::to_string(each.offset + each.tensor.numel()) + "]";
    }
    tensors.emplace_back(std::move(name), each.tensor);
  }
  const std::vector<StoredBytes> stored = write_safetensors(files, directory / file, tensors);
  Manifest manifest;
  for (std::size_t at = 0; at < stored.size(); ++at) {
    const LocalParameter& each = contents.tensors[at];
    manifest.entries[each.name] = {
        .sizes = each.sizes,
        .dtype = dtype_name(each.tensor.scalar_type()),
        .parts = {{.file = file, .offset = each.offset, .length = each.tensor.numel(), .bytes = stored[at]}}};
  }
  manifest.values = contents.values;
  return manifest;
}

/// Reads from a checkpoint what this process needs, and puts it in place when all is read.
class Loader {
 public:
  Loader() = default;
  Loader(std::filesystem::path directory, Manifest manifest)
      : directory_(std::move(directory)), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const { return manifest_; }
  bool has(const std::string& name) const { return manifest_.entries.contains(name); }

  /// The values for a tensor of this process, in its own shape.
  at::Tensor read(const LocalParameter& wanted) const {
    const auto found = manifest_.entries.find(wanted.name);
    if (found == manifest_.entries.end()) {
      throw Error(directory_.string() + " has no '" + wanted.name + "'");
    }
    const StoredEntry& entry = found->second;
    if (entry.sizes != wanted.sizes) {
      throw Error(directory_.string() + ": '" + wanted.name + "' has the sizes " + text_of(entry.sizes) +
                  ", expected " + text_of(wanted.sizes));
    }
    const at::ScalarType dtype = dtype_named(entry.dtype);
    const std::int64_t length = wanted.tensor.numel();
    const at::Tensor values = at::empty({length}, at::TensorOptions(dtype));
    std::int64_t filled = 0;
    for (const StoredPart& part : entry.parts) {
      const std::int64_t from = std::max(part.offset, wanted.offset);
      const std::int64_t to = std::min(part.offset + part.length, wanted.offset + length);
      if (from >= to) continue;
      const at::Tensor stored = read_stored(directory_ / part.file, part.bytes, dtype);
      values.narrow(0, from - wanted.offset, to - from)
          .copy_(stored.narrow(0, from - part.offset, to - from));
      filled += to - from;
    }
    if (filled != length) {
      throw Error(directory_.string() + " has only " + std::to_string(filled) + " of " +
                  std::to_string(length) + " numbers of '" + wanted.name + "'");
    }
    return values.view(wanted.tensor.sizes());
  }

  void add(const LocalParameter& wanted) { copies_.emplace_back(wanted.tensor, read(wanted)); }
  void add(std::function<void()> action) { actions_.push_back(std::move(action)); }

  void commit() const {
    const at::AutoGradMode no_grad(false);
    for (const auto& [to, values] : copies_) to.copy_(values);
    for (const auto& action : actions_) action();
  }

 private:
  static std::string text_of(const std::vector<std::int64_t>& sizes) {
    std::string text;
    for (const std::int64_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
    return text.empty() ? "[]" : text + "]";
  }

  std::filesystem::path directory_;
  Manifest manifest_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::vector<std::function<void()>> actions_;
};

void add_optimizer(Loader& loader, const std::vector<LocalParameter>& parameters,
                   torch::optim::Optimizer& optimizer) {
  const std::string kind = optimizer_kind(optimizer);
  if (loader.manifest().optimizer != kind) {
    throw Error("the checkpoint has the state of " +
                (loader.manifest().optimizer.empty() ? "no optimizer" : loader.manifest().optimizer) +
                ", the optimizer is " + kind);
  }
  for (const LocalParameter& each : parameters) {
    const auto steps = loader.manifest().values.find(memory_name(each.name, "steps"));
    if (steps == loader.manifest().values.end()) continue;  // it had no gradient yet
    ParameterMemory memory{.tensors = {}, .steps = steps->second};
    for (const char* what : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}) {
      LocalParameter wanted = each;
      wanted.name = memory_name(each.name, what);
      if (!loader.has(wanted.name)) continue;
      memory.tensors[what] = loader.read(wanted).to(each.tensor.options().requires_grad(false));
    }
    loader.add([&optimizer, parameter = each.tensor, memory] { set_memory(optimizer, parameter, memory); });
  }
}

}  // namespace

Checkpoints::Checkpoints(CheckpointOptions options) : Checkpoints(std::move(options), system_files()) {}
Checkpoints::Checkpoints(CheckpointOptions options, Files& files)
    : options_(std::move(options)), files_(files) {
  if (options_.keep < 0) throw ArgumentError("the number of checkpoints to keep must be at least 0");
}

void Checkpoints::save(const Pipeline& pipeline, const torch::optim::Optimizer* optimizer,
                       const TrainingProgress& progress) const {
  World* const world = options_.world.get();
  const bool first = !world || world->rank() == 0;
  const std::filesystem::path partial =
      options_.directory / (kPrefix + std::to_string(progress.step) + kPartial);
  const std::string file = "part-" + std::to_string(world ? world->rank() : 0) + ".safetensors";

  each_process(world, [&] {
    if (!first) return;
    for (const std::filesystem::path& left : leftovers_in(options_.directory)) files_.remove_tree(left);
    files_.make_directory(partial);
  });
  Manifest manifest;
  each_process(
      world, [&] { manifest = write_part(files_, partial, file, contents_of(pipeline, optimizer, world)); });
  const std::vector<std::string> all =
      world ? world->all_gather(to_json(manifest)) : std::vector<std::string>{to_json(manifest)};
  each_process(world, [&] {
    if (!first) return;
    Manifest whole;
    for (const std::string& each : all) whole.add(parse_manifest(each, partial));
    whole.progress = progress;
    whole.optimizer = optimizer ? optimizer_kind(*optimizer) : "";
    write_manifest(files_, partial / Manifest::kFile, whole);
    files_.sync_directory(partial);
    SavedName name{.step = progress.step};
    for (const SavedName& other : saved_in(options_.directory)) {
      if (other.step == name.step) name.again = other.again + 1;
    }
    files_.rename(partial, options_.directory / name.text());
    files_.sync_directory(options_.directory);
    if (options_.keep == 0) return;
    const std::vector<SavedName> saved = saved_in(options_.directory);
    const auto keep = static_cast<std::size_t>(options_.keep);
    for (std::size_t at = 0; at + keep < saved.size(); ++at) {
      const std::filesystem::path old = options_.directory / saved[at].text();
      // First under a name that is none of a checkpoint: a half removed one is not to be loaded.
      const std::filesystem::path doomed = old.string() + kPartial;
      files_.rename(old, doomed);
      files_.remove_tree(doomed);
    }
  });
}

std::optional<std::filesystem::path> Checkpoints::newest() const {
  const std::vector<SavedName> saved = saved_in(options_.directory);
  if (saved.empty()) return std::nullopt;
  return options_.directory / saved.back().text();
}

std::optional<TrainingProgress> Checkpoints::load(Pipeline& pipeline,
                                                  torch::optim::Optimizer* optimizer) const {
  World* const world = options_.world.get();
  std::string name = newest().value_or("").string();
  if (world) {
    // What the first one sees: the directory may look different from elsewhere for a while.
    name = world->all_gather(name).front();
  }
  if (name.empty()) return std::nullopt;
  Loader loader;
  each_process(world, [&] {
    const std::filesystem::path directory = name;
    loader = Loader(directory, read_manifest(directory / Manifest::kFile));
    std::vector<LocalParameter> parameters = pipeline.local_parameters();
    for (LocalParameter& each : parameters) {
      if (!loader.has(each.name) && options_.other_names) {
        const std::vector<std::string> others = options_.other_names(each.name);
        const auto saved =
            std::ranges::find_if(others, [&](const std::string& other) { return loader.has(other); });
        if (saved != others.end()) each.name = *saved;
      }
      loader.add(each);
    }
    for (const LocalParameter& each : pipeline.local_buffers()) loader.add(each);
    if (optimizer) add_optimizer(loader, parameters, *optimizer);
    if (const std::string random = random_name(world); loader.has(random)) {
      const at::Tensor state = loader.read(whole_tensor(random, random_generator().get_state()));
      loader.add([state] { random_generator().set_state(state); });
    }
  });
  loader.commit();
  return loader.manifest().progress;
}

}  // namespace pipewright
