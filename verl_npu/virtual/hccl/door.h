// Where a rank listens, and how strangers are kept out of its communicator, for libhccl.so (SIMULATED). Included by
// libhccl.cpp alone.
//
// HcclGetRootInfo draws two secrets of 32 random bytes and puts them into the root info, which the program hands to its
// ranks and to nobody else: over torch's store, as NCCL's unique id carries its magic. Whoever connects says the one,
// and is answered with the other, so each side knows that the other one has the root info of this very communicator.
// They are sent as they are: whoever can read what goes over the network here reads the weights as well, which are not
// encrypted either, so that a challenge would protect nothing more. Who can only connect cannot guess 256 bits, and the
// comparison takes equally long whatever was guessed.
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

constexpr char kMagic[8] = "verlnpu";
constexpr size_t kVisitors = 128;  // connections that have not said who they are: more would use up the process's files

// What HcclGetRootInfo hands out: where its process listens, and what its ranks know of each other.
struct Root {
  char magic[8];
  uint64_t id;
  uint32_t address;  // as in sockaddr_in
  uint16_t port;
  Secret call;
  Secret answer;
};

// What a rank says when it connects.
struct Hello {
  char magic[8];
  Secret call;
  uint32_t rank;
  sockaddr_in address;  // where it listens itself
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

bool same(const Secret& one, const Secret& other) {
  volatile unsigned char different = 0;
  for (size_t i = 0; i < one.size(); ++i) different = different | (one[i] ^ other[i]);
  return different == 0;
}

// Counts the connections that were not of this job, by what was wrong with them, and says it in one line at the end of
// a rendezvous: whoever comes a thousand times must not fill the log.
class Strangers {
 public:
  explicit Strangers(uint32_t rank) : rank_(rank) {}
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  ~Strangers() {
    if (count_ == 0) return;
    std::string what;
    for (const auto& [why, times] : whys_) what += (what.empty() ? "" : ", ") + std::to_string(times) + " " + why;
    say("rank %u dropped %d connection%s that %s not of its job, the first from %s: %s", rank_, count_, count_ == 1 ? "" : "s",
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

// A connection whose other side has not said who it is, or not all of it.
struct Visitor {
  Socket socket;
  sockaddr_in from;
  Clock::time_point ends;
  Hello hello{};
  size_t heard = 0;

  enum State { kUnfinished, kFinished, kGone };

  State listen() {
    const auto done = recv(socket.fd(), reinterpret_cast<char*>(&hello) + heard, sizeof(hello) - heard, MSG_DONTWAIT);
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return kUnfinished;
    if (done <= 0) return kGone;
    heard += static_cast<size_t>(done);
    return heard == sizeof(hello) ? kFinished : kUnfinished;
  }
  bool babbles() const { return std::memcmp(hello.magic, kMagic, std::min(heard, sizeof(kMagic))) != 0; }
};

struct Caller {
  Socket socket;
  sockaddr_in address;
};

using Callers = std::map<uint32_t, Caller>;

// Where a rank listens, on one interface.
class Door {
 public:
  explicit Door(in_addr at) {
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

  // The connections of the ranks that are awaited. Nobody else's is waited for, and none of them ends this.
  Callers receive(const Root& root, std::set<uint32_t> awaited, Strangers& strangers) {
    Guests guests{root, std::move(awaited), strangers, {}, {}};
    const auto deadline = Clock::now() + std::chrono::seconds(connect_seconds());
    while (!guests.awaited.empty()) {
      wait(guests, deadline);
      if (Clock::now() >= deadline) throw Failure{kTimeout};
      for (auto each = guests.visitors.begin(); each != guests.visitors.end();)
        each = hear(guests, *each) ? guests.visitors.erase(each) : std::next(each);
      admit(guests);
    }
    for (const auto& left : guests.visitors) guests.strangers.drop(left.from, silent(left));
    return std::move(guests.in);
  }

 private:
  struct Guests {
    const Root& root;
    std::set<uint32_t> awaited;
    Strangers& strangers;
    std::list<Visitor> visitors;
    Callers in;
  };

  void wait(const Guests& guests, Clock::time_point deadline) const {
    std::vector<pollfd> all{{socket_.fd(), POLLIN, 0}};
    for (const auto& each : guests.visitors) {
      all.push_back({each.socket.fd(), POLLIN, 0});
      deadline = std::min(deadline, each.ends);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    poll(all.data(), all.size(), static_cast<int>(std::max<int64_t>(left + 1, 0)));
  }

  static const char* silent(const Visitor& visitor) {
    return visitor.heard == 0 ? "said nothing" : "said only a part of who it was";
  }

  // Whether there is no more to be heard of a visitor: it is one of the ranks now, or it was dropped.
  static bool hear(Guests& guests, Visitor& visitor) {
    const auto state = visitor.listen();
    const char* why = nullptr;
    if (visitor.babbles()) why = "did not speak as a rank does";
    else if (state == Visitor::kGone) why = "left before it had said who it was";
    else if (state == Visitor::kFinished) return welcome(guests, visitor);
    else if (Clock::now() >= visitor.ends) why = silent(visitor);
    if (why != nullptr) guests.strangers.drop(visitor.from, why);
    return why != nullptr;
  }

  static bool welcome(Guests& guests, Visitor& visitor) {
    const uint32_t rank = visitor.hello.rank;
    if (!same(visitor.hello.call, guests.root.call)) {
      guests.strangers.drop(visitor.from, "did not know the secret of this communicator");
    } else if (guests.awaited.count(rank) == 0 && guests.in.count(rank) == 0) {
      guests.strangers.drop(visitor.from, "said that it was a rank that is not expected");
    } else {
      const auto& answer = guests.root.answer;  // fits into the empty buffer of a new connection, so it never waits
      if (send(visitor.socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(answer.size())) {
        // A rank that comes again has lost its first connection.
        guests.in.erase(rank);
        guests.awaited.erase(rank);
        guests.in.emplace(rank, Caller{std::move(visitor.socket), visitor.hello.address});
      }
    }
    return true;
  }

  // Lets in all who wait. Who has spoken already is heard at once, so that a crowd does not push out a rank.
  void admit(Guests& guests) const {
    const auto each_has = std::chrono::seconds(std::clamp(connect_seconds() / 12, 1, 10));
    while (!guests.awaited.empty()) {
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      const int fd = accept4(socket_.fd(), reinterpret_cast<sockaddr*>(&from), &length, SOCK_CLOEXEC);
      if (fd < 0) {
        // Without a file left there is nothing to accept with: the oldest makes room.
        if (errno != EMFILE && errno != ENFILE) return;
        if (guests.visitors.empty()) return std::this_thread::sleep_for(std::chrono::milliseconds(20));
      } else {
        guests.visitors.push_back(Visitor{Socket(fd), from, Clock::now() + each_has});
        if (hear(guests, guests.visitors.back())) guests.visitors.pop_back();
        if (guests.visitors.size() <= kVisitors) continue;
      }
      guests.strangers.drop(guests.visitors.front().from, "made room for others before it had said who it was");
      guests.visitors.pop_front();
    }
  }

  Socket socket_{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  sockaddr_in address_{};
};

}  // namespace
