#include "hccl_work.h"

#include "alias.h"
#include "runtime.h"
#include "watchdog.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace virtual_ascend {
namespace {

// What a caller waits for. Gloo's error says what broke; this adds which operation it was.
class HcclWork final : public c10d::Work {
 public:
  HcclWork(int rank, c10d::OpType type, Works inner, std::function<void()> finish, std::vector<at::Tensor> results,
           std::shared_ptr<const Watched> watched)
      : Work(rank, type), inner_(std::move(inner)), finish_(std::move(finish)), results_(std::move(results)), watched_(std::move(watched)) {}

  bool isCompleted() override {
    if (waited_) return true;
    for (const auto& work : inner_)
      if (!work->isCompleted()) return false;
    return Watched::Clock::now() >= watched_->not_before;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    std::lock_guard<std::mutex> lock(wait_mutex_);
    if (waited_) return true;
    try {
      for (const auto& work : inner_) work->wait(timeout);
      std::this_thread::sleep_until(watched_->not_before);
      if (finish_) finish_();
    } catch (const std::exception& error) {
      take_down_if_overdue(*watched_);
      TORCH_CHECK_WITH(DistBackendError, false, watched_->name, " failed: ", error.what());
    }
    waited_ = true;
    let_go();
    free_dropped();
    return true;
  }

  // A weak reference keeps the object, and would keep the tensors and gloo's operation, after the last owner is gone.
  void release_resources() override {
    finish_ = nullptr;
    inner_.clear();
    results_.clear();
    watched_.reset();
  }

  void synchronize() override { wait(kNoTimeout); }
  void abort() override {
    for (const auto& work : inner_) work->abort();
  }
  int sourceRank() const override { return waited_ ? source_ : inner_.front()->sourceRank(); }
  std::vector<at::Tensor> result() override { return results_; }
  bool isSuccess() const override {
    if (waited_) return true;
    for (const auto& work : inner_)
      if (!work->isSuccess()) return false;
    return true;
  }

  // A device's future holds stream events, not pending results, so it may be created after the work is done.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::vector<c10::Device> devices;
    for (const auto& tensor : results_)
      if (tensor.device().type() == kNpu && (devices.empty() || devices.back() != tensor.device())) devices.push_back(tensor.device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    try {
      wait(kNoTimeout);
      future->markCompleted(c10::IValue(results_));
    } catch (...) {
      future->setError(std::current_exception());
    }
    return future;
  }

 private:
  // Gloo's threads hold the tensors for a moment after they are done; without this wait, memory accounts would differ
  // between runs.
  void let_go() {
    finish_ = nullptr;
    if (retrieveOpType() == c10d::OpType::RECV) source_ = inner_.front()->sourceRank();
    const auto until = std::chrono::steady_clock::now() + kLettingGo;
    for (const auto& work : inner_)
      while (work.use_count() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kMoment);
    inner_.clear();
    watched_->forget();
  }

  static constexpr std::chrono::seconds kLettingGo{1};
  static constexpr std::chrono::microseconds kMoment{20};

  Works inner_;
  std::function<void()> finish_;
  std::vector<at::Tensor> results_;
  std::shared_ptr<const Watched> watched_;
  std::mutex wait_mutex_;
  std::atomic<bool> waited_{false};
  int source_ = -1;
};

// Several operations that were issued together.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Works works) : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}
  bool isCompleted() override {
    for (const auto& work : works_)
      if (!work->isCompleted()) return false;
    return true;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  Works works_;
};

// The operations that nobody has waited for, by the NPU that they were issued on.
class Outstanding {
 public:
  void add(int device, const c10::intrusive_ptr<c10d::Work>& work) {
    std::lock_guard<std::mutex> lock(mutex_);
    works_.erase(std::remove_if(works_.begin(), works_.end(), [](const auto& each) { return each.second.expired(); }), works_.end());
    works_.emplace_back(device, work);
  }

  Works of(int device) {
    std::lock_guard<std::mutex> lock(mutex_);
    Works found;
    for (const auto& [on, weak] : works_)
      if (auto work = on == device ? weak.lock() : nullptr) found.push_back(std::move(work));
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<int, c10::weak_intrusive_ptr<c10d::Work>>> works_;
};

Outstanding& outstanding() {
  static Outstanding* it = new Outstanding();  // works may outlive static destructors
  return *it;
}

}  // namespace

void synchronize_collectives(int device) {
  for (const auto& work : outstanding().of(device)) work->wait(kNoTimeout);
}

c10::intrusive_ptr<c10d::Work> work_of(int rank, c10d::OpType type, Works inner, std::function<void()> finish,
                                       std::vector<at::Tensor> results, std::shared_ptr<const Watched> watched) {
  auto work = c10::make_intrusive<HcclWork>(rank, type, std::move(inner), std::move(finish), std::move(results), std::move(watched));
  outstanding().add(current_device(), work);
  return work;
}

c10::intrusive_ptr<c10d::Work> coalesced_work(int rank, Works works) {
  return c10::make_intrusive<CoalescedWork>(rank, std::move(works));
}

}  // namespace virtual_ascend
