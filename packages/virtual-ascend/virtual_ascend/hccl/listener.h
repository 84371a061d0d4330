// Where a rank listens, and how it keeps strangers out of its communicator, for libhccl.so (SIMULATED). Only
// libhccl.cpp includes this file.
//
// HcclGetRootInfo generates two secrets of 32 random bytes and puts them into the root info, which the program gives
// only to its ranks, over torch's store, as NCCL's unique id carries its magic number. A caller sends the first secret
// and gets the second one as the answer, so each side knows that the other has the root info of this communicator. The
// secrets are sent unencrypted: whoever can read this network can also read the weights, so a challenge would protect
// nothing more. Whoever can only connect cannot guess 256 bits, and the comparison takes the same time for every guess.
#pragma once

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "wire.h"

namespace {

using Secret = std::array<unsigned char, 32>;

constexpr char kMagic[8] = "virtual";
constexpr size_t kMostConnections = 128;  // unidentified connections; more would use up the process's file descriptors

// What HcclGetRootInfo returns: where its process listens, and the ranks' shared secrets.
struct Root {
  char magic[8];
  uint64_t id;
  uint32_t address;  // as in sockaddr_in
  uint16_t port;
  Secret call;
  Secret answer;
};

// The message that a rank sends when it connects.
struct Hello {
  char magic[8];
  Secret call;
  uint32_t rank;
  sockaddr_in address;  // where this rank listens
};

void draw(void* into, size_t size) {
  auto* at = static_cast<char*>(into);
  while (size > 0) {
    const auto done = getrandom(at, size, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw Failure{kSyscall};
    at += done;
    size -= static_cast<size_t>(done);
  }
}

bool equal(const Secret& one, const Secret& other) {
  volatile unsigned char different = 0;
  for (size_t i = 0; i < one.size(); ++i) different = different | (one[i] ^ other[i]);
  return different == 0;
}

// Counts the connections from outside this job by what was wrong with them, and logs one line at the end of a
// rendezvous, so that a thousand connections do not fill the log.
class Strangers {
 public:
  explicit Strangers(uint32_t rank) : rank_(rank) {}
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  ~Strangers() {
    if (count_ == 0) return;
    std::string what;
    for (const auto& [why, times] : whys_) what += (what.empty() ? "" : ", ") + std::to_string(times) + " " + why;
    say("rank %u dropped %d connection%s that %s not from its job (the first one from %s): %s", rank_, count_, count_ == 1 ? "" : "s",
        count_ == 1 ? "was" : "were", first_.c_str(), what.c_str());
  }
  void drop(const sockaddr_in& from, const char* why) {
    if (count_++ == 0) first_ = text_of(from);
    ++whys_[why];
  }

 private:
  uint32_t rank_;
  int count_ = 0;
  std::string first_;
  std::map<std::string, int> whys_;
};

// A connection whose other side has not fully identified itself.
struct Connection {
  Socket socket;
  sockaddr_in from;
  Clock::time_point ends;
  Hello hello{};
  size_t received = 0;

  enum State { kUnfinished, kFinished, kGone };

  State read_hello() {
    const auto done = recv(socket.fd(), reinterpret_cast<char*>(&hello) + received, sizeof(hello) - received, MSG_DONTWAIT);
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return kUnfinished;
    if (done <= 0) return kGone;
    received += static_cast<size_t>(done);
    return received == sizeof(hello) ? kFinished : kUnfinished;
  }
  bool is_no_rank() const { return std::memcmp(hello.magic, kMagic, std::min(received, sizeof(kMagic))) != 0; }
};

struct Caller {
  Socket socket;
  sockaddr_in address;
};

using Callers = std::map<uint32_t, Caller>;

// A rank's listening socket on one interface.
class Listener {
 public:
  explicit Listener(in_addr at) {
    address_.sin_family = AF_INET;
    address_.sin_addr = at;
    socklen_t length = sizeof(address_);
    auto* where = reinterpret_cast<sockaddr*>(&address_);
    if (bind(socket_.fd(), where, length) != 0) {
      say("cannot listen at %s: %s", text_of(address_).c_str(), std::strerror(errno));
      throw Failure{kSyscall};
    }
    if (listen(socket_.fd(), 1024) != 0 || getsockname(socket_.fd(), where, &length) != 0) throw Failure{kSyscall};
  }
  const sockaddr_in& address() const { return address_; }

  // Returns the connections of the awaited ranks. Others are not waited for, and none of them can stop this.
  Callers receive(const Root& root, std::set<uint32_t> awaited, Strangers& strangers) {
    Rendezvous rendezvous{root, std::move(awaited), strangers, {}, {}};
    const auto deadline = Clock::now() + std::chrono::seconds(connect_seconds());
    while (!rendezvous.awaited.empty()) {
      wait(rendezvous, deadline);
      if (Clock::now() >= deadline) throw Failure{kTimeout};
      for (auto each = rendezvous.connections.begin(); each != rendezvous.connections.end();)
        each = receive_hello(rendezvous, *each) ? rendezvous.connections.erase(each) : std::next(each);
      accept_all(rendezvous);
    }
    for (const auto& left : rendezvous.connections) rendezvous.strangers.drop(left.from, unfinished(left));
    return std::move(rendezvous.in);
  }

 private:
  struct Rendezvous {
    const Root& root;
    std::set<uint32_t> awaited;
    Strangers& strangers;
    std::list<Connection> connections;
    Callers in;
  };

  void wait(const Rendezvous& rendezvous, Clock::time_point deadline) const {
    std::vector<pollfd> all{{socket_.fd(), POLLIN, 0}};
    for (const auto& each : rendezvous.connections) {
      all.push_back({each.socket.fd(), POLLIN, 0});
      deadline = std::min(deadline, each.ends);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    poll(all.data(), all.size(), static_cast<int>(std::max<int64_t>(left + 1, 0)));
  }

  static const char* unfinished(const Connection& connection) {
    return connection.received == 0 ? "sent nothing" : "sent only a part of its greeting";
  }

  // Returns whether a connection is finished: either it is one of the ranks now, or it was dropped.
  static bool receive_hello(Rendezvous& rendezvous, Connection& connection) {
    const auto state = connection.read_hello();
    const char* why = nullptr;
    if (connection.is_no_rank()) why = "did not send a rank's greeting";
    else if (state == Connection::kGone) why = "closed before its greeting was complete";
    else if (state == Connection::kFinished) return accept_rank(rendezvous, connection);
    else if (Clock::now() >= connection.ends) why = unfinished(connection);
    if (why != nullptr) rendezvous.strangers.drop(connection.from, why);
    return why != nullptr;
  }

  static bool accept_rank(Rendezvous& rendezvous, Connection& connection) {
    const uint32_t rank = connection.hello.rank;
    if (!equal(connection.hello.call, rendezvous.root.call)) {
      rendezvous.strangers.drop(connection.from, "did not know the secret of this communicator");
    } else if (rendezvous.awaited.count(rank) == 0 && rendezvous.in.count(rank) == 0) {
      rendezvous.strangers.drop(connection.from, "claimed to be a rank that is not expected");
    } else {
      const auto& answer = rendezvous.root.answer;  // fits into a new connection's empty buffer, so this never blocks
      if (send(connection.socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(answer.size())) {
        // A rank that connects again has lost its first connection.
        rendezvous.in.erase(rank);
        rendezvous.awaited.erase(rank);
        rendezvous.in.emplace(rank, Caller{std::move(connection.socket), connection.hello.address});
      }
    }
    return true;
  }

  // Accepts all waiting connections. Each reads at once what has already arrived, so that a crowd does not push out a
  // rank.
  void accept_all(Rendezvous& rendezvous) const {
    const auto each_has = std::chrono::seconds(std::clamp(connect_seconds() / 12, 1, 10));
    while (!rendezvous.awaited.empty()) {
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      const int fd = accept4(socket_.fd(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
      if (fd < 0) {
        // No file descriptor is left, so the oldest connection makes room.
        if (errno != EMFILE && errno != ENFILE) return;
        if (rendezvous.connections.empty()) return std::this_thread::sleep_for(std::chrono::milliseconds(20));
      } else {
        rendezvous.connections.push_back(Connection{Socket(fd), from, Clock::now() + each_has});
        if (receive_hello(rendezvous, rendezvous.connections.back())) rendezvous.connections.pop_back();
        if (rendezvous.connections.size() <= kMostConnections) continue;
      }
      rendezvous.strangers.drop(rendezvous.connections.front().from, "was pushed out by others before its greeting was complete");
      rendezvous.connections.pop_front();
    }
  }

  Socket socket_{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  sockaddr_in address_{};
};

}  // namespace
