// Phantom memory (VIRTUAL_ASCEND_PHANTOM): a large tensor has a shape, an address and an account, and no bytes.
//
// An operator with a phantom among its tensors, or with a large result, is not computed: ATen's Meta kernels say what its
// results look like. What of these is small is real, and holds zeros. What cannot be known without values raises.
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

// Bytes from which on memory is a phantom; 0: none is.
void set_threshold(int64_t bytes);
int64_t threshold();
bool on();

// Whether memory of this size is a phantom. Whole numbers and truth values, whose content decides what a program does
// (tokens, masks, the choices of a router), are real up to 64 times the size. The first one asks for the tensor that is
// being made, see WholeNumbers.
bool wanted(size_t nbytes);
bool wanted(size_t nbytes, c10::ScalarType type);
// The same for a message, whose size all ranks have alike, wherever their own tensors lie.
bool wanted(const at::Tensor& message);

// For a scope: what is allocated is to hold numbers of this type.
class Making {
 public:
  explicit Making(c10::ScalarType type);
  ~Making();
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  bool before_;
};

// For a scope: what is allocated is to hold what the host has.
class FromHost {
 public:
  explicit FromHost(bool from_host);
  ~FromHost();
  FromHost(const FromHost&) = delete;
  FromHost& operator=(const FromHost&) = delete;

 private:
  bool before_;
};

// Addresses that no processor takes for one: who reads or writes there does not get a wrong number, but ends.
constexpr uintptr_t kFirst = uintptr_t{1} << 60;
void* new_address(size_t nbytes);
inline bool is(const void* data) { return (reinterpret_cast<uintptr_t>(data) >> 60) == 1; }
inline bool is(const c10::Storage& storage) { return storage && is(storage.data()); }
inline bool is(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kNpu && tensor.has_storage() && is(tensor.storage()); }

// What a tensor reads as whose source is a phantom: zeros. Large memory of the host is given back for it, and not written.
void clear(const at::Tensor& tensor);

// What takes part in place of a phantom in a message that is small enough to be moved: zeros of the host.
at::Tensor stand_in(const at::Tensor& tensor);
std::vector<at::Tensor> stand_in(const std::vector<at::Tensor>& tensors);

// A tensor of the NPU that looks like `shape`: of a phantom, or of zeros.
at::Tensor like(const at::Tensor& shape, int device);

// Stand-ins on the device `meta` for the tensors of one call; tensors that share a storage share one there.
class Shapes {
 public:
  at::Tensor of(const at::Tensor& npu);

 private:
  c10::SmallVector<std::pair<c10::StorageImpl*, c10::Storage>, 4> storages_;
};

[[noreturn]] void refuse(const std::string& what);

}  // namespace virtual_ascend::phantom
