// Zero-copy views that share one piece of memory between two devices.
#pragma once

#include <ATen/core/Tensor.h>

namespace virtual_ascend {

// Returns a CPU tensor over an NPU tensor's memory and keeps that memory alive. Any other tensor is returned unchanged.
// For memory in FRACTAL_NZ the result is a copy in ND (formats.h), so writes are lost unless they are put back.
at::Tensor cpu_alias(const at::Tensor& tensor);

// Like cpu_alias, but over the raw memory, for a backend that keeps the alias and may drop it in its own thread.
// Freeing memory may take the GIL, and a thread that asks for the GIL while the interpreter shuts down crashes the
// process. If such a thread drops the last reference, the memory is kept for `free_dropped`.
at::Tensor lent_alias(const at::Tensor& tensor);
void free_dropped();

// Returns an NPU tensor over a CPU tensor's memory, charged to `device`.
at::Tensor npu_alias(const at::Tensor& tensor, int device);

// Moves the NPU tensor's storage, with its bytes, into the memory of `cpu`; all views of the storage move with it.
void move_storage(const at::Tensor& npu, const at::Tensor& cpu);

}  // namespace virtual_ascend
