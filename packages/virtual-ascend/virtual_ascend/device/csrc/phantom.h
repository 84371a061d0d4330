// Phantom memory (VIRTUAL_ASCEND_PHANTOM): a large tensor has a shape, an address, and an entry in the account, but no
// bytes.
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
inline bool is(const c10::Storage& storage) { return storage && is(storage.data()); }
inline bool is(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kNpu && tensor.has_storage() && is(tensor.storage()); }

// Fills a tensor whose source is a phantom with zeros. Large host memory is released instead of written.
void clear(const at::Tensor& tensor);

// Replaces a phantom in a message that is small enough to be sent: zeros on the host.
at::Tensor stand_in(const at::Tensor& tensor);
std::vector<at::Tensor> stand_in(const std::vector<at::Tensor>& tensors);

// Returns an NPU tensor of the shape and dtype of `shape`: a phantom, or zeros.
at::Tensor like(const at::Tensor& shape, int device);

// Meta tensors that stand for the tensors of one call; tensors that share a storage share one here, too.
class Shapes {
 public:
  at::Tensor of(const at::Tensor& npu);

 private:
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> storages_;
};

[[noreturn]] void refuse(const std::string& what);

}  // namespace virtual_ascend::phantom
