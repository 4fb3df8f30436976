#include "pipewright/runtime/checkpoint.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <fstream>
#include <functional>
#include <map>
#include <set>

#include "pipewright/runtime/optimizer.h"
#include "pipewright/schedule/generate.h"
#include "runtime/checkpoint/files.h"
#include "runtime/compare.h"
#include "runtime/models.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

/// A directory of its own for a test, removed at its end.
class Directory {
 public:
  Directory() {
    std::string name = testing::TempDir() + "checkpoint.XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Directory() { system_files().remove_tree(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const fs::path& path() const { return path_; }
  /// The names in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& each : fs::directory_iterator(path_)) all.push_back(each.path().filename());
    std::ranges::sort(all);
    return all;
  }

 private:
  fs::path path_;
};

/// A pipeline with an optimizer.
struct Trained {
  Trained(const Model& model, const std::string& schedule, PipelineOptions options = {})
      : data(model.data(4)), pipeline(make(model, schedule, std::move(options))) {
    optimizer =
        std::make_unique<torch::optim::AdamW>(pipeline.parameters(), torch::optim::AdamWOptions(0.01));
  }

  static Pipeline make(const Model& model, const std::string& name, PipelineOptions options) {
    const Microbatch microbatches = 4 / options.data_parallel;
    const Schedule schedule = make_schedule({.name = name, .ranks = 2, .microbatches = microbatches});
    PipelineOptions all = options_for(model);
    all.world = options.world;
    all.data_parallel = options.data_parallel;
    all.sharded = options.sharded;
    return {schedule, cut(model, schedule.stage_count()), all};
  }

  double step() {
    Batch batch;
    const std::size_t each = 4U / static_cast<std::size_t>(replicas());
    for (const int replica : pipeline.replicas()) {
      for (std::size_t k = 0; k < each; ++k) {
        batch.microbatches.push_back(data[static_cast<std::size_t>(replica) * each + k]);
      }
    }
    const double loss = pipeline.step(batch).loss.item<double>();
    optimizer->step();
    optimizer->zero_grad();
    return loss;
  }
  int replicas() const { return 4 / pipeline.plan().microbatches; }

  std::vector<double> steps(int count) {
    std::vector<double> losses;
    for (int step = 0; step < count; ++step) losses.push_back(this->step());
    return losses;
  }

  /// Copies.
  Pipeline::StateDict state() const {
    Pipeline::StateDict all;
    for (const auto& [name, value] : pipeline.state_dict()) all[name] = value.clone();
    return all;
  }

  std::vector<MicrobatchValues> data;
  Pipeline pipeline;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void expect_same(const Pipeline::StateDict& actual, const Pipeline::StateDict& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : actual) EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
}

/// Wrong values everywhere, as a program that has just started has them.
void spoil(Trained& trained) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& each : trained.pipeline.parameters()) each.mul_(-3).add_(1);
}

TEST(Checkpoint, GoesOnBitForBit) {
  const Directory directory;
  const Checkpoints checkpoints({.directory = directory.path()});
  Trained first(gpt(), "1F1B");
  EXPECT_FALSE(checkpoints.load(first.pipeline, first.optimizer.get()).has_value());
  first.steps(3);
  checkpoints.save(first.pipeline, first.optimizer.get(), {.step = 3, .notes = {{"where", "there"}}});
  const at::Tensor drawn = torch::rand({4});
  const std::vector<double> losses = first.steps(3);

  Trained second(gpt(), "1F1B");
  spoil(second);
  const auto progress = checkpoints.load(second.pipeline, second.optimizer.get());
  ASSERT_TRUE(progress.has_value());
  EXPECT_EQ(progress->step, 3);
  EXPECT_EQ(progress->notes.at("where"), "there");
  EXPECT_TRUE(torch::equal(torch::rand({4}), drawn));
  EXPECT_EQ(second.steps(3), losses);
  expect_same(second.state(), first.state());
}

