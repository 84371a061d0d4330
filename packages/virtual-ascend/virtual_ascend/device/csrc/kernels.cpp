// The operators that must know where memory is: factories, views, copies, resizing, and dropout.
#include "alias.h"
#include "allocator.h"
#include "copies.h"
#include "formats.h"
#include "graph.h"
#include "ledger.h"
#include "phantom.h"
#include "pool.h"
#include "generator.h"
#include "runtime.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

namespace virtual_ascend {
namespace {

using at::IntArrayRef;
using at::Tensor;
template <typename T>
using optional = std::optional<T>;

const c10::DispatchKeySet kNpuKeys(kNpuKey);

// torch_npu's own message and error number.
constexpr const char* kNotSupported = " (ERR01007 OPS feature not supported)";

int device_of(optional<c10::Device> device, optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  initialise();
  return device.has_value() ? resolve(*device) : current_device();
}

// With torch.use_deterministic_algorithms, uninitialised memory holds NaN or the largest number.
bool fills() { return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory(); }

Tensor filled(Tensor fresh) {
  if (C10_UNLIKELY(fills())) at::native::fill_empty_deterministic_(fresh);
  return fresh;
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>, optional<c10::Device> device,
             optional<bool> pin_memory, optional<at::MemoryFormat> format) {
  DeviceScope scope(device_of(device, pin_memory));
  phantom::Making making(c10::dtype_or_default(dtype));
  return filled(at::detail::empty_generic(size, npu_allocator(), kNpuKeys, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout>,
                     optional<c10::Device> device, optional<bool> pin_memory) {
  DeviceScope scope(device_of(device, pin_memory));
  phantom::Making making(c10::dtype_or_default(dtype));
  return filled(at::detail::empty_strided_generic(size, stride, npu_allocator(), kNpuKeys, c10::dtype_or_default(dtype)));
}

// Autograd's zeros without memory; here they have memory like any other tensor.
Tensor zeros(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout, optional<c10::Device> device,
             optional<bool> pin_memory) {
  auto out = empty(size, dtype, layout, device, pin_memory, std::nullopt);
  return out.zero_();
}

// The host kernel's shape check, where that kernel is not called.
void check_broadcast(const Tensor& source, const Tensor& target) {
  const auto shape = at::infer_size_dimvector(target.sizes(), source.sizes());
  TORCH_CHECK(target.sizes() == IntArrayRef(shape), "output with shape ", target.sizes(), " doesn't match the broadcast shape ",
              IntArrayRef(shape));
}

// Whether a copy was only recorded. A real capture copies nothing; here, copies to the NPU run and are undone
// later.
bool copy_in_graph(const Tensor& source, const Tensor& target, bool non_blocking) {
  const bool to_host = target.device().type() == c10::kCPU;
  const auto device = (to_host ? source : target).device().index();
  graph::check_order(device);
  if (!to_host) graph::save(target);
  if (!graph::recording(device)) return false;
  const bool stays = source.device().type() == target.device().type();
  if (!stays && !non_blocking)
    graph::refuse_synchronising(device, "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream)",
                                to_host ? "a blocking copy to the host" : "a blocking copy from the host");
  if (!to_host) cpu_alias(target).copy_(cpu_alias(source));
  graph::add_copy(source, target);
  return true;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  if (C10_UNLIKELY(ledger::on())) {
    const auto bytes = static_cast<double>(target.nbytes());
    if (source.is_cpu() && target.is_cpu()) {
      // The host's work is not an NPU's.
    } else if (source.device().type() == target.device().type()) {
      ledger::operated("copy", 0, bytes + static_cast<double>(source.nbytes()));
    } else {
      ledger::copied(bytes);
    }
  }
  if (C10_UNLIKELY(phantom::is(source) || phantom::is(target))) {
    check_broadcast(source, target);
    for (const auto& each : {source, target})
      if (each.device().type() == kNpu) pool::check_mapped(each.storage().data());
    phantom::clear(target);
    return target;
  }
  const bool from_host = source.device().type() == c10::kCPU;
  const bool to_host = target.device().type() == c10::kCPU;
  if (C10_UNLIKELY(formats::any()) && !to_host && formats::is_fractal(target)) {
    check_broadcast(source, target);
    formats::copy_into(target, source, cpu_alias(source));
    return target;
  }
  if (C10_UNLIKELY(graph::under_way()) && copy_in_graph(source, target, non_blocking)) return target;
  if (copies::delayed() && from_host != to_host && target.numel() > 0) {
    if (non_blocking) {
      copies::delay(source, target);
      return target;
    }
    copies::synchronize_current((from_host ? target : source).device().index());
  }
  cpu_alias(target).copy_(cpu_alias(source), non_blocking);
  if (C10_UNLIKELY(formats::any())) formats::copied(source, target);
  return target;
}

bool same_bytes(const Tensor& to, const Tensor& from) {
  return to.device().type() == kNpu && to.device() == from.device() && !phantom::is(to) && !phantom::is(from) && to.scalar_type() == from.scalar_type() &&
         to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous() && to.is_conj() == from.is_conj() &&
         to.is_neg() == from.is_neg() && !formats::is_fractal(to) && !formats::is_fractal(from);
}

// Copies without a dispatch for each tensor, like the NPU's fused kernel; only copies that change dtype or layout go
// one by one.
void foreach_copy(at::TensorList self, at::TensorList sources, bool non_blocking) {
  TORCH_CHECK(self.size() == sources.size(), "Tensor lists must have the same number of tensors, got ", self.size(), " and ",
              sources.size());
  for (size_t i = 0; i < self.size(); ++i) {
    if (C10_LIKELY(!graph::under_way()) && same_bytes(self[i], sources[i])) {
      copies::before_operation(self[i].device().index());
      pool::check_mapped(self[i].storage().data());
      pool::check_mapped(sources[i].storage().data());
      std::memmove(self[i].data_ptr(), sources[i].const_data_ptr(), self[i].nbytes());
    } else {
      self[i].copy_(sources[i], non_blocking);
    }
  }
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar(const Tensor& self) {
  if (C10_UNLIKELY(graph::under_way())) {
    graph::check_order(self.device().index());
    graph::refuse_synchronising(self.device().index(), "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream)",
                                "the host reads a number from a tensor");
  }
  copies::synchronize_current(self.device().index());
  if (C10_UNLIKELY(phantom::is(self))) {
    pool::check_mapped(self.storage().data());
    return at::_local_scalar_dense(at::zeros({}, self.options().device(c10::kCPU)));
  }
  return at::_local_scalar_dense(cpu_alias(self));
}

void grow_storage(const Tensor& self, int64_t elements) {
  const auto needed = static_cast<size_t>((elements + self.storage_offset()) * self.dtype().itemsize());
  const auto& storage = self.storage();
  if (elements == 0 || storage.nbytes() >= needed) return;
  phantom::Making making(self.scalar_type());
  auto fresh = allocate_on(self.device().index(), needed);
  if (storage.nbytes() > 0 && !phantom::is(fresh.get()) && !phantom::is(storage)) std::memcpy(fresh.get(), storage.data(), storage.nbytes());
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
  storage.unsafeGetStorageImpl()->set_nbytes(needed);
}

const Tensor& resize(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  int64_t elements = 1;
  for (const auto extent : size) {
    TORCH_CHECK(extent >= 0, "Trying to create tensor with negative dimension ", extent, ": ", size);
    elements *= extent;
  }
  if (size == self.sizes() && !format.has_value()) return self;
  const auto before = static_cast<int64_t>(self.storage().nbytes());
  grow_storage(self, elements);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format.has_value() && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  if (C10_UNLIKELY(fills())) at::native::fill_resize_deterministic_(self, before);
  return self;
}

Tensor& set_storage_offset(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\"");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.data() == nullptr || stride.size() != size.size()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  if (impl->numel() > 0) grow_storage(self, at::detail::computeStorageNbytes(size, self.strides(), 1));
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  at::Storage storage(c10::Storage::use_byte_size_t(), 0, allocate_on(self.device().index(), 0), npu_allocator(), true);
  return set_storage_offset(self, std::move(storage), 0, {0}, {});
}

// As in torch_npu, which has no channels_last (torch_npu/csrc/aten/common/TensorProperties.cpp and ToKernelNpu.cpp).
Tensor contiguous(const Tensor& self, at::MemoryFormat format) {
  if (self.is_contiguous(format)) return self;
  TORCH_CHECK(format == at::MemoryFormat::Contiguous, "NPU contiguous operator only supported contiguous memory format.", kNotSupported);
  return self.clone(format);
}

Tensor to_copy(const Tensor& self, optional<at::ScalarType> dtype, optional<at::Layout> layout, optional<c10::Device> device,
               optional<bool> pin_memory, bool non_blocking, optional<at::MemoryFormat> format) {
  const auto wanted = format.value_or(at::MemoryFormat::Preserve);
  TORCH_CHECK(wanted == at::MemoryFormat::Preserve || wanted == at::MemoryFormat::Contiguous || self.is_contiguous(wanted),
              "Only contiguous_format or preserve_format is supported.", kNotSupported);
  // Also as in torch_npu: `x.double()` of an NPU tensor gives float32 (only factories and the host make float64).
  if (dtype == at::kDouble && !layout.has_value() && !device.has_value()) {
    TORCH_WARN_ONCE("Device do not support double dtype now, dtype cast replace with float.");
    dtype = at::kFloat;
  }
  phantom::FromHost from_host(self.device().is_cpu());
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
}

// Host aliases of the two would have separate storages.
bool is_set_to(const Tensor& self, const Tensor& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() && self.strides() == other.strides();
}

Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
Tensor view(const Tensor& self, IntArrayRef size) { return at::native::view(self, size); }
Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) { return at::native::unfold(self, dim, size, step); }
Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

void record_stream(Tensor&, c10::Stream) {}  // nothing is pending, so memory may be reused at once

// The CPU kernel has no generator argument and would use the host's generator.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  if (!train.value_or(true) || input.numel() == 0) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  const double scale = p == 1 ? 0.0 : 1.0 / (1.0 - p);
  return {input.mul(mask).mul_(scale), mask};
}

Tensor counted(const Tensor& host, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const bool whole = c10::isIntegralType(host.scalar_type(), /*includeBool=*/false);
  return at::histc(whole ? host.to(at::kDouble) : host, bins, min, max).to(host.scalar_type());
}

// The CPU only counts floating-point numbers; the NPU's operator (aclnnHistc) also counts integers, in their own dtype.
Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const bool has_values = !phantom::is(self);
  if (C10_UNLIKELY(graph::under_way()) && has_values && graph::recording(self.device().index()))
    return graph::compute("aten::histc", {self}, [=](const graph::Tensors& host) { return graph::Tensors{counted(host[0], bins, min, max)}; })[0];
  const auto host = has_values ? cpu_alias(self) : at::zeros({1}, self.options().device(c10::kCPU));
  const auto counts = counted(host, bins, min, max);
  if (!has_values) return at::zeros({bins}, self.options());
  return npu_alias(counts, self.device().index());
}

// The copy of a phantom on the host, or into one.
Tensor& copy_on_host(Tensor& self, const Tensor& source, bool non_blocking) {
  copy_from(source, self, non_blocking);
  return self;
}

Tensor pin_memory(const Tensor& self, optional<c10::Device>) {
  return at::detail::empty_strided_generic(self.sizes(), self.strides(), phantom::host_allocator(/*pinned=*/true),
                                           phantom::keys_of(self.storage()), self.scalar_type());
}

// Lets `.data = ` and `Module.to` move a parameter between host and NPU in place, because both are plain dense tensors.
bool compatible_shallow_copy(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_nested() && tensor.key_set().has_backend(tensor.device().is_cpu() ? c10::BackendComponent::CPUBit : c10::BackendComponent::PrivateUse1Bit);
  };
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set()) || (dense(self) && dense(from));
}

}  // namespace
}  // namespace virtual_ascend

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &virtual_ascend::empty);
  m.impl("empty_strided", &virtual_ascend::empty_strided);
  m.impl("_efficientzerotensor", &virtual_ascend::zeros);
  m.impl("_copy_from", &virtual_ascend::copy_from);
  m.impl("_foreach_copy_", &virtual_ascend::foreach_copy);
  m.impl("_copy_from_and_resize", &virtual_ascend::copy_from_and_resize);
  m.impl("_local_scalar_dense", &virtual_ascend::local_scalar);
  m.impl("resize_", &virtual_ascend::resize);
  m.impl("set_.source_Storage", &virtual_ascend::set_storage);
  m.impl("set_.source_Storage_storage_offset", &virtual_ascend::set_storage_offset);
  m.impl("set_.source_Tensor", &virtual_ascend::set_tensor);
  m.impl("set_", &virtual_ascend::set_nothing);
  m.impl("contiguous", &virtual_ascend::contiguous);
  m.impl("_to_copy", &virtual_ascend::to_copy);
  m.impl("is_set_to", &virtual_ascend::is_set_to);
  m.impl("as_strided", &virtual_ascend::as_strided);
  m.impl("view", &virtual_ascend::view);
  m.impl("unfold", &virtual_ascend::unfold);
  m.impl("_reshape_alias", &virtual_ascend::reshape_alias);
  m.impl("record_stream", &virtual_ascend::record_stream);
  m.impl("histc", &virtual_ascend::histc);
  m.impl("native_dropout", &virtual_ascend::native_dropout);
  m.impl("_has_compatible_shallow_copy_type", &virtual_ascend::compatible_shallow_copy);
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m) {
  m.impl("copy_", &virtual_ascend::copy_on_host);
  m.impl("_pin_memory", &virtual_ascend::pin_memory);
  m.impl("_has_compatible_shallow_copy_type", &virtual_ascend::compatible_shallow_copy);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("contiguous", &virtual_ascend::contiguous);  // composed of operators that have gradients
  m.impl("_has_compatible_shallow_copy_type", &virtual_ascend::compatible_shallow_copy);
}

// The copy kernel itself conjugates and negates. The default for these keys is a copy, which would recurse forever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
