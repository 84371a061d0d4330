// What a program's memory and work were, one by one: for a plan, which tells who held the memory at a peak, and how
// long the work would take an NPU. Nothing is kept until it is started.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace virtual_ascend::ledger {

// What is known of a block when it is allocated or used. Weights, gradients and the optimizer's state are the caller's
// to tell.
enum Holder : int { kOther = 0, kMessage = 1, kGathered = 2 };

// `flops` and `bytes` per second are those of an NPU: an operator takes as long as the slower of both, which has to be
// told for each call.
void start(double flops, double bytes);
bool on();

void allocated(const void* data, size_t nbytes);
void freed(const void* data);
void mark(const void* data, int holder);

void operated(const std::string& name, double flops, double bytes);
void copied(double bytes);  // between host and NPU
void sent(const std::string& name, const void* group, int ranks, double bytes);

// For a scope: what is allocated is a storage that is brought back to its size, as FSDP gathers weights.
class Gathering {
 public:
  Gathering();
  ~Gathering();
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
};

// Bytes of a block, when it was allocated and freed (0: it was not), counted in allocations and frees, and its holder.
using Block = std::tuple<int64_t, int64_t, int64_t, int>;
std::vector<Block> blocks();
int64_t now();

// Name, calls, flops, bytes, and the seconds that an NPU would need at its best; since it was last taken.
using Work = std::tuple<std::string, int64_t, double, double, double>;
// Name, ranks, calls, bytes.
using Message = std::tuple<std::string, int, int64_t, double>;
std::pair<std::vector<Work>, std::vector<Message>> take();
// Process groups that have communicated.
size_t groups();

}  // namespace virtual_ascend::ledger
