#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace pipewright {

/// A socket that is closed with its object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  int descriptor() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// Throws Error where the name is not known. `type`: SOCK_STREAM or SOCK_DGRAM.
Addresses find_addresses(const std::string& host, std::uint16_t port, int type);

/// Does not block; closed where nobody answers in time. The last error is in errno.
Socket connect_within(const addrinfo& to, std::chrono::milliseconds time);

/// Returns when somebody listens there, or the time is over.
void wait_for_listener(const std::string& host, std::uint16_t port, std::chrono::milliseconds time);

/// The address by which others reach this machine: the one it would itself use to reach that host.
std::string address_towards(const std::string& host, std::uint16_t port);

/// What a library says of a lost connection, in short.
std::string connection_reason(const std::string& what);

/// Listens at a free port of an address of this machine. Throws Error.
std::pair<Socket, std::uint16_t> listen_at(const std::string& address);

}  // namespace pipewright
