#include "runtime/world/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "pipewright/base/error.h"

namespace pipewright {
namespace {

constexpr std::chrono::milliseconds kConnect{1000};
constexpr std::chrono::milliseconds kBetweenTries{10};

/// The address of this end, in numbers, and its port.
std::pair<std::string, std::uint16_t> own_end(const Socket& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, host.data(), host.size(), port.data(),
                  port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return {host.data(), static_cast<std::uint16_t>(std::stoi(port.data()))};
}

/// Where nobody listens at a port from the range of those for connections, one can be given just that port,
/// and reaches itself.
bool reaches_itself(const Socket& socket) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  return getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         getpeername(socket.descriptor(), reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
         own_length == other_length && std::memcmp(&own, &other, own_length) == 0;
}

}  // namespace

Socket::~Socket() {
  if (open()) close(descriptor_);
}

Addresses find_addresses(const std::string& host, std::uint16_t port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw Error("cannot find the address '" + host + "': " + gai_strerror(error));
  }
  return {found, freeaddrinfo};
}

Socket connect_within(const addrinfo& to, std::chrono::milliseconds time) {
  Socket socket(::socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol));
  if (!socket.open() || connect(socket.descriptor(), to.ai_addr, to.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return {};
  pollfd wanted{.fd = socket.descriptor(), .events = POLLOUT, .revents = 0};
  if (poll(&wanted, 1, static_cast<int>(time.count())) != 1) {
    errno = ETIMEDOUT;
    return {};
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &length);
  errno = error == 0 ? ECONNREFUSED : error;
  return error == 0 && !reaches_itself(socket) ? std::move(socket) : Socket();
}

void wait_for_listener(const std::string& host, std::uint16_t port, std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
    const Addresses all = find_addresses(host, port, SOCK_STREAM);
    for (const addrinfo* each = all.get(); each; each = each->ai_next) {
      if (connect_within(*each, kConnect).open()) return;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

std::string address_towards(const std::string& host, std::uint16_t port) {
  const Addresses all = find_addresses(host, port, SOCK_DGRAM);  // connecting these sends nothing
  for (const addrinfo* each = all.get(); each; each = each->ai_next) {
    const Socket socket = connect_within(*each, kConnect);
    std::string address = socket.open() ? own_end(socket).first : "";
    if (!address.empty()) return address;
  }
  throw Error("there is no way from here to " + host);
}

std::string connection_reason(const std::string& what) {
  // Gloo begins with the place in its source, and ends with general advice.
  const std::size_t end = std::min(what.find(". This is typically"), what.find('\n'));
  const std::size_t begin = what.starts_with('[') ? what.find("] ") + 2 : 0;
  return begin < end ? what.substr(begin, end - begin) : what;
}

std::pair<Socket, std::uint16_t> listen_at(const std::string& address) {
  const Addresses all = find_addresses(address, 0, SOCK_STREAM);
  Socket socket(::socket(all->ai_family, all->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, all->ai_protocol));
  if (!socket.open() || bind(socket.descriptor(), all->ai_addr, all->ai_addrlen) != 0 ||
      listen(socket.descriptor(), SOMAXCONN) != 0) {
    throw Error("cannot listen at " + address + ": " + std::strerror(errno));
  }
  const std::uint16_t port = own_end(socket).second;
  return {std::move(socket), port};
}

}  // namespace pipewright
