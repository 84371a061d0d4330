// Convolutions: ATen asks a device that it does not know for these two operators, whose CPU kernel only raises.
#include "alias.h"
#include "phantom.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace virtual_ascend {
namespace {

using at::IntArrayRef;
using at::Tensor;

void check_device(const Tensor& input, const Tensor& other) {
  TORCH_CHECK(!other.defined() || other.device() == input.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ", input.device(), " and ", other.device(),
              "! (convolution)");
}

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  const Tensor shift = bias.value_or(Tensor());
  check_device(input, weight);
  check_device(input, shift);
  if (C10_UNLIKELY(phantom::on())) {
    TORCH_CHECK(input.scalar_type() == weight.scalar_type() && (!shift.defined() || shift.scalar_type() == weight.scalar_type()),
                "Input type (", input.scalar_type(), "), weight type (", weight.scalar_type(), ") and bias type should be the same");
    phantom::Shapes shapes;
    const auto shape = at::convolution(shapes.of(input), shapes.of(weight), shapes.of(shift), stride, padding, dilation, transposed,
                                       output_padding, groups);
    if (phantom::is(input) || phantom::is(weight) || phantom::is(shift) || phantom::wanted(shape))
      return phantom::like(shape, input.device().index());
  }
  const auto out = at::convolution(cpu_alias(input), cpu_alias(weight), cpu_alias(shift), stride, padding, dilation, transposed,
                                   output_padding, groups);
  return npu_alias(out, input.device().index());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  check_device(input, gradient);
  check_device(input, weight);
  const std::vector<int64_t> shift{gradient.size(1)};
  if (C10_UNLIKELY(phantom::is(gradient) || phantom::is(input) || phantom::is(weight))) {
    // Each gradient looks like what it is the gradient of.
    const auto zeros_if = [&](bool asked, IntArrayRef size) { return asked ? at::zeros(size, input.options()) : Tensor(); };
    return {zeros_if(wanted[0], input.sizes()), zeros_if(wanted[1], weight.sizes()), zeros_if(wanted[2], shift)};
  }
  const auto [to_input, to_weight, to_bias] =
      at::convolution_backward(cpu_alias(gradient), cpu_alias(input), cpu_alias(weight), IntArrayRef(shift), stride, padding, dilation,
                               transposed, output_padding, groups, wanted);
  const auto give = [device = input.device().index()](const Tensor& tensor) { return npu_alias(tensor, device); };
  return {give(to_input), give(to_weight), give(to_bias)};
}

}  // namespace
}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &virtual_ascend::convolution);
  m.impl("convolution_backward_overrideable", &virtual_ascend::convolution_backward);
}
