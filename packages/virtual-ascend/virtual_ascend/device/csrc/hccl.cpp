#include "hccl.h"

#include "alias.h"
#include "copies.h"
#include "faults.h"
#include "graph.h"
#include "hccl_types.h"
#include "hccl_work.h"
#include "ledger.h"
#include "phantom.h"
#include "runtime.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace virtual_ascend {
namespace {

using Tensors = HcclBackend::Tensors;
using TensorLists = HcclBackend::TensorLists;
using WorkPtr = HcclBackend::WorkPtr;

Tensors aliases(const Tensors& tensors) {
  Tensors out;
  out.reserve(tensors.size());
  for (const auto& tensor : tensors) out.push_back(lent_alias(tensor));
  return out;
}

// HCCL counts elements: upstream's trainers gather a scalar into a vector of one element, which gloo refuses.
Tensors counted(const Tensors& tensors) {
  auto out = moved(phantom::stand_in(tensors));
  for (auto& tensor : out) {
    if (tensor.is_contiguous()) tensor = tensor.view({-1});
  }
  return out;
}

TensorLists counted(const TensorLists& lists) {
  TensorLists out;
  out.reserve(lists.size());
  for (const auto& list : lists) out.push_back(counted(list));
  return out;
}

c10d::ReduceOp summing(const c10d::ReduceOp& op) {
  return op == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
}

// Gloo cannot average, so sum and then divide.
std::function<void()> dividing(const c10d::ReduceOp& op, Tensors outputs, int size) {
  if (op != c10d::ReduceOp::AVG) return nullptr;
  return [outputs = std::move(outputs), size]() mutable {
    for (auto& output : outputs) {
      if (c10::isIntegralType(output.scalar_type(), true)) {
        output.div_(size, "trunc");
      } else {
        output.div_(size);
      }
    }
  };
}

// The elements in memory order: HCCL counts elements and ignores shapes.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor.view({-1}) : tensor.as_strided({tensor.numel()}, {1});
}

Tensors flat(const Tensors& tensors) {
  Tensors out;
  out.reserve(tensors.size());
  for (const auto& tensor : tensors) out.push_back(flat(tensor));
  return out;
}

void check_gathered(const at::Tensor& output, const at::Tensor& input, int size) {
  TORCH_CHECK(input.dtype() == output.dtype(), "output tensor must have the same type as input tensor");
  TORCH_CHECK(input.numel() * size == output.numel(), "output tensor size must be equal to world_size times input tensor size");
  check_contiguous(Tensors{input, output});
}

void check_scattered(const char* function, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op, int size) {
  check_contiguous(Tensors{input, output});
  TORCH_CHECK(input.dtype() == output.dtype(), "input tensor must be the same type as the output tensor.");
  TORCH_CHECK(input.numel() == output.numel() * size, "input tensor must be the same size as output size times world size");
  check_reduction(function, op, input, /*casts=*/false);
}

// The tensors that gloo reduces in place of `tensors`, and the work to do afterwards.
struct Reduction {
  Tensors tensors;
  std::function<void()> finish;

  Reduction(const Tensors& tensors, const c10d::ReduceOp& op, int size) : tensors(aliases(phantom::stand_in(tensors))) {
    const auto own = this->tensors;
    for (auto& tensor : this->tensors) tensor = reducible_by_gloo(tensor);
    finish = [own, reduced = this->tensors, divide = dividing(op, this->tensors, size)] {
      if (divide) divide();
      for (size_t i = 0; i < own.size(); ++i)
        if (!own[i].is_same(reduced[i])) own[i].copy_(reduced[i]);
    };
  }
};

// Whether messages are too large to have values in phantom memory. This depends only on their sizes, which are equal on
// all ranks of a collective, and not on where a rank's tensors are: ranks that decided differently would wait for each
// other forever.
bool are_phantoms(const Tensors& messages) {
  if (!phantom::on()) return false;
  for (const auto& message : messages)
    if (phantom::wanted(message)) return true;
  return false;
}

