// The checks of HCCL's arguments, with the messages of torch_npu 2.7.1's ProcessGroupHCCL.cpp and HCCLUtils.cpp on an
// Ascend 910B, so that a call that fails there fails here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace virtual_ascend {

// Checks a reduction's operation and dtype; `function` is torch_npu's name of the collective. If `casts`, torch_npu
// reduces bool and uint8 as int32.
void check_reduction(const char* function, const c10d::ReduceOp& op, const at::Tensor& tensor, bool casts);

void check_contiguous(const at::Tensor& tensor);
void check_contiguous(const std::vector<at::Tensor>& tensors);

// Returns a tensor over the same memory in a dtype that gloo can move as plain bytes. Raises for a dtype that HCCL does
// not know.
at::Tensor moved(const at::Tensor& tensor);
std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors);

// Returns a tensor that gloo can reduce: an int32 copy of bool (HCCL sums it as numbers: true + true is true) and of
// int16 (which gloo does not know), otherwise the tensor itself.
at::Tensor reducible_by_gloo(const at::Tensor& tensor);

}  // namespace virtual_ascend
