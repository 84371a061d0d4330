// What a stream waits for: collectives, which run in threads, and delayed copies, which are made by whoever waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

extern "C" int aclrtGetDevice(int* device);

namespace virtual_ascend_cann {

using Clock = std::chrono::steady_clock;

// A copy between host and NPU that arrives when something waits for it. Destroying `copy` releases what it holds.
struct Delayed {
  bool to_host;
  char* target;
  size_t size;
  std::function<void()> copy;
};

class Ticket {
 public:
  explicit Ticket(int device);
  Ticket(int device, Delayed delayed);
  int device() const { return device_; }

  void finish(int result);
  bool done();
  // Makes the copy, if it is one. Returns whether everything is done by `end`; without `end`, waits until it is.
  bool wait(const Clock::time_point* end);
  // Makes the copy, if it is one that `wanted` accepts.
  void make(const std::function<bool(const Delayed&)>& wanted);
  void make_any() { make([](const Delayed&) { return true; }); }
  // Whether it is a copy that nobody has made yet.
  bool is_delayed();
  int result();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int result_ = 0;
  int device_;
  std::unique_ptr<Delayed> delayed_;
};
using Tickets = std::vector<std::shared_ptr<Ticket>>;

// What a stream is waiting for now.
Tickets waits_of(void* stream);

// Makes a stream, its events, and its device wait for another ticket.
void add(void* stream, std::shared_ptr<Ticket> ticket);

// This thread's device.
int device_here();

}  // namespace virtual_ascend_cann
