// Graph memory: the pools from which captures allocate, and the blocks whose addresses graphs have recorded.
#pragma once

#include "graph.h"

#include <cstddef>
#include <memory>
#include <string>

namespace virtual_ascend::graph {

// Memory on one NPU that several captures share. Memory that a capture frees can be used again by it and by the next
// one, and by nobody else as long as one of the graphs exists.
class Pool;

std::shared_ptr<Pool> pool_of(const PoolId& id, int device);
// A graph starts or stops using the pool. The last one releases its memory, except what tensors still hold.
void retain(const std::shared_ptr<Pool>& pool);
void release(const std::shared_ptr<Pool>& pool);
c10::DataPtr allocate_in(const std::shared_ptr<Pool>& pool, size_t nbytes);
bool owns(const Pool& pool, const void* base);
PoolId new_pool_id(bool by_user);

// Starts watching the block that contains a storage; null if the storage has no memory.
std::shared_ptr<Block> watch(const c10::Storage& storage);
// Stops watching blocks that no graph uses any more.
void tidy();
// Counts how often a watched block was freed, moved, unmapped, or mapped.
uint64_t changes();

// The line of the user's program that this thread is executing, outside torch and this package.
std::string line_of_program();

}  // namespace virtual_ascend::graph
