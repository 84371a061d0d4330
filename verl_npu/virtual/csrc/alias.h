// Zero-copy views of one memory from two devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace verl_npu {

// A CPU tensor over the memory of an NPU tensor; keeps that memory alive. Anything else is returned as it is.
at::Tensor cpu_alias(const at::Tensor& tensor);

// An NPU tensor over the memory of a CPU tensor, charged to `device`.
at::Tensor npu_alias(const at::Tensor& tensor, int device);

}  // namespace verl_npu
