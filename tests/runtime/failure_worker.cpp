// Makes a world fail at a given point and tells what every process says about it. Reads cases from standard
// input, a JSON object a line, and answers each with one. See failure_points_test.py.

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "pipewright/runtime/pipeline.h"
#include "pipewright/runtime/world.h"
#include "pipewright/schedule/generate.h"

namespace pipewright {
namespace {

using nlohmann::json;

constexpr std::int64_t kWidth = 8;
constexpr Microbatch kMicrobatches = 4;
/// Nothing takes longer; a case that does is one that hangs.
constexpr std::chrono::seconds kLongest{30};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Where a fault is to happen: before, in or after an action of a step, or between two steps.
struct Point {
  explicit Point(const json& the_case)
      : fault(the_case["fault"]),
        when(the_case["when"]),
        step(the_case["step"]),
        stall(the_case.value("stall", 0)) {
    std::vector<Action> cell;
    parse_cell(the_case["action"].get<std::string>(), cell);
    action = cell.at(0);
  }

  bool is_at(const ActionContext& context) const {
    return current_step == step && context.cell.front().kind == action.kind &&
           context.cell.front().stage == action.stage &&
           context.cell.front().microbatch == action.microbatch && context.replica == 0;
  }

  /// Does it, and tells when.
  void fire() {
    if (fired.exchange(true)) return;
    std::ofstream(time_file) << std::fixed << now() << std::endl;
    if (fault == "kill") raise(SIGKILL);
    if (fault == "stop") raise(SIGSTOP);
    if (fault == "throw") throw std::runtime_error("thrown by the test");
    if (fault == "oom") torch::empty({std::int64_t{1} << 50});
    if (fault == "link" && std::system("ip link set eth0 down") != 0) std::abort();
    if (fault == "stall") std::this_thread::sleep_for(std::chrono::milliseconds(stall));
  }

  std::string fault;
  std::string when;
  int step;
  int stall;
  Action action;
  std::string time_file;
  int current_step = 0;
  std::atomic<bool> fired = false;
};

/// Whether this rank, which is a thread, is in the action.
thread_local bool armed = false;

/// Lets a value, and its gradient, through; the point fires while it is armed.
struct Passage : torch::autograd::Function<Passage> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t point) {
    context->saved_data["point"] = point;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    Point* const point = reinterpret_cast<Point*>(context->saved_data["point"].toInt());
    if (armed) point->fire();
    return {grads[0], at::Tensor()};
  }
};

struct Layer : torch::nn::Module {
  explicit Layer(Point& the_point) : point(the_point) {
    weight = register_parameter("weight", torch::eye(kWidth) * 0.5);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (armed) point.fire();
    const auto number = reinterpret_cast<std::int64_t>(&point);
    return torch::tanh(Passage::apply(x, number).mm(Passage::apply(weight, number)));
  }
  Point& point;
  at::Tensor weight;
};

void run_action(Point& point, const ActionContext& context) {
  if (!point.is_at(context)) {
    context.run();
    return;
  }
  if (point.when == "before") point.fire();
  std::thread beside;
  if (point.when == "in") {
    if (is_compute(point.action.kind)) {
      armed = true;
    } else {
      beside = std::thread([&point] { point.fire(); });
    }
  }
  context.run();
  armed = false;
  if (beside.joinable()) beside.join();
  if (point.when == "after") point.fire();
}

