// The memory of graphs: pools that captures allocate from, and blocks of which a graph has the address.
#pragma once

#include "graph.h"

#include <cstddef>
#include <memory>
#include <string>

namespace virtual_ascend::graph {

// One NPU's memory of the captures that share it: what a capture has freed is taken again by it and by the next one, and
// nobody else gets it while one of the graphs is there.
class Pool;

std::shared_ptr<Pool> pool_of(const PoolId& id, int device);
// A graph begins or ends to need the pool. The last one lets its memory go, but for what tensors still hold.
void retain(const std::shared_ptr<Pool>& pool);
void release(const std::shared_ptr<Pool>& pool);
c10::DataPtr allocate_in(const std::shared_ptr<Pool>& pool, size_t nbytes);
bool owns(const Pool& pool, const void* base);
PoolId new_pool_id(bool by_user);

// The block that a storage lies in, watched from now on; none if it has no memory.
std::shared_ptr<Block> watch(const c10::Storage& storage);
// Takes blocks that no graph knows any longer off the watch.
void tidy();
// How often a watched block was freed, moved, unmapped or mapped.
uint64_t changes();

// The line of the program that this thread is at, outside of torch and of us.
std::string line_of_program();

}  // namespace virtual_ascend::graph
