// LSTM and GRU cells: for a device that it does not know, ATen calls these fused operators, which the CPU lacks. They
// are composed of operators that have gradients.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace virtual_ascend {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

Tensor with(const Tensor& gates, const Bias& bias) { return bias.has_value() && bias->defined() ? gates + *bias : gates; }

// The gates are input, forget, cell, output: [B, 4 H]. The third result is a workspace that a separate backward would
// use.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const Bias& input_bias, const Bias& hidden_bias) {
  const auto gates = with(input_gates, input_bias) + with(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const auto cy = parts[1].sigmoid() * cx + parts[0].sigmoid() * parts[2].tanh();
  return {parts[3].sigmoid() * cy.tanh(), cy, gates.detach()};
}

// The gates are reset, update, new: [B, 3 H].
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const Bias& input_bias,
                                    const Bias& hidden_bias) {
  const auto inputs = with(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (inputs[0] + hidden[0]).sigmoid();
  const auto update = (inputs[1] + hidden[1]).sigmoid();
  const auto fresh = (inputs[2] + reset * hidden[2]).tanh();
  return {(hx - fresh) * update + fresh, hx.detach()};
}

void define(torch::Library& m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
}

}  // namespace
}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { virtual_ascend::define(m); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { virtual_ascend::define(m); }
