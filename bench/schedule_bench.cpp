// What planning costs: every step from a name to a proven plan, at the size of
// a large job, and its growth with the number of actions.
//
//   schedule_bench --benchmark_filter=plan

#include <benchmark/benchmark.h>

#include <fstream>
#include <string>

#include "pipewright/schedule/deadlock.h"
#include "pipewright/schedule/generate.h"
#include "pipewright/schedule/lower.h"
#include "pipewright/schedule/simulate.h"
#include "pipewright/schedule/validate.h"

namespace pipewright {
namespace {

ScheduleSpec spec_of(const std::string& name, const benchmark::State& state) {
  return {.name = name,
          .ranks = static_cast<Rank>(state.range(0)),
          .microbatches = static_cast<Microbatch>(state.range(1)),
          .stages_per_rank = static_cast<int>(state.range(2))};
}

/// The most memory this process has had resident.
double peak_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

void report(benchmark::State& state, const Schedule& schedule) {
  const auto actions = static_cast<double>(schedule.action_count());
  state.counters["actions"] = actions;
  state.counters["ns_per_action"] = benchmark::Counter(
      actions * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["peak_MiB"] = peak_mebibytes();
}

/// Generate and lower; lowering validates its input and the result of every pass.
void plan(benchmark::State& state, const std::string& name) {
  const ScheduleSpec spec = spec_of(name, state);
  Schedule result;
  for (auto _ : state) {
    result = lower(make_schedule(spec));
    benchmark::DoNotOptimize(result);
  }
  report(state, result);
}

void generate(benchmark::State& state, const std::string& name) {
  const ScheduleSpec spec = spec_of(name, state);
  Schedule result;
  for (auto _ : state) {
    result = make_schedule(spec);
    benchmark::DoNotOptimize(result);
  }
  report(state, result);
}

void validate_plan(benchmark::State& state, const std::string& name) {
  const Schedule result = lower(make_schedule(spec_of(name, state)));
  for (auto _ : state) benchmark::DoNotOptimize(validate(result, Format::Lowered));
  report(state, result);
}

void prove(benchmark::State& state, const std::string& name) {
  const Schedule result = lower(make_schedule(spec_of(name, state)));
  for (auto _ : state) benchmark::DoNotOptimize(prove_deadlock_free(result));
  report(state, result);
}

void simulate_plan(benchmark::State& state, const std::string& name) {
  const Schedule result = lower(make_schedule(spec_of(name, state)));
  const Costs costs = uniform_costs(result.placement);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(result, costs));
  report(state, result);
}

void register_all() {
  using Function = void (*)(benchmark::State&, const std::string&);
  constexpr std::array<std::pair<const char*, Function>, 5> kSteps = {{{"plan", plan},
                                                                       {"generate", generate},
                                                                       {"validate", validate_plan},
                                                                       {"prove", prove},
                                                                       {"simulate", simulate_plan}}};
  for (const char* name :
       {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    for (const auto& [step, function] : kSteps) {
      benchmark::RegisterBenchmark((std::string(step) + "/" + name).c_str(), function, std::string(name))
          ->Args({64, 256, 2})
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
    auto* growth =
        benchmark::RegisterBenchmark((std::string("growth/") + name).c_str(), plan, std::string(name));
    growth->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(1);
    for (const auto& [ranks, microbatches] :
         {std::pair{64, 256}, {128, 512}, {256, 1024}, {512, 2048}, {1024, 4096}}) {
      growth->Args({ranks, microbatches, 2});
    }
  }
}

}  // namespace
}  // namespace pipewright

int main(int argc, char** argv) {
  pipewright::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
