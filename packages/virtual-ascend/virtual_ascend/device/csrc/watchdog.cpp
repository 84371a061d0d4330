#include "watchdog.h"

#include "faults.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace virtual_ascend {
namespace {

constexpr auto kPause = std::chrono::milliseconds(100);

bool is(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text != nullptr && std::strcmp(text, value) == 0;
}

// torch_npu's own switches, by their old and new names.
bool wanted() {
  const bool handled = !is("HCCL_ASYNC_ERROR_HANDLING", "0") && !is("TORCH_HCCL_ASYNC_ERROR_HANDLING", "0");
  return handled && !is("HCCL_BLOCKING_WAIT", "1") && !is("TORCH_HCCL_BLOCKING_WAIT", "1");
}

}  // namespace

bool Watched::succeeded() const {
  if (Clock::now() < not_before) return false;
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& each : inner) {
    // Work without an owner is over: gloo holds it while it runs.
    const auto work = each.lock();
    if (work && !(work->isCompleted() && work->isSuccess())) return false;
  }
  return true;
}

void Watched::forget() const {
  std::lock_guard<std::mutex> lock(mutex);
  inner.clear();
}

void take_down_if_overdue(const Watched& work) {
  static const bool watches = wanted();
  if (!watches || !work.overdue()) return;
  const auto ran = std::chrono::duration_cast<std::chrono::milliseconds>(Watched::Clock::now() - work.began);
  std::fprintf(stderr,
               "[Rank %d] Watchdog caught collective operation timeout: %s (Timeout(ms)=%lld) ran for %lld milliseconds before timing "
               "out.\n[Rank %d] To avoid data inconsistency, we are taking the entire process down. (virtual Ascend, as torch_npu does)\n",
               faults::rank(), work.name.c_str(), static_cast<long long>(work.timeout.count()), static_cast<long long>(ran.count()),
               faults::rank());
  std::fflush(stderr);
  std::abort();
}

void Watchdog::watch(const std::shared_ptr<const Watched>& work) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) return;
  works_.push_back(work);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  if (works_.size() == 1) changed_.notify_one();
}

void Watchdog::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    if (works_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, kPause, [this] { return stopped_; });
    for (auto each = works_.begin(); !stopped_ && each != works_.end();) {
      if ((*each)->succeeded()) {
        each = works_.erase(each);
      } else {
        take_down_if_overdue(**each);
        ++each;
      }
    }
  }
}

}  // namespace virtual_ascend
