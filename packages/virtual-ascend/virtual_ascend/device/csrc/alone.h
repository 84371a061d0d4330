// A c10d backend for a process that is the only existing rank: the others are assumed to hold the same data.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

namespace virtual_ascend {

// For a plan in phantom memory, where one rank stands for all ranks of its kind. What a collective costs depends only
// on sizes, and those are equal on all ranks. A sum is multiplied by the number of ranks; a receive from another rank
// returns zeros.
class AloneBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  AloneBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "alone"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return 0; }

 private:
  WorkPtr done(c10d::OpType type, Tensors results = {}) const;
  // Computes the reduction as if every rank held `tensor`.
  void reduce_alike(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
};

}  // namespace virtual_ascend
