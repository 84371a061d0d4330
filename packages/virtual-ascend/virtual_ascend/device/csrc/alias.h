// Zero-copy views of one memory from two devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace virtual_ascend {

// A CPU tensor over the memory of an NPU tensor; keeps that memory alive. Anything else is returned as it is. Of memory
// in FRACTAL_NZ it is the values (formats.h), and what is written to them is lost unless it is put back.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The same, of the memory as it lies, for a backend that keeps the alias and may drop it in a thread of its own. Freeing memory may take Python's
// lock, and a thread that asks for it while the interpreter ends brings the process down: what such a thread drops
// last is kept for `free_dropped`.
at::Tensor lent_alias(const at::Tensor& tensor);
void free_dropped();

// An NPU tensor over the memory of a CPU tensor, charged to `device`.
at::Tensor npu_alias(const at::Tensor& tensor, int device);

// The NPU tensor's storage lies in the memory of `cpu`'s from now on, for all its views; the bytes are moved.
void move_storage(const at::Tensor& npu, const at::Tensor& cpu);

}  // namespace virtual_ascend
