// What HCCL takes: the checks of torch_npu 2.7.1's ProcessGroupHCCL.cpp and HCCLUtils.cpp on an Ascend 910B, with their
// words, so that what fails there fails here.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace virtual_ascend {

// A reduction: its operation and the dtype, in the operation that torch_npu calls `function`. If `casts`, torch_npu
// reduces bool and uint8 as int32.
void check_reduction(const char* function, const c10d::ReduceOp& op, const at::Tensor& tensor, bool casts);

void check_contiguous(const at::Tensor& tensor);
void check_contiguous(const std::vector<at::Tensor>& tensors);

// What gloo may move as it moves any bytes: tensors over the same memory, of a dtype that gloo knows. Raises for a dtype
// that HCCL does not know.
at::Tensor moved(const at::Tensor& tensor);
std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors);

// What gloo may reduce: bool is summed as numbers in HCCL (true + true is true), and gloo does not know int16. Of such a
// tensor it is a copy in int32, of any other the tensor itself.
at::Tensor reducible_by_gloo(const at::Tensor& tensor);

}  // namespace virtual_ascend
