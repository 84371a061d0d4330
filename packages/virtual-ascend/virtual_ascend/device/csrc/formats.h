// Memory layouts: ND, where the strides say where an element is, or FRACTAL_NZ, where a matrix is stored in blocks of
// 16 rows by 16 elements (32 one-byte elements). The blocks of the first columns come first, one below the other, then
// those of the next columns.
//
// A tensor over such memory has the shape and strides that it would have in ND, as in torch_npu. Operators read its
// values and write them back; code that moves bytes moves them unchanged. Sources: torch_npu's FormatHelper.cpp
// (InferShapeNDToNZ), FormatCastKernelNpu.cpp, CopyKernel.cpp, and getNumelForHCCL in ProcessGroupHCCL.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace virtual_ascend::formats {

extern std::atomic<int> g_fractal;
inline bool any() { return g_fractal.load(std::memory_order_relaxed) > 0; }

// Whether the tensor views memory in FRACTAL_NZ (an NPU's, or the host's at the same address) with the memory's own
// dtype. A tensor of another dtype over that memory sees raw bytes.
bool is_fractal(const at::Tensor& tensor);

// Copies the values into new memory in FRACTAL_NZ.
at::Tensor to_fractal(const at::Tensor& npu);
// Returns the values on the host, in ND.
at::Tensor values(const at::Tensor& tensor);
// Writes changed values back to where `values` read them.
void put_back(const at::Tensor& tensor, const at::Tensor& values);
// copy_ into such memory. A copy from the host into a part of it is laid out by its own shape and placed where that
// part would begin in ND (copy_h2d).
void copy_into(const at::Tensor& npu, const at::Tensor& source, const at::Tensor& host);

// All of the memory as one row of elements.
at::Tensor as_it_lies(const at::Tensor& alias);
// Called after the bytes of one memory were copied to another. A copy of the whole memory keeps its layout.
void copied(const at::Tensor& source, const at::Tensor& target);

void forget(const void* base);
void moved(const void* from, const void* to);
// Every way to free memory calls this.
inline void freed(const void* base) {
  if (any()) forget(base);
}

}  // namespace virtual_ascend::formats
