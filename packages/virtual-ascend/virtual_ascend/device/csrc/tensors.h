// Tensors of the device `npu` and helpers for operator arguments, for our own device and for the one of torch_npu's
// wheel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

#include <optional>
#include <utility>

namespace virtual_ascend {

constexpr c10::DeviceType kNpu = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKey kNpuKey = c10::DispatchKey::PrivateUse1;

// Returns a tensor of another device over `storage` that otherwise equals `like`.
inline at::Tensor over(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  // Type promotion reads this flag.
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

inline at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  return over(std::move(storage), c10::DispatchKeySet(key), like);
}

inline bool takes_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->expectRef<c10::OptionalType>().getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// Calls `visit` for each tensor in one argument.
template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& element : value.toOptionalTensorList()) {
      const std::optional<at::Tensor> tensor = element;
      if (tensor.has_value()) visit(*tensor);
    }
  }
}

}  // namespace virtual_ascend
