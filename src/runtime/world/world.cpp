#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "pipewright/runtime/errors.h"
#include "runtime/world/libtorch.h"
#include "runtime/world/network.h"
#include "runtime/world/peers.h"
#include "runtime/world/remote_failure.h"
#include "runtime/world/results.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

constexpr std::chrono::seconds kLeaveTogether{10};
/// Who fails may have sent before, what he fails of: that shall be heard, and not only that he has left.
constexpr std::chrono::milliseconds kLastWords{300};
constexpr std::chrono::milliseconds kLook{10};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string where(const WorldOptions& options) {
  return options.address + ":" + std::to_string(options.port);
}

c10::intrusive_ptr<c10d::Store> connect_store(const WorldOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.port;
  store.waitWorkers = false;
  store.timeout = options.timeout;
  store.isServer = options.rank == 0 && !options.served_by_launcher;
  // TCPStore waits too, but for seconds after the first refusal.
  if (!store.isServer) wait_for_listener(options.address, options.port, options.timeout);
  try {
    try {
      return c10::make_intrusive<c10d::TCPStore>(options.address, store);
    } catch (const std::exception&) {
      // Somebody listens there already: perhaps another process that calls itself rank 0, which the
      // others shall hear of.
      if (!std::exchange(store.isServer, false)) throw;
      return c10::make_intrusive<c10d::TCPStore>(options.address, store);
    }
  } catch (const std::exception& error) {
    throw Error("rank " + std::to_string(options.rank) + " cannot reach rank 0 at " + where(options) +
                ": check MASTER_ADDR and MASTER_PORT, and that rank 0 runs (" +
                std::string(error.what()).substr(0, 200) + ")");
  }
}

}  // namespace

World::Impl::Impl(WorldOptions options) : options_(std::move(options)), patience_(options_.timeout) {
  if (options_.size < 1 || options_.rank < 0 || options_.rank >= options_.size) {
    throw ArgumentError("rank " + std::to_string(options_.rank) + " is not from 0 to the world's size " +
                        std::to_string(options_.size) + " - 1");
  }
  // Libraries write to connections that the other side may have closed: an error, and no reason to die.
  struct sigaction before{};
  if (sigaction(SIGPIPE, nullptr, &before) == 0 && before.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
  prepare_libtorch();
  for (int rank = 0; rank < options_.size; ++rank) all_processes_.push_back(rank);
  store_ = c10::make_intrusive<c10d::PrefixStore>("pipewright/" + options_.attempt, connect_store(options_));
  try {
    join();
  } catch (const Error&) {
    wait_until_told();
    throw;
  } catch (const std::exception& error) {
    throw Error("rank " + std::to_string(options_.rank) + " has lost rank 0 at " + where(options_) +
                " while the processes met: " + error.what());
  }
  const auto among_all = [this](const std::string& name) {
    return make_gloo_group(c10::make_intrusive<c10d::PrefixStore>(name, store_), options_.rank, options_.size,
                           options_);
  };
  messages_ = among_all("messages");
  control_ = among_all("control");
  watch_ = std::make_unique<FailureWatch>(
      std::make_unique<Peers>(*store_, options_.rank, options_.size,
                              address_towards(options_.address, options_.port), options_.timeout),
      [this] { return describe(); }, [this](const std::string& verdict) { tell(verdict); });
}

World::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0) {
    settle({Notice::Kind::Thrown,
            "process " + std::to_string(options_.rank) + " has left because of an error of its own"});
  }
  watch_.reset();
  abort_nccl(groups()).clear();  // their end would wait for that of others
  if (!failure()) return;
  abandon(std::move(control_));
  for (auto& [name, group] : groups_) abandon(std::move(group));
}

void World::Impl::join() {
  const std::string size = std::to_string(options_.size);
  const auto refuse = [this](const std::string& why) {
    store_->compareSet("refusal", {}, bytes_of(why));
    store_->set("complete", bytes_of("no"));
    throw Error(text_of(store_->get("refusal")));
  };
  const std::string first = text_of(store_->compareSet("size", {}, bytes_of(size)));
  // The rank first: who sees that all have joined sees all ranks.
  store_->add("rank/" + std::to_string(options_.rank), 1);
  const std::int64_t joined = store_->add("joined", 1);
  if (first != size) {
    refuse("the processes do not agree on the world's size: " + first + " and " + size);
  }
  if (joined == options_.size) store_->set("complete", bytes_of("yes"));
  try {
    store_->wait({"complete"}, options_.timeout);
  } catch (const std::exception&) {
    std::string missing;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (!store_->check({"rank/" + std::to_string(rank)})) missing += " " + std::to_string(rank);
    }
    throw Error("of the world's " + size + " processes these did not come within " +
                std::to_string(options_.timeout.count()) + " ms: rank" + missing);
  }
  if (store_->check({"refusal"})) throw Error(text_of(store_->get("refusal")));
  for (int rank = 0; rank < options_.size; ++rank) {
    const std::int64_t claims = store_->add("rank/" + std::to_string(rank), 0);
    if (claims > 1) {
      refuse("rank " + std::to_string(rank) + " was given to " + std::to_string(claims) +
             " processes: each of the " + size + " needs a rank of its own");
    }
  }
}

