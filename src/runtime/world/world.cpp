#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/cuda.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "pipewright/runtime/errors.h"
#include "runtime/world/nccl.h"
#include "runtime/world/remote_failure.h"
#include "runtime/world/results.h"
#include "runtime/world/world_impl.h"

namespace pipewright {
namespace {

constexpr std::chrono::seconds kLeaveTogether{10};
/// Who fails may have sent before, what he fails of: that shall be heard, and not only that he has left.
constexpr std::chrono::milliseconds kLastWords{300};
constexpr std::chrono::milliseconds kLook{10};
constexpr std::chrono::milliseconds kConnect{1000};
constexpr std::chrono::hours kForever{24 * 365};

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string where(const WorldOptions& options) {
  return options.address + ":" + std::to_string(options.port);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Where rank 0 listens, or would.
Addresses addresses_of_first(const WorldOptions& options, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(options.address.c_str(), std::to_string(options.port).c_str(), &hints, &found)) {
    throw Error("cannot find the address '" + options.address + "' of rank 0: " + gai_strerror(error));
  }
  return {found, freeaddrinfo};
}

/// A socket on the way to an address; what `connect` says is looked at by the caller.
class ConnectingSocket {
 public:
  explicit ConnectingSocket(const addrinfo& to)
      : descriptor_(socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol)) {
    connected_ = descriptor_ >= 0 && connect(descriptor_, to.ai_addr, to.ai_addrlen) == 0;
    pending_ = descriptor_ >= 0 && !connected_ && errno == EINPROGRESS;
  }
  ~ConnectingSocket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  ConnectingSocket(const ConnectingSocket&) = delete;
  ConnectingSocket& operator=(const ConnectingSocket&) = delete;

  int descriptor() const { return descriptor_; }

  bool connected_within(std::chrono::milliseconds time) const {
    if (!pending_) return connected_;
    pollfd wanted{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (poll(&wanted, 1, static_cast<int>(time.count())) != 1) return false;
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }

 private:
  int descriptor_;
  bool connected_ = false;
  bool pending_ = false;
};

/// Returns when somebody listens there, or the time is over. TCPStore waits too, but for
/// seconds after the first refusal.
void wait_for_listener(const WorldOptions& options) {
  const auto end = std::chrono::steady_clock::now() + options.timeout;
  while (std::chrono::steady_clock::now() < end) {
    const Addresses all = addresses_of_first(options, SOCK_STREAM);
    for (const addrinfo* each = all.get(); each; each = each->ai_next) {
      if (ConnectingSocket(*each).connected_within(kConnect)) return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

/// The address by which others reach this machine: the one it would itself use to reach rank 0.
std::string own_address(const WorldOptions& options) {
  const Addresses all = addresses_of_first(options, SOCK_DGRAM);  // connecting these sends nothing
  for (const addrinfo* each = all.get(); each; each = each->ai_next) {
    const ConnectingSocket socket(*each);
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::array<char, NI_MAXHOST> text{};
    if (socket.connected_within(kConnect) &&
        getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
        getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return text.data();
    }
  }
  throw Error("there is no way from here to rank 0 at " + where(options));
}

c10::intrusive_ptr<c10d::Store> connect_store(const WorldOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.port;
  store.waitWorkers = false;
  store.timeout = options.timeout;
  store.isServer = options.rank == 0 && !options.served_by_launcher;
  if (!store.isServer) wait_for_listener(options);
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

/// Lets a group end with this program: its destructor would wait for what is under way, which
/// somebody who does not come any more can hold up until the time-out.
void abandon(c10::intrusive_ptr<c10d::Backend> group) {
  static std::mutex mutex;
  static auto* const abandoned = new std::vector<c10::intrusive_ptr<c10d::Backend>>;
  const std::lock_guard lock(mutex);
  abandoned->push_back(std::move(group));
}

/// A process group of `size` processes, in which this one has a rank.
c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Store>& store,
                                             const std::string& name, int rank, int size,
                                             const WorldOptions& options) {
  auto settings = c10d::ProcessGroupGloo::Options::create(options.timeout);
  settings->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(own_address(options)));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store),
                                                     rank, size, settings);
}

}  // namespace

World::Impl::Impl(WorldOptions options) : options_(std::move(options)) {
  if (options_.size < 1 || options_.rank < 0 || options_.rank >= options_.size) {
    throw ArgumentError("rank " + std::to_string(options_.rank) + " is not from 0 to the world's size " +
                        std::to_string(options_.size) + " - 1");
  }
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
  messages_ = make_group(store_, "messages", options_.rank, options_.size, options_);
  control_ = make_group(store_, "control", options_.rank, options_.size, options_);
  watcher_ = std::thread([this, store = store_->clone()] { watch(store); });
  uses_nccl_ = has_device_each();
}

World::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0) {
    report_failure("process " + std::to_string(options_.rank) + " has left because of an error of its own");
  }
  leave();
  watcher_.join();
  if (!failure()) return;
  abandon(std::move(control_));
  for (auto& [name, group] : groups_) abandon(std::move(group));
}

