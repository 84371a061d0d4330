#include "alone.h"

#include <ATen/core/grad_mode.h>

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace virtual_ascend {
namespace {

// Work that has finished when it is returned.
class Done final : public c10d::Work {
 public:
  Done(int rank, c10d::OpType type, std::vector<at::Tensor> results) : Work(rank, type), results_(std::move(results)) { finish(); }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return results_; }
  int sourceRank() const override { return 0; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::vector<at::Tensor> results_;
};

at::Tensor as_row(const at::Tensor& tensor) { return tensor.reshape({-1}); }

}  // namespace

AloneBackend::WorkPtr AloneBackend::done(c10d::OpType type, Tensors results) const {
  return c10::make_intrusive<Done>(getRank(), type, std::move(results));
}

void AloneBackend::reduce_alike(const at::Tensor& tensor, const c10d::ReduceOp& op) const {
  at::AutoDispatchBelowAutograd guard;
  if (op == c10d::ReduceOp::SUM) tensor.mul_(getSize());
  if (op == c10d::ReduceOp::PRODUCT) tensor.pow_(getSize());
  if (op == c10d::ReduceOp::BXOR && getSize() % 2 == 0) tensor.zero_();
}

AloneBackend::WorkPtr AloneBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions&) {
  return done(c10d::OpType::BROADCAST, tensors);
}

AloneBackend::WorkPtr AloneBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  for (const auto& tensor : tensors) reduce_alike(tensor, options.reduceOp);
  return done(c10d::OpType::ALLREDUCE, tensors);
}

AloneBackend::WorkPtr AloneBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (getRank() == options.rootRank)
    for (const auto& tensor : tensors) reduce_alike(tensor, options.reduceOp);
  return done(c10d::OpType::REDUCE, tensors);
}

AloneBackend::WorkPtr AloneBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions&) {
  at::AutoDispatchBelowAutograd guard;
  for (size_t i = 0; i < inputs.size(); ++i)
    for (const auto& output : outputs[i]) as_row(output).copy_(as_row(inputs[i]));
  return done(c10d::OpType::ALLGATHER, outputs.empty() ? Tensors{} : outputs.front());
}

AloneBackend::WorkPtr AloneBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) {
  at::AutoDispatchBelowAutograd guard;
  for (const auto& part : output.view({getSize(), -1}).unbind(0)) part.copy_(as_row(input));
  return done(c10d::OpType::_ALLGATHER_BASE, {output});
}

AloneBackend::WorkPtr AloneBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  at::AutoDispatchBelowAutograd guard;
  if (getRank() == options.rootRank)
    for (const auto& output : outputs.front()) as_row(output).copy_(as_row(inputs.front()));
  return done(c10d::OpType::GATHER, outputs.empty() ? Tensors{} : outputs.front());
}

AloneBackend::WorkPtr AloneBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  at::AutoDispatchBelowAutograd guard;
  if (getRank() == options.rootRank) {
    outputs.front().copy_(inputs.front()[getRank()]);
  } else {
    outputs.front().zero_();
  }
  return done(c10d::OpType::SCATTER, outputs);
}

AloneBackend::WorkPtr AloneBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  at::AutoDispatchBelowAutograd guard;
  outputs.front().copy_(inputs.front()[getRank()]);
  reduce_alike(outputs.front(), options.reduceOp);
  return done(c10d::OpType::REDUCE_SCATTER, outputs);
}

AloneBackend::WorkPtr AloneBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  at::AutoDispatchBelowAutograd guard;
  as_row(output).copy_(input.view({getSize(), -1})[getRank()]);
  reduce_alike(output, options.reduceOp);
  return done(c10d::OpType::_REDUCE_SCATTER_BASE, {output});
}

AloneBackend::WorkPtr AloneBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) {
  at::AutoDispatchBelowAutograd guard;
  if (output_splits.empty() && input_splits.empty()) {
    for (const auto& part : output.view({getSize(), -1}).unbind(0)) part.copy_(input.view({getSize(), -1})[getRank()]);
  } else {
    // Each other rank sends what this rank sends to itself; the program has already asked the ranks how much that is.
    output.zero_();
  }
  return done(c10d::OpType::ALLTOALL_BASE, {output});
}

AloneBackend::WorkPtr AloneBackend::send(Tensors&, int, int) { return done(c10d::OpType::SEND); }

AloneBackend::WorkPtr AloneBackend::recv(Tensors& tensors, int, int) {
  at::AutoDispatchBelowAutograd guard;
  for (const auto& tensor : tensors) tensor.zero_();
  return done(c10d::OpType::RECV, tensors);
}

AloneBackend::WorkPtr AloneBackend::barrier(const c10d::BarrierOptions&) { return done(c10d::OpType::BARRIER); }

}  // namespace virtual_ascend
