// Ends the process when a collective exceeds its group's timeout, as torch_npu's watchdog does.
#pragma once

#include "hccl_work.h"

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace virtual_ascend {

// What the watchdog knows about one operation.
struct Watched {
  using Clock = std::chrono::steady_clock;

  std::string name;
  Clock::time_point began, not_before;  // it does not end before `not_before` (faults.h)
  std::chrono::milliseconds timeout;
  // Weak, and only gloo's works: dropping the last reference may free Python objects, which a thread must not do.
  mutable std::vector<c10::weak_intrusive_ptr<c10d::Work>> inner;
  mutable std::mutex mutex;  // of `inner`

  bool overdue() const { return Clock::now() - began >= timeout; }
  // A failed work never ends on an NPU, so only success counts.
  bool succeeded() const;
  // Called once somebody waited for it, because even a weak reference keeps a work's tensors alive.
  void forget() const;
};

// Names the operation that took too long and aborts, if the process has a watchdog.
void take_down_if_overdue(const Watched& work);

// A group's watchdog. Its thread starts with the group's first operation and ends with the group.
class Watchdog {
 public:
  ~Watchdog() { stop(); }
  void watch(const std::shared_ptr<const Watched>& work);
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<const Watched>> works_;
  std::thread thread_;
  bool stopped_ = false;
};

}  // namespace virtual_ascend
