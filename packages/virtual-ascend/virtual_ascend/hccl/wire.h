// Result codes, sockets, and the interface to listen on, for libhccl.so (SIMULATED). Only libhccl.cpp includes this
// file.
#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

namespace {

enum Result { kSuccess = 0, kPara = 1, kPtr = 2, kNotSupported = 5, kSyscall = 8, kTimeout = 9, kConnect = 11, kTransfer = 13 };

struct Failure {
  Result result;
};

using Clock = std::chrono::steady_clock;

int seconds(const char* name, int usual) {
  const char* text = std::getenv(name);
  const int value = text == nullptr ? 0 : std::atoi(text);
  return value > 0 ? value : usual;
}

int connect_seconds() { return seconds("HCCL_CONNECT_TIMEOUT", 120); }

// Writes one line to stderr in one piece, like the virtual Ascend's other lines.
__attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
  char line[800];
  const int head = std::snprintf(line, sizeof(line), "virtual-ascend: libhccl.so (SIMULATED): ");
  va_list values;
  va_start(values, format);
  std::vsnprintf(line + head, sizeof(line) - head - 1, format, values);
  va_end(values);
  std::strcat(line, "\n");
  std::fputs(line, stderr);
}

std::string text_of(const sockaddr_in& address) {
  char host[INET_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET, &address.sin_addr, host, sizeof(host));
  return std::string(host) + ":" + std::to_string(ntohs(address.sin_port));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd < 0) throw Failure{kSyscall};
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

  // Limits how long one read or write may block; at least one second.
  void patience(Clock::duration longest) const {
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(longest).count();
    const timeval time{whole > 0 ? whole : 1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  void write(const void* data, size_t size) const {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
      const auto done = send(fd_, at, size, MSG_NOSIGNAL);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) throw Failure{errno == EAGAIN || errno == EWOULDBLOCK ? kTimeout : kTransfer};
      at += done;
      size -= static_cast<size_t>(done);
    }
  }
  void read(void* data, size_t size) const {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      const auto done = recv(fd_, at, size, 0);
      if (done < 0 && errno == EINTR) continue;
      if (done == 0) throw Failure{kTransfer};
      if (done < 0) throw Failure{errno == EAGAIN || errno == EWOULDBLOCK ? kTimeout : kTransfer};
      at += done;
      size -= static_cast<size_t>(done);
    }
  }

 private:
  int fd_;
};

// Whether HCCL_SOCKET_IFNAME selects this interface. It lists names separated by commas: full names after `=`,
// otherwise prefixes; a leading `^` selects all other interfaces.
bool named(const char* asked, const std::string& interface) {
  std::string text(asked);
  const bool others = !text.empty() && text[0] == '^';
  if (others) text.erase(0, 1);
  const bool exact = !text.empty() && text[0] == '=';
  if (exact) text.erase(0, 1);
  std::istringstream names(text);
  bool any = false, found = false;
  for (std::string name; std::getline(names, name, ',');) {
    if (name.empty()) continue;
    any = true;
    found = found || (exact ? interface == name : interface.rfind(name, 0) == 0);
  }
  return any && found != others;
}

// The address that the user requested: HCCL_IF_IP, which HCCL prefers, or the first interface that HCCL_SOCKET_IFNAME
// selects. Names that this machine does not have are no error, because people try a cluster's settings on a laptop.
std::optional<in_addr> asked_address() {
  in_addr address{};
  if (const char* host = std::getenv("HCCL_IF_IP"); host != nullptr && *host != '\0') {
    if (inet_pton(AF_INET, host, &address) == 1) return address;
    say("HCCL_IF_IP=%s is not an IPv4 address: correct it or leave it out", host);
    throw Failure{kPara};
  }
  const char* asked = std::getenv("HCCL_SOCKET_IFNAME");
  ifaddrs* all = nullptr;
  if (asked == nullptr || getifaddrs(&all) != 0) return std::nullopt;
  std::optional<in_addr> found;
  for (const ifaddrs* each = all; each != nullptr && !found; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_LOOPBACK)) continue;
    if (named(asked, each->ifa_name)) found = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
  }
  freeifaddrs(all);
  return found;
}

// This machine's address on the route to another one. Nothing is sent.
in_addr address_towards(const sockaddr_in& other) {
  const Socket asking(::socket(AF_INET, SOCK_DGRAM, 0));
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  if (connect(asking.fd(), reinterpret_cast<const sockaddr*>(&other), sizeof(other)) != 0) throw Failure{kConnect};
  if (getsockname(asking.fd(), reinterpret_cast<sockaddr*>(&own), &length) != 0) throw Failure{kSyscall};
  return own.sin_addr;
}

}  // namespace
