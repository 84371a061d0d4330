// Phantoms on the host: memory of a process that is never written to, and so takes no memory. It reads as zeros.
//
// They have a dispatch key of their own, whose operators run only on shapes (fallback.cpp).
#include "allocator.h"
#include "ledger.h"
#include "phantom.h"
#include "runtime.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <sys/mman.h>

#include <cstring>

namespace virtual_ascend::phantom {
namespace {

template <typename T>
using optional = std::optional<T>;

struct HostBlock {
  void* data;
  size_t nbytes;
  bool pinned;
};

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(bool pinned) : pinned_(pinned) {}

#if VIRTUAL_ASCEND_TORCH_AT_LEAST(2, 3)
  c10::DataPtr allocate(size_t nbytes) override {
#else
  c10::DataPtr allocate(size_t nbytes) const override {
#endif
    if (nbytes == 0) return {nullptr, nullptr, &free_on_host, c10::Device(c10::kCPU)};
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "cannot reserve ", nbytes, " bytes of addresses for a phantom on the host: ", std::strerror(errno));
    if (pinned_) pin(data, nbytes);
    ledger::allocated_on_host(data, nbytes);
    return {data, new HostBlock{data, nbytes, pinned_}, &free_on_host, c10::Device(c10::kCPU)};
  }
  void copy_data(void* dest, const void* src, std::size_t count) const override { std::memcpy(dest, src, count); }

 private:
  bool pinned_;
};

bool wanted_on_host(size_t nbytes, c10::ScalarType type) {
  FromHost from_host(true);
  return wanted(nbytes, type);
}

at::Tensor empty(at::IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout, optional<c10::Device> device,
                 optional<bool> pin_memory, optional<at::MemoryFormat> format) {
  const auto type = c10::dtype_or_default(dtype);
  if (!wanted_on_host(at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type)), type))
    return at::native::empty_cpu(size, dtype, layout, device, pin_memory, format);
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  return at::detail::empty_generic(size, host_allocator(pin_memory.value_or(false)), keys.add(kHostKey), type, format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, optional<at::ScalarType> dtype, optional<at::Layout> layout,
                         optional<c10::Device> device, optional<bool> pin_memory) {
  const auto type = c10::dtype_or_default(dtype);
  if (!wanted_on_host(at::detail::computeStorageNbytes(size, stride, c10::elementSize(type)), type))
    return at::native::empty_strided_cpu(size, stride, dtype, layout, device, pin_memory);
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  return at::detail::empty_strided_generic(size, stride, host_allocator(pin_memory.value_or(false)), keys.add(kHostKey), type);
}

// torch warns about each kernel that is replaced.
struct Silence final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void free_on_host(void* context) {
  if (context == nullptr) return;
  auto* block = static_cast<HostBlock*>(context);
  ledger::freed(block->data);
  if (block->pinned) unpin(block->data);
  munmap(block->data, block->nbytes);
  delete block;
}

c10::Allocator* host_allocator(bool pinned) {
  static auto* pageable = new HostAllocator(false);
  // torch calls no memory pinned before it has initialised the accelerator, as it does for the first pinned tensor.
  static auto* locked = [] {
    at::empty({0}, at::TensorOptions().pinned_memory(true));
    return new HostAllocator(true);
  }();
  return pinned ? locked : pageable;
}

void take_host() {
  static const auto* library = [] {
    Silence silence;
    c10::WarningUtils::WarningHandlerGuard guard(&silence);
    auto* cpu = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
    cpu->impl("empty.memory_format", &empty);
    cpu->impl("empty_strided", &empty_strided);
    return cpu;
  }();
  (void)library;
}

}  // namespace virtual_ascend::phantom