TEST(Checkpoint, OfAFusedOptimizerGoesOnBitForBitAndInTorchsOwn) {
  using torch::optim::AdamW;
  const auto options = torch::optim::AdamWOptions(0.01).amsgrad(true);
  const Directory directory;
  const Checkpoints checkpoints({.directory = directory.path()});
  Trained first(gpt(), "1F1B");
  first.optimizer = std::make_unique<FusedAdamW>(first.pipeline.parameters(), options);
  first.steps(3);
  checkpoints.save(first.pipeline, first.optimizer.get(), {.step = 3});
  const std::vector<double> losses = first.steps(3);

  Trained second(gpt(), "1F1B");
  second.optimizer = std::make_unique<FusedAdamW>(second.pipeline.parameters(), options);
  second.steps(1);  // what is there is replaced
  checkpoints.load(second.pipeline, second.optimizer.get());
  EXPECT_EQ(second.steps(3), losses);
  expect_same(second.state(), first.state());

  Trained third(gpt(), "1F1B");
  third.optimizer = std::make_unique<AdamW>(third.pipeline.parameters(), options);
  checkpoints.load(third.pipeline, third.optimizer.get());
  const std::vector<double> others = third.steps(3);
  for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(others[step], losses[step], 1e-4);
}

TEST(Checkpoint, HasTheStateOfSgdToo) {
  const Directory directory;
  const Checkpoints checkpoints({.directory = directory.path()});
  const auto with_sgd = [](Trained& trained) {
    trained.optimizer = std::make_unique<torch::optim::SGD>(trained.pipeline.parameters(),
                                                            torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  Trained first(mlp(), "GPipe");
  with_sgd(first);
  first.steps(2);
  checkpoints.save(first.pipeline, first.optimizer.get(), {.step = 2});
  const std::vector<double> losses = first.steps(2);
  Trained second(mlp(), "GPipe");
  with_sgd(second);
  checkpoints.load(second.pipeline, second.optimizer.get());
  EXPECT_EQ(second.steps(2), losses);

  Trained third(mlp(), "GPipe");  // with AdamW
  const auto before = third.state();
  try {
    checkpoints.load(third.pipeline, third.optimizer.get());
    FAIL() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the state of SGD, the optimizer is AdamW"), std::string::npos)
        << error.what();
  }
  expect_same(third.state(), before);
  EXPECT_TRUE(checkpoints.load(third.pipeline, nullptr).has_value());
}

struct Setting {
  std::string schedule;
  int processes = 1;
  int replicas = 1;
  bool sharded = false;
};

TEST(WorldCheckpoint, IsLoadedUnderAnotherScheduleSplitAndNumberOfProcesses) {
  const std::vector<Setting> settings = {
      {"1F1B"}, {"ZBVZeroBubble", 2}, {"Interleaved1F1B", 4, 2, true}, {"GPipe", 2, 2, true}, {"1F1B", 1, 4}};
  const auto run_in = [](const Setting& setting, const std::function<void(Trained&, WorldPtr)>& run) {
    const auto part = [&](const WorldPtr& world) {
      Trained trained(gpt(), setting.schedule,
                      {.world = world, .data_parallel = setting.replicas, .sharded = setting.sharded});
      run(trained, world);
    };
    expect_no_errors(setting.processes == 1 ? side_by_side({[&] { part(nullptr); }})
                                            : in_worlds(setting.processes, part));
  };
  Trained reference(gpt(), "1F1B");
  const std::vector<double> losses = reference.steps(5);
  for (const Setting& from : settings) {
    const Directory directory;
    run_in(from, [&](Trained& trained, const WorldPtr& world) {
      trained.steps(2);
      Checkpoints({.directory = directory.path(), .world = world})
          .save(trained.pipeline, trained.optimizer.get(), {.step = 2});
    });
    for (const Setting& to : settings) {
      SCOPED_TRACE(from.schedule + " to " + to.schedule);
      run_in(to, [&](Trained& trained, const WorldPtr& world) {
        spoil(trained);
        const Checkpoints checkpoints({.directory = directory.path(), .world = world});
        const auto progress = checkpoints.load(trained.pipeline, trained.optimizer.get());
        ASSERT_TRUE(progress.has_value());
        EXPECT_EQ(progress->step, 2);
        for (std::size_t step = 2; step < 5; ++step) EXPECT_NEAR(trained.step(), losses[step], 1e-4);
      });
    }
  }
}

/// Thrown where a program would have ended.
struct Crash {};

/// The system's files, with something that happens at one of the calls.
class FaultyFiles final : public Files {
 public:
  enum class Fault { None, Full, ShortWrite, Crash, PowerLoss };

  FaultyFiles(Fault fault, int at) : fault_(fault), at_(at) {}
  bool happened() const { return calls_ > at_; }

  int create(const fs::path& path) override {
    meet();
    const int file = system_files().create(path);
    paths_[file] = path;
    return file;
  }
  std::size_t write(int file, const void* bytes, std::size_t size) override {
    if (calls_ == at_ && fault_ == Fault::Full) {
      // A part of it still had room.
      system_files().write(file, bytes, std::max<std::size_t>(1, size / 2));
    }
    const bool is_short = calls_ == at_ && fault_ == Fault::ShortWrite;
    meet();
    unsynced_.insert(paths_.at(file));
    return system_files().write(file, bytes, is_short ? 1 : size);
  }
  void sync(int file) override {
    meet();
    system_files().sync(file);
    unsynced_.erase(paths_.at(file));
  }
  void close(int file) override {
    meet();
    system_files().close(file);
  }
  void abandon(int file) noexcept override { system_files().abandon(file); }
  void make_directory(const fs::path& path) override {
    meet();
    system_files().make_directory(path);
  }
  void sync_directory(const fs::path& path) override {
    meet();
    system_files().sync_directory(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    meet();
    system_files().rename(from, to);
    std::set<fs::path> moved;
    for (const fs::path& each : unsynced_) {
      moved.insert(each.parent_path() == from ? to / each.filename() : each);
    }
    unsynced_ = moved;
  }
  void remove_tree(const fs::path& path) override {
    meet();
    system_files().remove_tree(path);
  }

 private:
  void meet() {
    const int call = calls_++;
    if (call < at_ || fault_ == Fault::None || fault_ == Fault::ShortWrite) return;
    if (call > at_ && fault_ == Fault::Full) return;
    if (fault_ == Fault::Full) throw Error("no space left");
    if (fault_ == Fault::PowerLoss) {
      for (const fs::path& path : unsynced_) {
        std::error_code gone;
        fs::resize_file(path, 0, gone);
      }
    }
    throw Crash();
  }

  const Fault fault_;
  const int at_;
  int calls_ = 0;
  std::map<int, fs::path> paths_;
  std::set<fs::path> unsynced_;
};

class CheckpointFault : public testing::TestWithParam<FaultyFiles::Fault> {};
std::string fault_name(const testing::TestParamInfo<FaultyFiles::Fault>& fault) {
  constexpr std::array kNames = {"None", "Full", "ShortWrite", "Crash", "PowerLoss"};
  return kNames.at(static_cast<std::size_t>(fault.param));
}
INSTANTIATE_TEST_SUITE_P(Every, CheckpointFault,
                         testing::Values(FaultyFiles::Fault::Full, FaultyFiles::Fault::ShortWrite,
                                         FaultyFiles::Fault::Crash, FaultyFiles::Fault::PowerLoss),
                         fault_name);

TEST_P(CheckpointFault, NeverLosesOrHalfLoadsOne) {
  Trained trained(mlp(), "1F1B");
  trained.step();
  const auto older = trained.state();
  Trained later(mlp(), "1F1B");
  later.steps(2);
  const auto newer = later.state();
  Trained loaded(mlp(), "1F1B");
  bool happened = true;
  int points = 0;
  for (; happened; ++points) {
    SCOPED_TRACE("at call " + std::to_string(points));
    const Directory directory;
    const CheckpointOptions options{.directory = directory.path(), .keep = 1};
    const Checkpoints fine(options);
    fine.save(trained.pipeline, trained.optimizer.get(), {.step = 1});
    FaultyFiles files(GetParam(), points);
    bool saved = false;
    try {
      Checkpoints(options, files).save(later.pipeline, later.optimizer.get(), {.step = 2});
      saved = true;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("no space left"), std::string::npos) << error.what();
    } catch (const Crash&) {
      EXPECT_TRUE(files.happened());
    }
    happened = files.happened();
    spoil(loaded);
    const auto progress = fine.load(loaded.pipeline, loaded.optimizer.get());
    ASSERT_TRUE(progress.has_value());
    if (saved) {
      EXPECT_EQ(progress->step, 2);
    }
    expect_same(loaded.state(), progress->step == 2 ? newer : older);
    // The next one finds everything as it needs it.
    fine.save(later.pipeline, later.optimizer.get(), {.step = 3});
    EXPECT_EQ(directory.names(), std::vector<std::string>{"step-3"});
  }
  EXPECT_GT(points, 10);
}

TEST(WorldCheckpoint, IsNotSavedWhereOneProcessCannot) {
  const Directory directory;
  expect_everywhere(
      in_worlds(2,
                [&](const WorldPtr& world) {
                  Trained trained(mlp(), "1F1B", {.world = world});
                  const CheckpointOptions options{.directory = directory.path(), .world = world};
                  Checkpoints(options).save(trained.pipeline, nullptr, {.step = 1});
                  FaultyFiles files(world->rank() == 1 ? FaultyFiles::Fault::Full : FaultyFiles::Fault::None,
                                    1);
                  Checkpoints(options, files).save(trained.pipeline, nullptr, {.step = 2});
                }),
      "process 1: no space left");
  EXPECT_EQ(Checkpoints({.directory = directory.path()}).newest(), directory.path() / "step-1");
}

/// What loading says, after something was done to a file of the checkpoint.
std::string refusal(const Directory& directory, Trained& trained) {
  const auto before = trained.state();
  try {
    Checkpoints({.directory = directory.path()}).load(trained.pipeline, trained.optimizer.get());
  } catch (const Error& error) {
    expect_same(trained.state(), before);
    return error.what();
  }
  return "nothing";
}

TEST(Checkpoint, NamesADamagedOrForeignFile) {
  Trained trained(mlp(), "1F1B");
  trained.step();
  const auto after = [&](const std::string& file, const std::function<void(const fs::path&)>& harm) {
    const Directory directory;
    Checkpoints({.directory = directory.path()}).save(trained.pipeline, trained.optimizer.get(), {.step = 1});
    const fs::path path = directory.path() / "step-1" / file;
    harm(path);
    const std::string said = refusal(directory, trained);
    EXPECT_NE(said.find(path.string()), std::string::npos) << said;
    return said;
  };
  const auto has = [](const std::string& said, const std::string& part) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  const std::string part = "part-0.safetensors";
  has(after(part, [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }),
      "is damaged");
  has(after(part, [](const fs::path& path) { fs::remove(path); }), "cannot read");
  has(after(part,
            [](const fs::path& path) {
              std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
              file.seekp(-40, std::ios::end);
              file.put('x');
            }),
      "are not what was saved");
  for (const char* text : {"", "1\n{}", "nothing", "558161692\n{}\n"}) {
    after("checkpoint.json", [&](const fs::path& path) { std::ofstream(path) << text; });
  }
  after("checkpoint.json", [](const fs::path& path) { fs::remove(path); });
}

TEST(Checkpoint, OfAnotherModelIsRefused) {
  const Directory directory;
  Trained trained(mlp(), "1F1B");
  Checkpoints({.directory = directory.path()}).save(trained.pipeline, nullptr, {.step = 1});
  Trained other(gpt(), "1F1B");
  EXPECT_NE(refusal(directory, other).find("has no 'l0.tokens'"), std::string::npos);
  Model wider = mlp();
  wider.layers[0] = dense(3, 6);
  wider.layers[1] = dense(6, 4);
  Trained third(wider, "1F1B");
  EXPECT_NE(refusal(directory, third).find("'l0.linear.weight' has the sizes [5, 3], expected [6, 3]"),
            std::string::npos);
}

TEST(Checkpoint, OldOnesArePruned) {
  const Directory directory;
  Trained trained(mlp(), "1F1B");
  const Checkpoints checkpoints({.directory = directory.path(), .keep = 2});
  for (const int step : {8, 9, 10, 11}) checkpoints.save(trained.pipeline, nullptr, {.step = step});
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"step-10", "step-11"}));
  checkpoints.save(trained.pipeline, nullptr, {.step = 11});  // again
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"step-11", "step-11.1"}));
  EXPECT_EQ(checkpoints.newest(), directory.path() / "step-11.1");
}

}  // namespace
}  // namespace pipewright
