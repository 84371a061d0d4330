// The mean in half precision: torch 2.5's CPU kernel does not write it into a given output tensor.
#include "runtime.h"

#if !VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 6)
#include "alias.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <torch/library.h>

namespace virtual_ascend {
namespace {

at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype,
                     at::Tensor& out) {
  const auto found = at::mean(cpu_alias(self), dim, keepdim, dtype);
  if (out.sizes() != found.sizes()) out.resize_(found.sizes());
  return out.copy_(npu_alias(found, self.device().index()));
}

}  // namespace
}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("mean.out", &virtual_ascend::mean_out); }
#endif