void World::Impl::wait_until_told() noexcept {
  try {
    const std::int64_t told = store_->add("told", 1);
    if (options_.rank > 0) return;
    // The store is rank 0's: it stays until all that have come know why it does not go on.
    const auto end = std::chrono::steady_clock::now() + kLeaveTogether;
    for (std::int64_t all = told; all < store_->add("joined", 0); all = store_->add("told", 0)) {
      if (std::chrono::steady_clock::now() > end) return;
      std::this_thread::sleep_for(kLook);
    }
  } catch (const std::exception&) {
    return;  // nobody is left to be told
  }
}

std::vector<ProcessGroup> World::Impl::groups() {
  const std::lock_guard lock(groups_mutex_);
  std::vector<ProcessGroup> all;
  all.reserve(groups_.size());
  for (const auto& [key, group] : groups_) all.push_back(group);
  return all;
}

ProcessGroup World::Impl::group(const std::string& name, const std::vector<int>& processes,
                                c10::Device device, const FirstOperation& first) {
  std::string key = "group/" + name + (device.is_cuda() ? "/cuda" : "/cpu");
  for (const int process : processes) key += "/" + std::to_string(process);
  {
    const std::lock_guard lock(groups_mutex_);
    const auto found = groups_.find(key);
    if (found != groups_.end()) return found->second;
  }
  const std::string what = "connection for " + name;
  const auto own = std::ranges::find(processes, options_.rank);
  ProcessGroup group;
  try {
    group = make_group(c10::make_intrusive<c10d::PrefixStore>(key, store_),
                       static_cast<int>(own - processes.begin()), static_cast<int>(processes.size()), device,
                       options_);
  } catch (const std::exception& error) {
    fail(Notice::Kind::Lost,
         "the processes have lost each other (" + what + "): " + connection_reason(error.what()));
  }
  {
    const std::lock_guard lock(groups_mutex_);
    groups_[key] = group;
  }
  finish(connect(group, device, first), what, processes);
  return group;
}

int World::Impl::reserve_tags(int count) { return std::exchange(next_tag_, next_tag_ + count); }

std::vector<std::string> World::Impl::all_gather(const std::string& text) {
  const auto gather = [this](const at::Tensor& own) {
    std::vector<at::Tensor> inputs = {own};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < size(); ++rank) outputs[0].push_back(at::empty_like(own));
    finish(control_->allgather(outputs, inputs));
    return outputs[0];
  };
  const auto own_length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& each : gather(at::full({1}, own_length, at::kLong))) {
    lengths.push_back(each.item<std::int64_t>());
  }
  const at::Tensor own =
      at::zeros({std::max<std::int64_t>(1, *std::ranges::max_element(lengths))}, at::kByte);
  if (!text.empty()) std::memcpy(own.data_ptr(), text.data(), text.size());
  std::vector<std::string> all;
  for (const at::Tensor& each : gather(own)) {
    all.emplace_back(static_cast<const char*>(each.data_ptr()),
                     static_cast<std::size_t>(lengths[all.size()]));
  }
  return all;
}

std::string World::Impl::settle(const Notice& notice) { return watch_->settle(notice); }

ProcessRecord World::Impl::describe() {
  ProcessRecord record;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, observer] : observers_) {
      record = observer.describe();
      if (record.in_step) break;
    }
  }
  record.process = options_.rank;
  record.processes = options_.size;
  record.wait = waits_of_process_.longest();
  return record;
}

std::optional<std::string> World::Impl::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::unique_ptr<World::Impl::Subscription> World::Impl::observe(Observer observer) {
  const std::lock_guard lock(mutex_);
  if (failure_) observer.failed(*failure_);
  observers_[next_observer_] = std::move(observer);
  return std::make_unique<Subscription>(*this, next_observer_++);
}

void World::Impl::fail(Notice::Kind kind, const std::string& what) {
  throw remote_failure(settle({kind, "process " + std::to_string(options_.rank) + ": " + what}));
}

void World::Impl::finish(const c10::intrusive_ptr<c10d::Work>& work) {
  finish(work->getFuture(), "meeting of all processes", all_processes_);
}

void World::Impl::finish(const c10::intrusive_ptr<c10::ivalue::Future>& future, const std::string& what,
                         const std::vector<int>& among) {
  const ProcessWaits::Scope waiting(waits_of_process_, what, among);
  switch (waits_->wait(future, patience_, kLastWords)) {
    case EndableWaits::Outcome::Ended: throw remote_failure(failure().value_or(""));
    case EndableWaits::Outcome::TimedOut:
      fail(Notice::Kind::TimedOut, "the processes did not come together within " +
                                       std::to_string(patience_.count()) + " ms (" + what + ")");
      break;
    case EndableWaits::Outcome::Done: break;
  }
  if (future->hasError()) {
    fail(Notice::Kind::Lost, "the processes have lost each other (" + what +
                                 "): " + connection_reason(future->tryRetrieveErrorMessage()));
  }
}

void World::Impl::tell(const std::string& text) {
  std::vector<std::jthread> aborts;  // are joined at the end
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = text;
  // First: who is told may need what a thread has that waits for its device.
  aborts = abort_nccl(groups());
  for (const auto& [id, observer] : observers_) observer.failed(text);
  waits_->end();
}

World::World(const WorldOptions& options) : impl_(std::make_unique<Impl>(options)) {}
World::~World() = default;
int World::rank() const { return impl_->rank(); }
int World::size() const { return impl_->size(); }
std::vector<std::string> World::all_gather(const std::string& text) { return impl_->all_gather(text); }

}  // namespace pipewright
