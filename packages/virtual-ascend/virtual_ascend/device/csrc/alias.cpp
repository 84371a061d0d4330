#include "alias.h"

#include "allocator.h"
#include "copies.h"
#include "formats.h"
#include "graph.h"
#include "phantom.h"
#include "pool.h"
#include "runtime.h"
#include "tensors.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace virtual_ascend {
namespace {

// The context is a reference to the storage itself, which saves every operator one allocation.
void drop_storage(void* context) { c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(context)).reset(); }

struct Lent {
  c10::Storage storage;
  std::thread::id lender;
};

struct Dropped {
  std::mutex mutex;
  std::vector<c10::Storage> storages;
};

Dropped& dropped() {
  static auto* it = new Dropped();  // never destroyed: the rest ends with the process
  return *it;
}

std::atomic<bool> g_dropped{false};

void drop_lent(void* context) {
  auto* lent = static_cast<Lent*>(context);
  if (std::this_thread::get_id() != lent->lender) {
    std::lock_guard<std::mutex> lock(dropped().mutex);
    dropped().storages.push_back(std::move(lent->storage));
    g_dropped = true;
  }
  delete lent;
}

// Checks that the memory can be read or written now.
void check_values(const at::Tensor& tensor) {
  copies::before_operation(tensor.device().index());
  graph::check_reference(tensor.storage());
  const void* data = tensor.storage().data();
  if (C10_UNLIKELY(phantom::is(data))) phantom::refuse("an operation");
  pool::check_mapped(data);
}

at::Tensor cpu_over(const at::Tensor& tensor, void* context, c10::DeleterFnPtr drop) {
  const auto& storage = tensor.storage();
  c10::DataPtr pointer(const_cast<void*>(storage.data()), context, drop, c10::Device(c10::kCPU));
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                    std::move(pointer), c10::GetCPUAllocator(), /*resizable=*/true);
  return over(c10::Storage(std::move(impl)), c10::DispatchKey::CPU, tensor);
}

}  // namespace

at::Tensor cpu_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) return tensor;
  check_values(tensor);
  if (C10_UNLIKELY(formats::any()) && formats::is_fractal(tensor)) return formats::values(tensor);
  return cpu_over(tensor, c10::Storage(tensor.storage()).unsafeReleaseStorageImpl(), &drop_storage);
}

at::Tensor lent_alias(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) return tensor;
  check_values(tensor);
  auto alias = cpu_over(tensor, new Lent{tensor.storage(), std::this_thread::get_id()}, &drop_lent);
  return C10_UNLIKELY(formats::any()) && formats::is_fractal(tensor) ? formats::as_it_lies(alias) : alias;
}

void free_dropped() {
  if (!g_dropped.exchange(false)) return;
  std::vector<c10::Storage> storages;  // freed after unlocking, because freeing may run Python
  std::lock_guard<std::mutex> lock(dropped().mutex);
  storages.swap(dropped().storages);
}

at::Tensor npu_alias(const at::Tensor& tensor, int device) {
  if (!tensor.defined() || tensor.device().type() != c10::kCPU) return tensor;
  auto impl = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
                                                    adopt(tensor.storage(), device), npu_allocator(), /*resizable=*/true);
  return over(c10::Storage(std::move(impl)), kNpuKey, tensor);
}

void move_storage(const at::Tensor& npu, const at::Tensor& cpu) {
  TORCH_CHECK(npu.device().type() == kNpu && cpu.device().type() == c10::kCPU, "expected an NPU tensor and a host tensor; found ",
              npu.device(), " and ", cpu.device());
  const auto& from = npu.storage();
  TORCH_CHECK(cpu.storage().nbytes() >= from.nbytes(), "expected at least ", from.nbytes(), " bytes; found ", cpu.storage().nbytes());
  copies::synchronize_device(npu.device().index());
  pool::check_mapped(from.data());
  if (phantom::is(from)) phantom::refuse("moving memory");
  if (from.nbytes() > 0) std::memcpy(const_cast<void*>(cpu.storage().data()), from.data(), from.nbytes());
  graph::moved(from.data(), cpu.storage().data());
  formats::moved(from.data(), cpu.storage().data());
  from.unsafeGetStorageImpl()->set_data_ptr_noswap(adopt(cpu.storage(), npu.device().index()));
}

}  // namespace virtual_ascend