// A rank that is alone need not decide as other ranks do.
bool any_is_phantom(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return phantom::is(tensor); });
}

// A message between two ranks: the tensor, or one byte instead of a tensor that is too large to have values.
at::Tensor message(const at::Tensor& tensor) {
  if (are_phantoms({tensor})) return at::zeros({1}, at::kByte);
  return moved(phantom::stand_in(tensor).contiguous());
}

Tensors messages(const Tensors& tensors) {
  Tensors out;
  for (const auto& tensor : tensors) out.push_back(message(tensor));
  return out;
}

void arrive(const at::Tensor& output, const at::Tensor& received) {
  if (are_phantoms({output})) {
    phantom::clear(output);
  } else if (!phantom::is(output) && !output.is_contiguous()) {
    output.copy_(received.view_as(output));
  }
}

// The tag of an exchange's messages; programs do not use it.
constexpr int kExchange = 0x40000001;

// The part for or from each rank, along the first dimension.
Tensors parts(const at::Tensor& whole, const std::vector<int64_t>& splits, int size) {
  if (!splits.empty()) return whole.split_with_sizes(splits, 0);
  TORCH_CHECK(whole.size(0) % size == 0, "Tensor's dim 0 does not divide equally across group size");
  return whole.split(whole.size(0) / size, 0);
}

// All tensors of a collective in one list; `parted` splits it again.
Tensors joined(const TensorLists& lists, const Tensors& more) {
  Tensors out = lists.front();
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::pair<TensorLists, Tensors> parted(const Tensors& row, size_t first) {
  const auto middle = row.begin() + static_cast<std::ptrdiff_t>(first);
  return {{Tensors(row.begin(), middle)}, Tensors(middle, row.end())};
}

bool same_sizes(const Tensors& tensors, const at::Tensor& as) {
  for (const auto& tensor : tensors)
    if (tensor.sizes() != as.sizes()) return false;
  return true;
}

}  // namespace

std::string HcclBackend::where(const char* name, const std::string& detail) const {
  return c10::str("hccl (virtual Ascend, gloo): rank ", getRank(), " of ", getSize(), ": ", name, detail);
}

