// The cells of LSTM and GRU: on an accelerator ATen computes a step's gates by one operator each, which the CPU lacks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

namespace verl_npu {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Half precision is computed in float32 and rounded once, as fused kernels do.
Tensor wide(const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

Tensor plus(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? wide(gates) + wide(*bias) : wide(gates);
}

// Derivatives of sigmoid and tanh, from their results.
Tensor through_sigmoid(const Tensor& gradient, const Tensor& result) { return gradient * (1 - result) * result; }
Tensor through_tanh(const Tensor& gradient, const Tensor& result) { return gradient * (1 - result * result); }

Tensor to_bias(const Tensor& gates, bool has_bias) { return has_bias ? gates.sum(0, false) : Tensor(); }

// The workspace holds the four gates as they were applied, for the gradient.
std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                        const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates = (plus(input_gates, input_bias) + plus(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto in = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]), cell = at::tanh(gates[2]), out = at::sigmoid(gates[3]);
  const auto cy = forget * wide(cx) + in * cell;
  const auto type = cx.scalar_type();
  return {(out * at::tanh(cy)).to(type), cy.to(type), at::cat({in, forget, cell, out}, 1).to(type)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const OptionalTensor& grad_hy, const OptionalTensor& grad_cy, const Tensor& cx,
                                                 const Tensor& cy, const Tensor& workspace, bool has_bias) {
  const bool from_h = grad_hy.has_value() && grad_hy->defined(), from_c = grad_cy.has_value() && grad_cy->defined();
  if (!from_h && !from_c) return {};
  const auto gates = wide(workspace).chunk(4, 1);
  const auto &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const auto bent = at::tanh(wide(cy));
  const auto to_h = from_h ? wide(*grad_hy) : at::Tensor(bent * 0);
  auto to_c = through_tanh(to_h * out, bent);
  if (from_c) to_c = to_c + wide(*grad_cy);
  const auto type = workspace.scalar_type();
  const auto grad_gates = at::cat({through_sigmoid(to_c * cell, in), through_sigmoid(to_c * wide(cx), forget), through_tanh(to_c * in, cell),
                                   through_sigmoid(to_h * bent, out)}, 1);
  return {grad_gates.to(type), (to_c * forget).to(type), to_bias(grad_gates.to(type), has_bias)};
}

// The workspace holds the three gates, the state before, and the hidden part of the new one.
std::tuple<Tensor, Tensor> gru(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const OptionalTensor& input_bias,
                               const OptionalTensor& hidden_bias) {
  const auto from_input = plus(input_gates, input_bias).chunk(3, 1), from_hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = at::sigmoid(from_input[0] + from_hidden[0]), keep = at::sigmoid(from_input[1] + from_hidden[1]);
  const auto fresh = at::tanh(from_input[2] + reset * from_hidden[2]);
  const auto before = wide(hx);
  const auto type = hx.scalar_type();
  return {((before - fresh) * keep + fresh).to(type), at::cat({reset, keep, fresh, before, from_hidden[2]}, 1).to(type)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const auto saved = wide(workspace).chunk(5, 1);
  const auto &reset = saved[0], &keep = saved[1], &fresh = saved[2], &before = saved[3], &hidden = saved[4];
  const auto gradient = wide(grad_hy);
  const auto to_keep = through_sigmoid(gradient * (before - fresh), keep);
  const auto to_fresh = through_tanh(gradient * (1 - keep), fresh);
  const auto to_reset = through_sigmoid(to_fresh * hidden, reset);
  const auto type = workspace.scalar_type();
  const auto to_input = at::cat({to_reset, to_keep, to_fresh}, 1).to(type);
  const auto to_hidden = at::cat({to_reset, to_keep, to_fresh * reset}, 1).to(type);
  return {to_input, to_hidden, (gradient * keep).to(type), to_bias(to_input, has_bias), to_bias(to_hidden, has_bias)};
}

}  // namespace
}  // namespace verl_npu

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &verl_npu::lstm);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &verl_npu::lstm_backward);
  m.impl("_thnn_fused_gru_cell", &verl_npu::gru);
  m.impl("_thnn_fused_gru_cell_backward", &verl_npu::gru_backward);
}
