// Phantom memory (VIRTUAL_ASCEND_PHANTOM): a large tensor has a shape, an address, and an entry in the account, but no
// bytes. Once the ledger has started, large host tensors are phantoms, too (host.cpp).
//
// An operator that has a phantom among its tensors, or a large result, is not computed: ATen's Meta kernels give the
// shapes of its results. Small results are real and hold zeros. What depends on values raises an error.
#pragma once

#include "tensors.h"

#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace virtual_ascend::phantom {

// Sets the size in bytes at which memory becomes a phantom; 0 means never.
void set_threshold(int64_t bytes);
int64_t threshold();
bool on();

// Whether memory of this size becomes a phantom. Integers and bools, whose values decide what a program does (tokens,
// masks, a router's choices), stay real up to 64 times that size. The first overload asks about the tensor that is
// being made (see WholeNumbers).
bool wanted(size_t nbytes);
bool wanted(size_t nbytes, c10::ScalarType type);
// The same for a message. Its size is equal on all ranks, wherever their own tensors are.
bool wanted(const at::Tensor& message);

// A scope whose allocations hold numbers of this dtype.
class Making {
 public:
  explicit Making(c10::ScalarType type);
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  bool before_;
};

// A scope whose allocations hold data from the host.
class FromHost {
 public:
  explicit FromHost(bool from_host);
  ~FromHost();
  FromHost(const FromHost&) = delete;
  FromHost& operator=(const FromHost&) = delete;

 private:
  bool before_;
};

// Addresses that no CPU accepts: reading or writing there crashes instead of giving a wrong number.
constexpr uintptr_t kFirst = uintptr_t{1} << 60;
void* new_address(size_t nbytes);
inline bool is(const void* data) { return (reinterpret_cast<uintptr_t>(data) >> 60) == 1; }
void free_on_host(void* context);
inline bool is(const c10::Storage& storage) {
  return storage && (is(storage.data()) || storage.data_ptr().get_deleter() == &free_on_host);
}
inline bool is(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.device().type() == kNpu || tensor.is_cpu()) && tensor.has_storage() && is(tensor.storage());
}

// Fills a tensor whose source is a phantom with zeros.
void clear(const at::Tensor& tensor);

// Replaces a phantom in a message that is small enough to be sent: zeros on the host.
at::Tensor stand_in(const at::Tensor& tensor);
std::vector<at::Tensor> stand_in(const std::vector<at::Tensor>& tensors);

// Returns a tensor of the shape and dtype of `shape` on an NPU or the host: a phantom, or zeros.
at::Tensor like(const at::Tensor& shape, c10::Device device);

// The key of phantoms on the host. Nothing else in torch uses it, and it comes before the CPU's key.
constexpr c10::DispatchKey kHostKey = c10::DispatchKey::CustomRNGKeyId;
// Returns the keys of tensors over this storage of an NPU or the host.
c10::DispatchKeySet keys_of(const c10::Storage& storage);

// Makes phantoms of large host tensors from now on.
void take_host();
// Returns the allocator that makes phantoms on the host of any size.
c10::Allocator* host_allocator(bool pinned);

// Meta tensors that stand for one call's tensors on the NPU or on the host; tensors that share a storage share one here,
// too.
class Shapes {
 public:
  explicit Shapes(c10::DeviceType on = kNpu) : on_(on) {}
  at::Tensor of(const at::Tensor& tensor);

 private:
  c10::DeviceType on_;
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> storages_;
};

[[noreturn]] void refuse(const std::string& what);

}  // namespace virtual_ascend::phantom