WorkPtr HcclBackend::run(c10d::OpType type, const char* name, Tensors results, const Start& start, Finish finish,
                         const std::string& detail) {
  free_dropped();
  int64_t bytes = 0;
  for (const auto& result : results) bytes += static_cast<int64_t>(result.nbytes());
  if (getSize() > 1) ledger::sent(name, this, getSize(), static_cast<double>(bytes));
  for (const auto& result : results) ledger::mark(result.storage().data(), ledger::kMessage);
  const double slow = faults::at_collective(name, bytes);
  const auto began = Watched::Clock::now();
  std::vector<WorkPtr> inner;
  try {
    inner = start();
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(DistBackendError, false, where(name, detail), " failed: ", error.what());
  }
  auto watched = std::make_shared<Watched>();
  watched->name = where(name, detail);
  watched->began = began;
  watched->not_before = began + std::chrono::duration_cast<Watched::Clock::duration>(std::chrono::duration<double>(slow));
  watched->timeout = timeout_;
  // Gloo only knows whether a message has arrived while something waits for it.
  if (type != c10d::OpType::SEND && type != c10d::OpType::RECV) {
    for (const auto& each : inner) watched->inner.emplace_back(each);
    watchdog_.watch(watched);
  }
  WorkPtr work = work_of(getRank(), type, std::move(inner), std::move(finish), std::move(results), std::move(watched));
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

WorkPtr HcclBackend::captured(const char* name, const Tensors& tensors, std::function<WorkPtr(HcclBackend&, Tensors&)> call) {
  graph::Task task{name, {}, nullptr, nullptr};
  Tensors own;
  for (const auto& tensor : tensors) {
    graph::save(tensor);
    task.operands.push_back(graph::operand(tensor, graph::Where::kNpu, "a tensor"));
    own.push_back(task.operands.back().tensor);
  }
  // A graph does not keep its process group alive.
  const auto self = c10::intrusive_ptr<HcclBackend>::reclaim_copy(this);
  task.run = [own, call, name, group = c10::weak_intrusive_ptr<HcclBackend>(self)](const Tensors* instead) {
    const auto there = group.lock();
    TORCH_CHECK(there, "a graph is replayed after the process group of its ", name, " was destroyed");
    auto given = instead == nullptr ? own : *instead;
    call(*there, given)->wait(kNoTimeout);
  };
  WorkPtr work;
  {
    graph::Inside inside;
    auto given = tensors;
    work = call(*this, given);
  }
  graph::add(std::move(task));
  return work;
}

WorkPtr HcclBackend::meet(c10d::OpType type, const char* name, Tensors results, Tensors held) {
  Tensors token{at::zeros({1})};
  return run(type, name, results, [&] { return std::vector{gloo_->allreduce(token, c10d::AllreduceOptions())}; },
             [results, held = std::move(held)] {
               for (const auto& result : results) phantom::clear(result);
             });
}

void HcclBackend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr HcclBackend::endCoalescing() {
  coalescing_ = false;
  return coalesced_work(getRank(), std::exchange(coalesced_, {}));
}

WorkPtr HcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (graph::any_is_recording(tensors))
    return captured("broadcast", tensors, [options](HcclBackend& self, Tensors& t) { return self.broadcast(t, options); });
  check_contiguous(tensors);
  if (are_phantoms(tensors)) return meet(c10d::OpType::BROADCAST, "broadcast", tensors);
  auto t = moved(phantom::stand_in(tensors));
  return run(c10d::OpType::BROADCAST, "broadcast", tensors, [&] { return std::vector{gloo_->broadcast(t, options)}; }, nullptr,
             c10::str(" from rank ", options.rootRank));
}

WorkPtr HcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (graph::any_is_recording(tensors))
    return captured("all_reduce", tensors, [options](HcclBackend& self, Tensors& t) { return self.allreduce(t, options); });
  check_contiguous(tensors);
  for (const auto& tensor : tensors) check_reduction("allreduce", options.reduceOp, tensor, /*casts=*/true);
  if (are_phantoms(tensors)) return meet(c10d::OpType::ALLREDUCE, "all_reduce", tensors);
  Reduction reduction(tensors, options.reduceOp, getSize());
  auto o = options;
  o.reduceOp = summing(options.reduceOp);
  return run(c10d::OpType::ALLREDUCE, "all_reduce", tensors, [&] { return std::vector{gloo_->allreduce(reduction.tensors, o)}; },
             reduction.finish);
}

WorkPtr HcclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (graph::any_is_recording(tensors))
    return captured("all_reduce_coalesced", tensors, [options](HcclBackend& self, Tensors& t) { return self.allreduce_coalesced(t, options); });
  for (const auto& tensor : tensors) check_reduction("allreduce_coalesced", options.reduceOp, tensor, /*casts=*/true);
  if (are_phantoms(tensors)) return meet(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors);
  Reduction reduction(tensors, options.reduceOp, getSize());
  c10d::AllreduceOptions o;
  o.reduceOp = summing(options.reduceOp);
  o.timeout = options.timeout;
  return run(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", tensors,
             [&] {
               std::vector<WorkPtr> works;
               for (auto& tensor : reduction.tensors) {
                 Tensors one{tensor};
                 works.push_back(gloo_->allreduce(one, o));
               }
               return works;
             },
             reduction.finish);
}

