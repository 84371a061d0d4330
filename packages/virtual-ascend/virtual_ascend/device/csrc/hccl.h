// The c10d backend `hccl`, simulated with gloo on aliases of the NPU tensors.
#pragma once

#include "watchdog.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>
#include <vector>

namespace virtual_ascend {

class HcclBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  HcclBackend(int rank, int size, c10::intrusive_ptr<c10d::Backend> gloo, std::chrono::milliseconds timeout)
      : Backend(rank, size), gloo_(std::move(gloo)), timeout_(timeout), alone_(gloo_->getBackendName() == "alone") {}

  const std::string getBackendName() const override { return "hccl"; }
  void shutdown() { watchdog_.stop(); }              // overrides since torch 2.6
  bool supportsCoalescing() const { return true; }  // overrides since torch 2.6
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
#if __has_include(<torch/headeronly/version.h>)
  void setTimeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    gloo_->setTimeout(timeout);
  }
#endif

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

 private:
  using Start = std::function<std::vector<WorkPtr>()>;
  using Finish = std::function<void()>;

  // Starts an operation. `finish` runs once after it succeeded; `results` are the NPU tensors that it fills.
  WorkPtr run(c10d::OpType type, const char* name, Tensors results, const Start& start, Finish finish = nullptr,
              const std::string& detail = "");
  std::string where(const char* name, const std::string& detail) const;
  // A collective during a capture: runs it and records it.
  WorkPtr captured(const char* name, const Tensors& tensors, std::function<WorkPtr(HcclBackend&, Tensors&)> call);
  // Replaces a message that is too large to have values: the ranks only synchronise, and `results` read as zeros.
  // `held` is kept alive until then, as a real message would be.
  WorkPtr meet(c10d::OpType type, const char* name, Tensors results, Tensors held = {});
  WorkPtr exchange(const char* name, c10d::OpType type, Tensors results, const Tensors& outputs, const Tensors& inputs);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::chrono::milliseconds timeout_;
  const bool alone_;
  Watchdog watchdog_;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace virtual_ascend
