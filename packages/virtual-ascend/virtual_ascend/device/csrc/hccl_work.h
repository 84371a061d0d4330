// The work object that a collective returns to its caller.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace virtual_ascend {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

struct Watched;

// One operation: `inner` are gloo's works, `finish` runs once after they succeeded, `results` are the NPU tensors that
// it fills, and `watched` is its entry in the watchdog, whose name appears in errors.
c10::intrusive_ptr<c10d::Work> work_of(int rank, c10d::OpType type, Works inner, std::function<void()> finish,
                                       std::vector<at::Tensor> results, std::shared_ptr<const Watched> watched);

// Wait for the operations that were issued on this NPU, as a device synchronisation does: HCCL's run on its streams.
void synchronize_collectives(int device);

// Several operations that were issued together.
c10::intrusive_ptr<c10d::Work> coalesced_work(int rank, Works works);

}  // namespace virtual_ascend