WorkPtr HcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (graph::any_is_recording(tensors))
    return captured("reduce", tensors, [options](HcclBackend& self, Tensors& t) { return self.reduce(t, options); });
  check_contiguous(tensors);
  for (const auto& tensor : tensors) check_reduction("reduce", options.reduceOp, tensor, /*casts=*/true);
  if (are_phantoms(tensors)) return meet(c10d::OpType::REDUCE, "reduce", getRank() == options.rootRank ? tensors : Tensors{}, tensors);
  Reduction reduction(tensors, options.reduceOp, getSize());
  auto o = options;
  o.reduceOp = summing(options.reduceOp);
  return run(c10d::OpType::REDUCE, "reduce", tensors, [&] { return std::vector{gloo_->reduce(reduction.tensors, o)}; },
             getRank() == options.rootRank ? reduction.finish : nullptr, c10::str(" to rank ", options.rootRank));
}

WorkPtr HcclBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (graph::any_is_recording(inputs))
    return captured("all_gather", joined(outputs, inputs), [options, parts = outputs.front().size()](HcclBackend& self, Tensors& t) {
      auto [out, in] = parted(t, parts);
      return self.allgather(out, in, options);
    });
  check_contiguous(inputs);
  if (!outputs.empty() && are_phantoms(outputs.front())) return meet(c10d::OpType::ALLGATHER, "all_gather", outputs.front(), inputs);
  auto out = counted(outputs);
  auto in = counted(inputs);
  const auto results = outputs.empty() ? Tensors{} : outputs.front();
  if (out.size() == 1 && in.size() == 1 && !same_sizes(out.front(), in.front())) {
    // HCCL gathers parts of different sizes, gloo only of equal ones, so every rank broadcasts its part.
    auto& parts = out.front();
    TORCH_CHECK(static_cast<int>(parts.size()) == getSize(), where("all_gather", ""), ": expected one output per rank");
    TORCH_CHECK(parts[getRank()].numel() == in.front().numel(), where("all_gather", ""), ": the output of this rank has ",
                parts[getRank()].numel(), " elements, its input ", in.front().numel());
    parts[getRank()].copy_(in.front().view_as(parts[getRank()]));
    return run(c10d::OpType::ALLGATHER, "all_gather", results, [&] {
      std::vector<WorkPtr> works;
      for (int rank = 0; rank < getSize(); ++rank) {
        Tensors one{parts[rank]};
        c10d::BroadcastOptions o;
        o.rootRank = rank;
        o.timeout = options.timeout;
        works.push_back(gloo_->broadcast(one, o));
      }
      return works;
    });
  }
  return run(c10d::OpType::ALLGATHER, "all_gather", results, [&] { return std::vector{gloo_->allgather(out, in, options)}; });
}

WorkPtr HcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if (graph::any_is_recording({input}))
    return captured("all_gather_into_tensor", {output, input},
                    [options](HcclBackend& self, Tensors& t) { return self._allgather_base(t[0], t[1], options); });
  check_gathered(output, input, getSize());
  if (are_phantoms({output})) return meet(c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {output}, {input});
  auto out = moved(phantom::stand_in(flat(output)));
  auto in = moved(phantom::stand_in(flat(input)));
  return run(c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor", {output},
             [&] { return std::vector{gloo_->_allgather_base(out, in, options)}; });
}

WorkPtr HcclBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  if (graph::any_is_recording(inputs))
    return captured("all_gather_into_tensor_coalesced", joined({outputs}, inputs), [options, parts = outputs.size()](HcclBackend& self, Tensors& t) {
      auto [out, in] = parted(t, parts);
      return self.allgather_into_tensor_coalesced(out[0], in, options);
    });
  TORCH_CHECK(outputs.size() == inputs.size(), where("all_gather_into_tensor_coalesced", ""), ": ", outputs.size(), " outputs for ",
              inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) check_gathered(outputs[i], inputs[i], getSize());
  if (are_phantoms(outputs)) return meet(c10d::OpType::COALESCED, "all_gather_into_tensor_coalesced", outputs, inputs);
  auto out = moved(phantom::stand_in(flat(outputs)));
  auto in = moved(phantom::stand_in(flat(inputs)));
  return run(c10d::OpType::COALESCED, "all_gather_into_tensor_coalesced", outputs, [&] {
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < out.size(); ++i) works.push_back(gloo_->_allgather_base(out[i], in[i], options));
    return works;
  });
}

