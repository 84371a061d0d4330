// A list of a program's memory blocks and work, for a plan that reports who held the memory at a peak and how long an
// NPU would take. Nothing is recorded until `start`.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace virtual_ascend::ledger {

// What is known about a block when it is allocated or used. The caller says which blocks are weights, gradients, or
// optimizer states; blocks of the host stay the host's.
enum Holder : int { kOther = 0, kMessage = 1, kGathered = 2, kHost = 3 };

// `flops` and `bytes` are an NPU's rates per second. An operator takes as long as the slower of the two, which is
// computed for each call. `site`, if there is one, returns the number of the place in the program that allocates a block.
using Site = std::function<int()>;
void start(double flops, double bytes, Site site);
bool on();

void allocated(const void* data, size_t nbytes);
void allocated_on_host(const void* data, size_t nbytes);
void freed(const void* data);
void mark(const void* data, int holder);

void operated(const std::string& name, double flops, double bytes);
void copied(double bytes);  // between host and NPU
void sent(const std::string& name, const void* group, int ranks, double bytes);

// A scope in which a storage is resized to its full size again, as when FSDP gathers weights.
class Gathering {
 public:
  Gathering();
  ~Gathering();
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
};

// A block: its bytes, when it was allocated and freed (0: not freed) in a count of allocations and frees, its holder, and
// its site.
using Block = std::tuple<int64_t, int64_t, int64_t, int, int>;
std::vector<Block> blocks();
int64_t now();

// Name, calls, flops, bytes, and the minimum time in seconds on an NPU, since the last read.
using Work = std::tuple<std::string, int64_t, double, double, double>;
// Name, ranks, calls, bytes.
using Message = std::tuple<std::string, int, int64_t, double>;
std::pair<std::vector<Work>, std::vector<Message>> take();
// The number of process groups that have communicated.
size_t groups();

}  // namespace virtual_ascend::ledger
