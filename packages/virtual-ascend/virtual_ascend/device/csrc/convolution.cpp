// Convolutions: for a device that it does not know, ATen calls these two operators, whose CPU kernel only raises.
#include "alias.h"
#include "graph.h"
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
      return phantom::like(shape, input.device());
  }
  const auto compute = [transposed, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                        output_padding = output_padding.vec(), groups](const graph::Tensors& host) {
    return graph::Tensors{at::convolution(host[0], host[1], host[2], stride, padding, dilation, transposed, output_padding, groups)};
  };
  if (graph::any_is_recording({input})) return graph::compute("aten::convolution", {input, weight, shift}, compute)[0];
  return npu_alias(compute({cpu_alias(input), cpu_alias(weight), cpu_alias(shift)})[0], input.device().index());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                                        IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  check_device(input, gradient);
  check_device(input, weight);
  const std::vector<int64_t> shift{gradient.size(1)};
  if (C10_UNLIKELY(phantom::is(gradient) || phantom::is(input) || phantom::is(weight))) {
    // Each gradient has the shape of its tensor.
    const auto zeros_if = [&](bool asked, IntArrayRef size) { return asked ? at::zeros(size, input.options()) : Tensor(); };
    return {zeros_if(wanted[0], input.sizes()), zeros_if(wanted[1], weight.sizes()), zeros_if(wanted[2], shift)};
  }
  const auto compute = [shift, transposed, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                        output_padding = output_padding.vec(), groups, wanted](const graph::Tensors& host) {
    const auto [to_input, to_weight, to_bias] = at::convolution_backward(host[0], host[1], host[2], IntArrayRef(shift), stride, padding,
                                                                         dilation, transposed, output_padding, groups, wanted);
    return graph::Tensors{to_input, to_weight, to_bias};
  };
  if (graph::any_is_recording({input})) {
    const auto made = graph::compute("aten::convolution_backward", {gradient, input, weight}, compute);
    return {made[0], made[1], made[2]};
  }
  const auto made = compute({cpu_alias(gradient), cpu_alias(input), cpu_alias(weight)});
  const auto give = [&made, device = input.device().index()](size_t which) { return npu_alias(made[which], device); };
  return {give(0), give(1), give(2)};
}

}  // namespace
}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &virtual_ascend::convolution);
  m.impl("convolution_backward_overrideable", &virtual_ascend::convolution_backward);
}