WorkPtr HcclBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  if (graph::any_is_recording(inputs)) {
    const auto parts = outputs.empty() ? Tensors{} : outputs.front();
    return captured("gather", joined({parts}, inputs), [options, count = parts.size(), is_root = !outputs.empty()](HcclBackend& self, Tensors& t) {
      auto [out, in] = parted(t, count);
      if (!is_root) out.clear();
      return self.gather(out, in, options);
    });
  }
  if (are_phantoms(inputs)) return meet(c10d::OpType::GATHER, "gather", outputs.empty() ? Tensors{} : outputs.front(), inputs);
  auto out = counted(outputs);
  auto in = counted(inputs);
  return run(c10d::OpType::GATHER, "gather", outputs.empty() ? Tensors{} : outputs.front(),
             [&] { return std::vector{gloo_->gather(out, in, options)}; }, nullptr, c10::str(" to rank ", options.rootRank));
}

WorkPtr HcclBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  if (graph::any_is_recording(outputs)) {
    const auto parts = inputs.empty() ? Tensors{} : inputs.front();
    return captured("scatter", joined({parts}, outputs), [options, count = parts.size(), is_root = !inputs.empty()](HcclBackend& self, Tensors& t) {
      auto [in, out] = parted(t, count);
      if (!is_root) in.clear();
      return self.scatter(out, in, options);
    });
  }
  if (are_phantoms(outputs)) return meet(c10d::OpType::SCATTER, "scatter", outputs, inputs.empty() ? Tensors{} : inputs.front());
  auto out = counted(outputs);
  auto in = counted(inputs);
  return run(c10d::OpType::SCATTER, "scatter", outputs, [&] { return std::vector{gloo_->scatter(out, in, options)}; }, nullptr,
             c10::str(" from rank ", options.rootRank));
}

// Gloo's own reduce_scatter of lists is recent and only takes equal sizes, so reduce every part and keep this rank's.
WorkPtr HcclBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  if (graph::any_is_recording(outputs))
    return captured("reduce_scatter", joined(inputs, outputs), [options, parts = inputs.front().size()](HcclBackend& self, Tensors& t) {
      auto [in, out] = parted(t, parts);
      return self.reduce_scatter(out, in, options);
    });
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize(),
              where("reduce_scatter", ""), ": expected one output and one input per rank");
  check_reduction("reduce_scatter", options.reduceOp, outputs[0], /*casts=*/false);
  if (are_phantoms(inputs[0])) return meet(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", outputs, inputs[0]);
  auto parts = std::make_shared<Tensors>();
  for (const auto& part : inputs[0]) {
    const auto own = cpu_alias(phantom::stand_in(part));  // the inputs must not change
    const auto reduced = reducible_by_gloo(own);
    parts->push_back(reduced.is_same(own) ? own.clone(at::MemoryFormat::Contiguous) : reduced);
  }
  auto out = lent_alias(phantom::stand_in(outputs[0]));
  c10d::AllreduceOptions o;
  o.reduceOp = summing(options.reduceOp);
  o.timeout = options.timeout;
  return run(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", outputs,
             [&] {
               std::vector<WorkPtr> works;
               for (auto& part : *parts) {
                 Tensors one{part};
                 works.push_back(gloo_->allreduce(one, o));
               }
               return works;
             },
             [parts, out, op = options.reduceOp, rank = getRank(), size = getSize()]() mutable {
               out.copy_(parts->at(rank));
               if (auto divide = dividing(op, {out}, size)) divide();
             });
}

