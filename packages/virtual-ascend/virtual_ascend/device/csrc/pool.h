// Memory from an allocator that the program supplies, and address ranges that outlive their content.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <optional>

namespace virtual_ascend::pool {

// The functions that a pluggable allocator's library exports, with torch_npu's signatures.
using Malloc = void* (*)(ssize_t size, int device, void* stream);
using Free = void (*)(void* data, ssize_t size, int device, void* stream);

// Between begin and end, this thread allocates with these functions.
void begin(Malloc malloc, Free free);
void end();
std::optional<c10::DataPtr> allocate(int device, size_t nbytes);

// An address range, and the memory mapped to it, which is charged to the NPU while it is mapped. Floating-point numbers
// in new memory are NaN. `release` frees both.
void* reserve(int device, size_t nbytes);
void map(void* data);
void unmap(void* data);
void release(void* data);

// Throws if an address is in an unmapped range, where a computation on an NPU would fail.
void check_mapped(const void* data);

}  // namespace virtual_ascend::pool