void World::Impl::join() {
  const std::string size = std::to_string(options_.size);
  const auto refuse = [this](const std::string& why) {
    report_failure(why);
    store_->set("complete", bytes_of("no"));
    throw Error(why);
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
  if (store_->check({"failure"})) throw Error(text_of(store_->get("failure")));
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

void World::Impl::leave() noexcept {
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    failed = failure_.has_value();
  }
  try {
    if (store_->add("left", 1) == options_.size) store_->set("all left", bytes_of("yes"));
    // The store is rank 0's: it stays until the others need it no more.
    if (options_.rank == 0 && !failed) store_->wait({"all left"}, kLeaveTogether);
    store_->set("watch/" + std::to_string(options_.rank), bytes_of("left"));
  } catch (const std::exception&) {
    return;  // the store is gone, and with it the watcher's connection
  }
}

bool World::Impl::has_device_each() {
  const auto devices = has_nccl() ? static_cast<int>(torch::cuda::device_count()) : 0;
  std::map<std::string, int> free;  // by machine
  bool enough = true;
  for (const std::string& each : all_gather(running_system() + std::to_string(devices))) {
    int& left = free.emplace(each, std::stoi(each.substr(running_system().size()))).first->second;
    enough &= left-- > 0;
  }
  return enough;
}

c10d::Backend& World::Impl::group(const std::string& name, const std::vector<int>& processes,
                                  at::DeviceType device) {
  const bool nccl = device == at::kCUDA && uses_nccl_;
  std::string key = "group/" + name + (nccl ? "/nccl" : "/gloo");
  for (const int process : processes) key += "/" + std::to_string(process);
  c10::intrusive_ptr<c10d::Backend>& group = groups_[key];
  if (!group) {
    const auto own = std::ranges::find(processes, options_.rank);
    const auto rank = static_cast<int>(own - processes.begin());
    const auto size = static_cast<int>(processes.size());
    group = nccl ? make_nccl_group(c10::make_intrusive<c10d::PrefixStore>(key, store_), rank, size,
                                   options_.timeout)
                 : make_group(store_, key, rank, size, options_);
  }
  return *group;
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

void World::Impl::report_failure(const std::string& text) noexcept {
  std::string first;
  try {
    first = text_of(store_->compareSet("failure", {}, bytes_of(text)));
    for (int rank = 0; rank < options_.size; ++rank) {
      store_->set("watch/" + std::to_string(rank), bytes_of("failure"));
    }
  } catch (const std::exception&) {
    first = text;  // the store is gone, which everybody notices by himself
  }
  tell(first);
}

std::optional<std::string> World::Impl::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::unique_ptr<World::Impl::Subscription> World::Impl::on_failure(
    std::function<void(const std::string&)> then) {
  const std::lock_guard lock(mutex_);
  if (failure_) then(*failure_);
  subscribers_[next_subscriber_] = std::move(then);
  return std::make_unique<Subscription>(*this, next_subscriber_++);
}

void World::Impl::finish(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto future = work->getFuture();
  switch (waits_->wait(future, options_.timeout, kLastWords)) {
    case EndableWaits::Outcome::Ended: throw remote_failure(failure().value_or(""));
    case EndableWaits::Outcome::TimedOut:
      throw TimeoutError("the processes did not come together within " +
                         std::to_string(options_.timeout.count()) +
                         " ms: one of them has not made the same call");
    case EndableWaits::Outcome::Done: break;
  }
  if (future->hasError()) {
    throw Error("the processes have lost each other: " + future->tryRetrieveErrorMessage());
  }
}

void World::Impl::tell(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = text;
  waits_->end();
  for (const auto& [id, then] : subscribers_) then(text);
}

void World::Impl::watch(const c10::intrusive_ptr<c10d::Store>& store) {
  std::string word;
  try {
    store->wait({"watch/" + std::to_string(options_.rank)}, kForever);
    if (!store->check({"failure"})) return;  // this process leaves
    word = text_of(store->get("failure"));
  } catch (const std::exception&) {
    word = "rank 0 of the world, at " + where(options_) + ", cannot be reached any more";
  }
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
  }
  tell(word);
}

World::World(const WorldOptions& options) : impl_(std::make_unique<Impl>(options)) {}
World::~World() = default;
int World::rank() const { return impl_->rank(); }
int World::size() const { return impl_->size(); }
std::vector<std::string> World::all_gather(const std::string& text) { return impl_->all_gather(text); }

}  // namespace pipewright