WorkPtr HcclBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (graph::any_is_recording({input}))
    return captured("reduce_scatter_tensor", {output, input},
                    [options](HcclBackend& self, Tensors& t) { return self._reduce_scatter_base(t[0], t[1], options); });
  check_scattered("_reduce_scatter_base", output, input, options.reduceOp, getSize());
  if (are_phantoms({input})) return meet(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {output}, {input});
  Reduction reduction({flat(output)}, options.reduceOp, getSize());
  auto in = reducible_by_gloo(lent_alias(phantom::stand_in(flat(input))));
  auto o = options;
  o.reduceOp = summing(options.reduceOp);
  return run(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", {output},
             [&] { return std::vector{gloo_->_reduce_scatter_base(reduction.tensors[0], in, o)}; }, reduction.finish);
}

WorkPtr HcclBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  if (graph::any_is_recording(inputs))
    return captured("reduce_scatter_tensor_coalesced", joined({outputs}, inputs), [options, parts = outputs.size()](HcclBackend& self, Tensors& t) {
      auto [out, in] = parted(t, parts);
      return self.reduce_scatter_tensor_coalesced(out[0], in, options);
    });
  const char* name = "reduce_scatter_tensor_coalesced";
  TORCH_CHECK(outputs.size() == inputs.size(), where(name, ""), ": ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) check_scattered(name, outputs[i], inputs[i], options.reduceOp, getSize());
  if (are_phantoms(inputs)) return meet(c10d::OpType::COALESCED, name, outputs, inputs);
  Reduction reduction(flat(outputs), options.reduceOp, getSize());
  auto in = aliases(phantom::stand_in(flat(inputs)));
  for (auto& tensor : in) tensor = reducible_by_gloo(tensor);
  auto o = options;
  o.reduceOp = summing(options.reduceOp);
  return run(c10d::OpType::COALESCED, "reduce_scatter_tensor_coalesced", outputs,
             [&] {
               std::vector<WorkPtr> works;
               for (size_t i = 0; i < in.size(); ++i) works.push_back(gloo_->_reduce_scatter_base(reduction.tensors[i], in[i], o));
               return works;
             },
             reduction.finish);
}

WorkPtr HcclBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                   std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  if (graph::any_is_recording({input}))
    return captured("all_to_all_single", {output, input}, [options, output_splits, input_splits](HcclBackend& self, Tensors& t) {
      auto out = output_splits, in = input_splits;
      return self.alltoall_base(t[0], t[1], out, in, options);
    });
  check_contiguous(Tensors{input, output});
  if (phantom::on() && !alone_) {
    return exchange("all_to_all_single", c10d::OpType::ALLTOALL_BASE, {output}, parts(output, output_splits, getSize()),
                    parts(input, input_splits, getSize()));
  }
  if (are_phantoms({output, input})) return meet(c10d::OpType::ALLTOALL_BASE, "all_to_all_single", {output}, {input});
  auto out = moved(phantom::stand_in(output));
  auto in = moved(phantom::stand_in(input));
  return run(c10d::OpType::ALLTOALL_BASE, "all_to_all_single", {output},
             [&] { return std::vector{gloo_->alltoall_base(out, in, output_splits, input_splits, options)}; });
}

// Gloo has no all_to_all of lists: flatten, exchange, split.
WorkPtr HcclBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  if (graph::any_is_recording(inputs))
    return captured("all_to_all", joined({outputs}, inputs), [options, parts = outputs.size()](HcclBackend& self, Tensors& t) {
      auto [out, in] = parted(t, parts);
      return self.alltoall(out[0], in, options);
    });
  if (phantom::on() && !alone_) return exchange("all_to_all", c10d::OpType::ALLTOALL, outputs, outputs, inputs);
  if (any_is_phantom(outputs) || any_is_phantom(inputs)) return meet(c10d::OpType::ALLTOALL, "all_to_all", outputs, inputs);
  std::vector<int64_t> output_splits, input_splits;
  Tensors flat;
  for (const auto& output : outputs) output_splits.push_back(output.numel());
  for (const auto& input : inputs) {
    input_splits.push_back(input.numel());
    flat.push_back(moved(input).reshape({-1}));
  }
  auto in = at::cat(flat);
  int64_t total = 0;
  for (const auto extent : output_splits) total += extent;
  auto out = in.new_empty({total});
  return run(c10d::OpType::ALLTOALL, "all_to_all", outputs,
             [&] { return std::vector{gloo_->alltoall_base(out, in, output_splits, input_splits, options)}; },
             [out, in, targets = moved(outputs)] {
               int64_t at = 0;
               for (const auto& target : targets) {
                 target.copy_(out.narrow(0, at, target.numel()).view(target.sizes()));
                 at += target.numel();
               }
             });
}

