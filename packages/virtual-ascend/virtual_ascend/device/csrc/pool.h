// Memory from an allocator that the program brings, and memory whose address outlives its content.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <optional>

namespace virtual_ascend::pool {

// What the library of a pluggable allocator exports, by torch_npu's signatures.
using Malloc = void* (*)(ssize_t size, int device, void* stream);
using Free = void (*)(void* data, ssize_t size, int device, void* stream);

// Within these calls the thread's allocations come from the allocator.
void begin(Malloc malloc, Free free);
void end();
std::optional<c10::DataPtr> allocate(int device, size_t nbytes);

// An address range, and the memory behind it, which is charged to the NPU while it is there. New memory is poisoned:
// each number of floating point in it is NaN. `release` gives back both.
void* reserve(int device, size_t nbytes);
void map(void* data);
void unmap(void* data);
void release(void* data);

// Throws if an address is in a range without memory, as an NPU fails that computes with it.
void check_mapped(const void* data);

}  // namespace virtual_ascend::pool
