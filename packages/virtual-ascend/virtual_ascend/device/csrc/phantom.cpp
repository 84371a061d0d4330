#include "phantom.h"

#include "alias.h"
#include "allocator.h"
#include "pool.h"
#include "runtime.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>

namespace virtual_ascend::phantom {
namespace {

constexpr size_t kOfWholeNumbers = 64;
constexpr size_t kAlignment = 512;

std::atomic<int64_t> g_threshold{0};
std::atomic<uintptr_t> g_next{kFirst};
thread_local bool t_whole = false;
thread_local bool t_from_host = false;

// Programs pack numbers of any dtype into bytes. Bytes that come from the host are part of a batch: tokens and masks.
bool is_whole(c10::ScalarType type) {
  return type == at::kBool || type == at::kShort || type == at::kInt || type == at::kLong || (type == at::kByte && t_from_host);
}

bool wanted(size_t nbytes, bool whole) {
  const auto least = static_cast<size_t>(g_threshold.load(std::memory_order_relaxed));
  return least > 0 && nbytes >= (whole ? least * kOfWholeNumbers : least);
}

}  // namespace

void set_threshold(int64_t bytes) { g_threshold = bytes; }
int64_t threshold() { return g_threshold; }
bool on() { return g_threshold.load(std::memory_order_relaxed) > 0; }

bool wanted(size_t nbytes) { return wanted(nbytes, t_whole); }
bool wanted(size_t nbytes, c10::ScalarType type) { return wanted(nbytes, is_whole(type)); }
bool wanted(const at::Tensor& message) { return wanted(message.nbytes(), message.scalar_type()); }

Making::Making(c10::ScalarType type) : before_(t_whole) { t_whole = is_whole(type); }
Making::~Making() { t_whole = before_; }

FromHost::FromHost(bool from_host) : before_(t_from_host) { t_from_host = from_host; }
FromHost::~FromHost() { t_from_host = before_; }

void* new_address(size_t nbytes) {
  const auto size = (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  const auto address = g_next.fetch_add(size + kAlignment);
  TORCH_CHECK(is(reinterpret_cast<void*>(address + size)), "this process has used up all addresses for phantom memory");
  return reinterpret_cast<void*>(address);
}

void clear(const at::Tensor& tensor) {
  if (!is(tensor) && tensor.numel() > 0) cpu_alias(tensor).zero_();
}

at::Tensor stand_in(const at::Tensor& tensor) {
  return is(tensor) ? at::zeros(tensor.sizes(), tensor.options().device(c10::kCPU)) : tensor;
}

std::vector<at::Tensor> stand_in(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size());
  for (const auto& tensor : tensors) out.push_back(stand_in(tensor));
  return out;
}

c10::DispatchKeySet keys_of(const c10::Storage& storage) {
  if (storage.device().type() == kNpu) return c10::DispatchKeySet(kNpuKey);
  const c10::DispatchKeySet host(c10::DispatchKey::CPU);
  return is(storage) ? host.add(kHostKey) : host;
}

at::Tensor like(const at::Tensor& shape, c10::Device device) {
  const auto nbytes = shape.storage().nbytes();
  FromHost from_host(device.is_cpu());
  Making making(shape.scalar_type());
  auto* allocator = device.is_cpu() ? (wanted(nbytes) ? host_allocator(/*pinned=*/false) : c10::GetCPUAllocator()) : npu_allocator();
  auto data = device.is_cpu() ? allocator->allocate(nbytes) : allocate_on(device.index(), nbytes);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, std::move(data), allocator,
                                                             /*resizable=*/true));
  if (nbytes > 0 && !is(storage)) std::memset(const_cast<void*>(storage.data()), 0, nbytes);
  const auto keys = keys_of(storage);
  return over(std::move(storage), keys, shape);
}

at::Tensor Shapes::of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != on_) return tensor;
  pool::check_mapped(tensor.storage().data());
  auto* key = tensor.storage().unsafeGetStorageImpl();
  for (const auto& [known, storage] : storages_)
    if (known == key) return over(storage, c10::DispatchKey::Meta, tensor);
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
                                                             c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                                             c10::GetAllocator(c10::kMeta), /*resizable=*/true));
  storages_.emplace_back(key, storage);
  return over(std::move(storage), c10::DispatchKey::Meta, tensor);
}

void refuse(const std::string& what) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, what, " needs the values of a phantom tensor, but tensors of ", threshold() / (1024.0 * 1024.0),
                              " MiB and more have only shapes. Raise VIRTUAL_ASCEND_PHANTOM, or skip this step (virtual Ascend)");
}

}  // namespace virtual_ascend::phantom
