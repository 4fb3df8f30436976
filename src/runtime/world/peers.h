#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/world/network.h"

namespace c10d {
class Store;
}

namespace pipewright {

/// A connection to every other process, apart from those that carry data: words get through while
/// everything else waits, and a process that ends is noticed at once.
class Peers {
 public:
  /// Connects all to all; every process makes it at the same point. `address`: of this machine. Throws Error.
  Peers(c10d::Store& store, int rank, int size, const std::string& address,
        std::chrono::milliseconds timeout);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Does not wait: what the connection does not take at once goes out during `next`. From any thread.
  void send(int to, const std::string& word);
  void send_all(const std::string& word);
  /// Makes `next` return. From any thread.
  void wake();

  struct Event {
    enum class Kind { Word, Gone, Woken, Late };
    Kind kind;
    int from = -1;
    /// What it says; of one that is gone, why.
    std::string text = {};
  };
  /// Waits for the next event until the deadline, when it is Late. One thread at a time.
  Event next(std::optional<std::chrono::steady_clock::time_point> deadline);

  /// Whether all that was to be sent to those that are still there has gone out.
  bool all_sent() const;

 private:
  struct Peer {
    Socket socket;
    std::string received;
    std::string to_send;
    bool over = false;  // its loss has been told
  };

  void accept_higher(const Socket& listener, const std::string& hello,
                     std::chrono::steady_clock::time_point deadline);
  void flush(Peer& peer);
  void read(int from, Peer& peer);
  void lose(int from, Peer& peer, const std::string& why);
  void take_words(int from, Peer& peer);

  const int rank_;
  const int size_;
  Socket woken_;  // an eventfd
  mutable std::mutex mutex_;
  std::map<int, Peer> peers_;
  std::deque<Event> events_;
};

}  // namespace pipewright
