#include <ATen/ops/cat.h>

#include "gpt/data.h"
#include "gpt/gpt.h"
#include "pipewright/frontend/tensor_file.h"
#include "train/workload.h"

namespace pipewright::cli {
namespace {

class CharacterWorkload : public Workload {
 public:
  CharacterWorkload(const TrainOptions& options, const Schedule& schedule)
      : config_(options.model),
        text_(options.load_text()),
        stages_(schedule.stage_count()),
        replicas_(options.data_parallel),
        rows_(options.rows() * schedule.microbatches * options.data_parallel) {
    text_.check_context(config_.context);
    config_.vocab = text_.vocab();
  }

  StageFactory stages() const override {
    return [this](Stage stage) { return gpt::make_stage(config_, stage, stages_); };
  }
  void configure(PipelineOptions& options) const override { options.loss = gpt::next_character_loss; }
  Batch batch(int step, const std::vector<int>& replicas) const override {
    const auto all = text_.sequences(rows_, config_.context, config_.seed, static_cast<std::uint64_t>(step));
    return {.inputs = {rows_of(replicas, all.tokens)}, .targets = {rows_of(replicas, all.targets)}};
  }
  std::int64_t items_per_step() const override { return rows_ * config_.context; }
  std::string item() const override { return "tokens"; }
  std::vector<std::string> other_names(const std::string&) const override { return {}; }
  void write(const std::filesystem::path& file, const Pipeline::StateDict& of_stages) const override {
    write_tensors(file, of_stages);
  }

 private:
  at::Tensor rows_of(const std::vector<int>& replicas, const at::Tensor& all) const {
    const std::vector<at::Tensor> by_replica = all.chunk(replicas_);
    std::vector<at::Tensor> own;
    own.reserve(replicas.size());
    for (const int replica : replicas) own.push_back(by_replica[static_cast<std::size_t>(replica)]);
    return at::cat(own);
  }

  gpt::Config config_;
  gpt::Characters text_;
  Stage stages_;
  int replicas_;
  std::int64_t rows_;
};

}  // namespace

std::unique_ptr<Workload> make_character_workload(const TrainOptions& options, const Schedule& schedule) {
  return std::make_unique<CharacterWorkload>(options, schedule);
}

}  // namespace pipewright::cli