/// Steps until something fails: then the message. In one process, then, one more step, which must be right.
std::string run_steps(const json& the_case, Point& point, const std::shared_ptr<World>& world) {
  const Schedule schedule = make_schedule(
      {.name = the_case["schedule"], .ranks = the_case["ranks"], .microbatches = kMicrobatches});
  const bool here = !world || world->rank() == the_case["process"].get<int>();
  PipelineOptions options{
      .loss = [](const Values& outputs, const Values&) { return outputs[0].square().mean(); },
      .timeout = std::chrono::milliseconds(the_case["timeout_ms"].get<int>()),
      .threads_per_rank = 1,
      .world = world};
  options.data_parallel = the_case["replicas"];
  options.flight_record = the_case.value("flight_record", "");
  const at::Device device(the_case.value("device", "cpu"));
  const auto build = [&](Stage) {
    auto layer = std::make_shared<Layer>(point);
    layer->to(device);
    return StageModel(std::move(layer));
  };
  Pipeline pipeline(schedule, build, options);
  if (here) {
    pipeline.set_handler(point.action.kind,
                         [&](const ActionContext& context) { run_action(point, context); });
  }
  const at::Tensor inputs =
      torch::ones({kMicrobatches * static_cast<std::int64_t>(pipeline.replicas().size()), kWidth}, device);
  double loss = 0;
  try {
    for (point.current_step = 1; point.current_step <= point.step + 2; ++point.current_step) {
      pipeline.zero_grad();
      if (here && point.when == "between" && point.current_step == point.step) point.fire();
      loss = pipeline.step({inputs}, {}).loss.item<double>();
    }
  } catch (const std::exception& error) {
    if (!world) {
      point.current_step = 0;
      pipeline.zero_grad();
      const double again = pipeline.step({inputs}, {}).loss.item<double>();
      if (point.step > 1 && again != loss) return "the pipeline was not usable afterwards";
    }
    return error.what();
  }
  return "nothing failed";
}

void enter_namespace(const std::string& name) {
  const int descriptor = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || setns(descriptor, CLONE_NEWNET) != 0)
    throw std::runtime_error("cannot enter " + name);
  close(descriptor);
}

/// One process of the world; what it says goes to a file.
[[noreturn]] void be_process(const json& the_case, int process, const std::string& folder) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  at::set_num_threads(1);
  std::string message;
  try {
    Point point(the_case);
    point.time_file = folder + "/fault";
    std::shared_ptr<World> world;
    if (the_case["processes"] > 1) {
      // NCCL lets processes share a device only where it takes them for different machines.
      if (the_case.contains("device")) setenv("NCCL_HOSTID", std::to_string(process).c_str(), 1);
      if (the_case.contains("namespaces"))
        enter_namespace(the_case["namespaces"][static_cast<std::size_t>(process)]);
      world = std::make_shared<World>(WorldOptions{.rank = process,
                                                   .size = the_case["processes"],
                                                   .address = the_case["address"],
                                                   .port = the_case["port"],
                                                   .timeout = kLongest});
    }
    message = run_steps(the_case, point, world);
  } catch (const std::exception& error) {
    message = std::string("not in a step: ") + error.what();
  }
  std::ofstream(folder + "/said." + std::to_string(process)) << message;
  _exit(message == "nothing failed" ? 0 : 1);
}

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

json run_case(const json& the_case) {
  const std::string folder = the_case["folder"];
  std::vector<pid_t> running;
  for (int process = 0; process < the_case["processes"]; ++process) {
    const pid_t pid = fork();
    if (pid == 0) be_process(the_case, process, folder);
    running.push_back(pid);
  }
  json ended = json::array();
  for (std::size_t process = 0; process < running.size(); ++process) ended.push_back({{"status", nullptr}});
  const double start = now();
  std::size_t left = running.size();
  const bool stops = the_case["fault"] == "stop";
  while (left > (stops ? 1U : 0U) && now() < start + static_cast<double>(kLongest.count())) {
    for (std::size_t process = 0; process < running.size(); ++process) {
      int status = 0;
      if (running[process] == 0 || waitpid(running[process], &status, WNOHANG) <= 0) continue;
      running[process] = 0;
      --left;
      ended[process] = {{"status", status},
                        {"time", now()},
                        {"said", read_all(folder + "/said." + std::to_string(process))}};
    }
    usleep(2000);
  }
  for (const pid_t pid : running) {
    if (pid == 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  const std::string time = read_all(folder + "/fault");
  return {{"fault_at", time.empty() ? json(nullptr) : json(std::stod(time))}, {"processes", ended}};
}

}  // namespace
}  // namespace pipewright

int main() {
  // It only forks: each process begins with a libtorch that nobody has used.
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << pipewright::run_case(nlohmann::json::parse(line)).dump() << std::endl;
  }
}
