#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/runtime/world.h"

namespace pipewright {

/// A port of this machine that nobody has now.
inline std::uint16_t free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

/// Runs each on a thread of its own; what they throw, by position.
inline std::vector<std::string> side_by_side(const std::vector<std::function<void()>>& parts) {
  std::vector<std::string> errors(parts.size());
  std::vector<std::thread> threads;
  for (std::size_t at = 0; at < parts.size(); ++at) {
    threads.emplace_back([&, at] {
      try {
        parts[at]();
      } catch (const std::exception& error) {
        errors[at] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

using WorldPtr = std::shared_ptr<World>;

/// Worlds as if each were in a process of its own: threads are enough to be apart.
inline std::vector<std::string> in_worlds(int size, const std::function<void(const WorldPtr&)>& part) {
  const std::uint16_t port = free_port();
  std::vector<std::function<void()>> parts;
  for (int rank = 0; rank < size; ++rank) {
    parts.emplace_back([=] {
      part(std::make_shared<World>(
          WorldOptions{.rank = rank, .size = size, .port = port, .timeout = std::chrono::seconds(30)}));
    });
  }
  return side_by_side(parts);
}

inline void expect_everywhere(const std::vector<std::string>& errors, const std::string& part) {
  for (std::size_t at = 0; at < errors.size(); ++at) {
    EXPECT_NE(errors[at].find(part), std::string::npos)
        << "no '" << part << "' in what process " << at << " says: " << errors[at];
  }
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (std::size_t at = 0; at < errors.size(); ++at) EXPECT_EQ(errors[at], "") << "process " << at;
}

}  // namespace pipewright
