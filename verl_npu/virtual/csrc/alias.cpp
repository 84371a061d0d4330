#include "alias.h"

#include "allocator.h"
#include "copies.h"
#include "runtime.h"

#include <c10/core/CPUAllocator.h>

namespace verl_npu {
namespace {

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  // Type promotion looks at this flag.
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

void drop_storage(void* context) { delete static_cast<c10::Storage*>(context); }

}  // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) return tensor;
  copies::before_operation(tensor.device().index());
  const auto& storage = tensor.storage();
  void* data = const_cast<void*>(storage.data());
  c10::DataPtr pointer(data, new c10::Storage(storage), &drop_storage, c10::Device(c10::kCPU));
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                    std::move(pointer), c10::GetCPUAllocator(), /*resizable=*/true);
  return over(c10::Storage(std::move(impl)), c10::DispatchKey::CPU, tensor);
}

at::Tensor npu_alias(const at::Tensor& tensor, int device) {
  if (!tensor.defined() || tensor.device().type() != c10::kCPU) return tensor;
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
                                                    adopt(tensor.storage(), device), npu_allocator(), /*resizable=*/true);
  return over(c10::Storage(std::move(impl)), kNpuKey, tensor);
}

}  // namespace verl_npu