// In phantom memory: one message for each pair of ranks, because both ranks of a pair know its size, but the whole
// group does not.
WorkPtr HcclBackend::exchange(const char* name, c10d::OpType type, Tensors results, const Tensors& outputs, const Tensors& inputs) {
  TORCH_CHECK(static_cast<int>(outputs.size()) == getSize() && static_cast<int>(inputs.size()) == getSize(), where(name, ""),
              ": expected one output and one input per rank");
  auto fill = std::make_shared<std::vector<std::pair<at::Tensor, at::Tensor>>>();
  return run(type, name, std::move(results),
             [&] {
               std::vector<WorkPtr> works;
               for (int rank = 0; rank < getSize(); ++rank) {
                 if (rank == getRank()) continue;
                 if (inputs[rank].numel() > 0) {
                   Tensors one{message(inputs[rank])};
                   works.push_back(gloo_->send(one, rank, kExchange));
                 }
                 if (outputs[rank].numel() > 0) {
                   Tensors one{message(outputs[rank])};
                   works.push_back(gloo_->recv(one, rank, kExchange));
                   fill->emplace_back(outputs[rank], one[0]);
                 }
               }
               return works;
             },
             [fill, held = inputs, own_output = outputs[getRank()], own_input = inputs[getRank()]] {
               for (const auto& [output, received] : *fill) arrive(output, received);
               if (own_output.numel() > 0) own_output.copy_(own_input.view_as(own_output));
             });
}

WorkPtr HcclBackend::send(Tensors& tensors, int to, int tag) {
  if (graph::any_is_recording(tensors))
    return captured("send", tensors, [to, tag](HcclBackend& self, Tensors& t) { return self.send(t, to, tag); });
  check_contiguous(tensors);
  auto t = messages(tensors);
  const auto hold = [held = tensors] {};
  return run(c10d::OpType::SEND, "send", {}, [&] { return std::vector{gloo_->send(t, to, tag)}; },
             phantom::on() ? Finish(hold) : nullptr, c10::str(" to rank ", to));
}

WorkPtr HcclBackend::recv(Tensors& tensors, int from, int tag) {
  if (graph::any_is_recording(tensors))
    return captured("recv", tensors, [from, tag](HcclBackend& self, Tensors& t) { return self.recv(t, from, tag); });
  check_contiguous(tensors);
  auto t = messages(tensors);
  const auto finish = [tensors, t] {
    for (size_t i = 0; i < t.size(); ++i) arrive(tensors[i], t[i]);
  };
  return run(c10d::OpType::RECV, "recv", tensors, [&] { return std::vector{gloo_->recv(t, from, tag)}; },
             phantom::on() ? Finish(finish) : nullptr,
             c10::str(" from rank ", from));
}

WorkPtr HcclBackend::recvAnysource(Tensors&, int) {
  TORCH_CHECK(false, "ProcessGroupHCCL does not support recv from any rank (ERR02007 DIST feature not supported)");
}

WorkPtr HcclBackend::barrier(const c10d::BarrierOptions& options) {
  graph::refuse_synchronising(current_device(), "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream)", "a barrier blocks the host");
  c10d::BarrierOptions o;
  o.timeout = options.timeout;
  // As in torch_npu, a barrier blocks the host until the NPU is done.
  return run(c10d::OpType::BARRIER, "barrier", {}, [&] { return std::vector{gloo_->barrier(o)}; },
             [device = current_device()] { copies::synchronize_device(device); });
}

}  // namespace virtual_ascend
