// How memory is laid out: as the strides say (ND), or in FRACTAL_NZ, where a matrix lies as blocks of 16 rows and 16
// elements (32 of one byte), the blocks of its first columns one below the other, then those of the next.
//
// A tensor over such memory has the shape and the strides that it would have in ND, as with torch_npu. Operators read its
// values, and write them back; whoever moves bytes moves them as they lie. Sources: torch_npu's FormatHelper.cpp
// (InferShapeNDToNZ), FormatCastKernelNpu.cpp, CopyKernel.cpp, and getNumelForHCCL in ProcessGroupHCCL.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace virtual_ascend::formats {

extern std::atomic<int> g_fractal;
inline bool any() { return g_fractal.load(std::memory_order_relaxed) > 0; }

// Whether the tensor's elements are those of memory that is in FRACTAL_NZ: an NPU's, or the host's over the same
// address. One of another type over it is bytes as they lie.
bool is_fractal(const at::Tensor& tensor);

// The same values in new memory, in FRACTAL_NZ.
at::Tensor to_fractal(const at::Tensor& npu);
// The values, on the host and as the strides say.
at::Tensor values(const at::Tensor& tensor);
// Puts them, after they were changed, where they came from.
void put_back(const at::Tensor& tensor, const at::Tensor& values);
// copy_ into such memory. What is copied from the host into a part of it is laid out by its own shape, and lies at the
// place where that part would begin in ND (copy_h2d).
void copy_into(const at::Tensor& npu, const at::Tensor& source, const at::Tensor& host);

// All of the memory as a row of elements.
at::Tensor as_it_lies(const at::Tensor& alias);
// The bytes of one memory were copied to the other; those of all of it keep their layout.
void copied(const at::Tensor& source, const at::Tensor& target);

void forget(const void* base);
void moved(const void* from, const void* to);
// Each way to free memory calls it.
inline void freed(const void* base) {
  if (any()) forget(base);
}

}  // namespace virtual_ascend::formats
