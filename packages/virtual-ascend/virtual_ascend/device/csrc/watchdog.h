// What ends the process when a collective takes longer than its group's timeout, as torch_npu's watchdog does.
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

// One operation, as far as the watchdog sees it.
struct Watched {
  using Clock = std::chrono::steady_clock;

  std::string name;
  Clock::time_point began, not_before;  // before `not_before` it is not over (faults.h)
  std::chrono::milliseconds timeout;
  // Weak, and gloo's only: what this process drops last may free Python's objects, which a thread must not do.
  mutable std::vector<c10::weak_intrusive_ptr<c10d::Work>> inner;
  mutable std::mutex mutex;  // of `inner`

  bool overdue() const { return Clock::now() - began >= timeout; }
  // A work that failed never ends on an NPU: it is over only if it succeeded.
  bool succeeded() const;
  // It was waited for. Even a weak reference keeps a work's tensors.
  void forget() const;
};

// Says which operation took too long and aborts, if the process has a watchdog.
void take_down_if_overdue(const Watched& work);

// A group's watchdog. Its thread starts with the first operation, and ends with the group.
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
