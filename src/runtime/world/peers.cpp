#include "runtime/world/peers.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kLongestWord = 16 << 20;
/// What is kept for a process that does not read.
constexpr std::size_t kMostUnsent = 64 << 20;
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kReadAtOnce = 64 << 10;
constexpr std::chrono::seconds kHello{5};

std::string framed(const std::string& word) {
  const auto length = static_cast<std::uint32_t>(word.size());
  std::string frame(kLengthBytes, '\0');
  std::memcpy(frame.data(), &length, kLengthBytes);
  return frame + word;
}

int milliseconds_to(SteadyClock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int part = 0; part < 4; ++part) token += std::to_string(random()) + "-";
  return token;
}

std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_string(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

/// `10.0.0.7 40123`, as a process has told where it listens.
Socket connect_to_peer(const std::string& place, std::chrono::milliseconds timeout) {
  const std::size_t space = place.find(' ');
  const std::string host = place.substr(0, space);
  const Addresses all =
      find_addresses(host, static_cast<std::uint16_t>(std::stoi(place.substr(space + 1))), SOCK_STREAM);
  Socket socket = connect_within(*all, timeout);
  if (!socket.open()) throw Error("cannot reach another process at " + host + ": " + std::strerror(errno));
  return socket;
}

/// Reads the first bytes of a new connection; fewer where they do not come in time.
std::string read_exactly(const Socket& socket, std::size_t count, SteadyClock::time_point deadline) {
  std::string text;
  while (text.size() < count && SteadyClock::now() < deadline) {
    pollfd wanted{.fd = socket.descriptor(), .events = POLLIN, .revents = 0};
    if (poll(&wanted, 1, milliseconds_to(deadline)) != 1) break;
    std::string more(count - text.size(), '\0');
    const ssize_t got = recv(socket.descriptor(), more.data(), more.size(), 0);
    if (got <= 0) break;
    text.append(more, 0, static_cast<std::size_t>(got));
  }
  return text;
}

void send_at_once(const Socket& socket) {
  const int on = 1;
  setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Peers::Peers(c10d::Store& store, int rank, int size, const std::string& address,
             std::chrono::milliseconds timeout)
    : rank_(rank), size_(size), woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (size == 1) return;
  const auto deadline = SteadyClock::now() + timeout;
  const auto [listener, port] = listen_at(address);
  store.set("peer/" + std::to_string(rank), to_bytes(address + " " + std::to_string(port)));
  // Who connects must know it, so that nobody else is taken for a process of this world.
  if (rank == 0) store.set("peers", to_bytes(random_token()));
  const std::string token = to_string(store.get("peers"));
  for (int lower = 0; lower < rank; ++lower) {
    Peer& peer = peers_[lower];
    peer.socket = connect_to_peer(to_string(store.get("peer/" + std::to_string(lower))), timeout);
    send_at_once(peer.socket);
    peer.to_send = token + framed(std::to_string(rank));
    flush(peer);
  }
  accept_higher(listener, token, deadline);
}

void Peers::accept_higher(const Socket& listener, const std::string& token,
                          SteadyClock::time_point deadline) {
  while (peers_.size() + 1 < static_cast<std::size_t>(size_)) {
    pollfd wanted{.fd = listener.descriptor(), .events = POLLIN, .revents = 0};
    if (poll(&wanted, 1, milliseconds_to(deadline)) < 1 && SteadyClock::now() >= deadline) {
      throw Error("process " + std::to_string(rank_) + " waited in vain for " +
                  std::to_string(static_cast<std::size_t>(size_) - 1 - peers_.size()) +
                  " other processes to connect");
    }
    Socket socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) continue;
    const auto soon = std::min(deadline, SteadyClock::now() + kHello);
    if (read_exactly(socket, token.size(), soon) != token) continue;
    std::uint32_t length = 0;
    const std::string head = read_exactly(socket, kLengthBytes, soon);
    if (head.size() == kLengthBytes) std::memcpy(&length, head.data(), kLengthBytes);
    constexpr std::uint32_t kMostDigits = 9;
    if (length == 0 || length > kMostDigits) continue;
    const int from = std::atoi(read_exactly(socket, length, soon).c_str());
    if (from <= rank_ || from >= size_) continue;
    send_at_once(socket);
    peers_[from].socket = std::move(socket);
  }
}

void Peers::send(int to, const std::string& word) {
  {
    const std::lock_guard lock(mutex_);
    const auto peer = peers_.find(to);
    if (peer == peers_.end() || peer->second.over) return;
    peer->second.to_send += framed(word);
    flush(peer->second);
  }
  wake();  // so that the rest of it is waited for
}

void Peers::send_all(const std::string& word) {
  for (int to = 0; to < size_; ++to) send(to, word);
}

void Peers::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(woken_.descriptor(), &one, sizeof one);
}

bool Peers::all_sent() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(
      peers_, [](const auto& each) { return each.second.over || each.second.to_send.empty(); });
}

void Peers::flush(Peer& peer) {
  while (!peer.to_send.empty()) {
    const ssize_t sent =
        ::send(peer.socket.descriptor(), peer.to_send.data(), peer.to_send.size(), MSG_NOSIGNAL);
    if (sent < 0) break;  // whether it comes later or never, polling tells
    peer.to_send.erase(0, static_cast<std::size_t>(sent));
  }
  if (peer.to_send.size() > kMostUnsent) peer.to_send.clear();
}

void Peers::read(int from, Peer& peer) {
  std::array<char, kReadAtOnce> bytes;
  while (true) {
    const ssize_t got = recv(peer.socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      peer.received.append(bytes.data(), static_cast<std::size_t>(got));
      take_words(from, peer);
      if (peer.over) return;
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    lose(from, peer, got == 0 || errno == ECONNRESET ? "" : std::strerror(errno));
    return;
  }
}

void Peers::take_words(int from, Peer& peer) {
  while (peer.received.size() >= kLengthBytes) {
    std::uint32_t length = 0;
    std::memcpy(&length, peer.received.data(), kLengthBytes);
    if (length > kLongestWord) {
      lose(from, peer, "what comes from there is none of this program");
      return;
    }
    if (peer.received.size() < kLengthBytes + length) return;
    events_.push_back(
        {.kind = Event::Kind::Word, .from = from, .text = peer.received.substr(kLengthBytes, length)});
    peer.received.erase(0, kLengthBytes + length);
  }
}

void Peers::lose(int from, Peer& peer, const std::string& why) {
  peer.over = true;
  peer.socket = Socket();
  peer.to_send.clear();
  events_.push_back({.kind = Event::Kind::Gone, .from = from, .text = why});
}

Peers::Event Peers::next(std::optional<SteadyClock::time_point> deadline) {
  while (true) {
    std::vector<pollfd> wanted = {{.fd = woken_.descriptor(), .events = POLLIN, .revents = 0}};
    std::vector<int> ranks = {rank_};
    {
      const std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        Event event = std::move(events_.front());
        events_.pop_front();
        return event;
      }
      for (const auto& [rank, peer] : peers_) {
        if (peer.over) continue;
        const int events = POLLIN | (peer.to_send.empty() ? 0 : POLLOUT);
        wanted.push_back(
            {.fd = peer.socket.descriptor(), .events = static_cast<short>(events), .revents = 0});
        ranks.push_back(rank);
      }
    }
    const int ready = poll(wanted.data(), wanted.size(), deadline ? milliseconds_to(*deadline) : -1);
    if (ready == 0) return {.kind = Event::Kind::Late};
    if (ready < 0) continue;
    if (wanted[0].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t taken = ::read(woken_.descriptor(), &count, sizeof count);
      return {.kind = Event::Kind::Woken};
    }
    const std::lock_guard lock(mutex_);
    for (std::size_t at = 1; at < wanted.size(); ++at) {
      Peer& peer = peers_.at(ranks[at]);
      if (peer.over) continue;
      if ((wanted[at].revents & POLLOUT) != 0) flush(peer);
      if ((wanted[at].revents & ~POLLOUT) != 0) read(ranks[at], peer);
    }
  }
}

}  // namespace pipewright
