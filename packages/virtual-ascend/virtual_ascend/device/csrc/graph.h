// Graphs of an NPU: capture writes down each operator with the addresses that it was given, replay executes the record on
// those addresses, whatever lies there now.
//
// The interface, from below: what computes on NPU tensors asks `under_way()`, which costs one load, and only then
// `recording(device)`. Whoever is recording saves what it is about to write to (`save`), puts its results into the pool
// (`placed`), and adds a Task. As on a real NPU a record holds no tensor: its operands are addresses with a shape, and
// blocks of memory that are watched tell a replay when they are gone.
//
// A capture computes here, to know shapes, where a real one only writes down. What it wrote outside of its pool, and what
// it drew from generators, is put back when it ends.
#pragma once

#include "formats.h"
#include "generator.h"
#include "tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace virtual_ascend::graph {

using Tensors = std::vector<at::Tensor>;
// As torch_npu's: the first number is set if a capture made the pool, the second if `graph_pool_handle` did.
using PoolId = std::pair<unsigned long long, unsigned long long>;

// Captures, updates of task groups, and replays that wait for an event.
extern std::atomic<int> g_under_way;
inline bool under_way() { return g_under_way.load(std::memory_order_relaxed) > 0; }

// Whether what this thread does on the NPU's current stream is written down.
bool recording(int device);
bool any_is_recording(const Tensors& tensors);
// Whether the current stream of the NPU belongs to a capture.
bool captures(int device);
bool captures(const c10::Stream& stream);

// Raises if the NPU's current stream holds a replay that waits for an event: what comes after it would wait as well.
void check_order(int device);

// What a capture refuses, in the words of CANN's runtime; the capture fails.
enum class Refused : int { kSynchronising = 107027, kEvent = 107028, kMode = 107030 };
[[noreturn]] void refuse(Refused code, const char* call, const std::string& what);
// The same if this thread captures on the NPU, or on the stream.
void refuse_synchronising(int device, const char* call, const std::string& what);
// In torch_npu's words, for what it refuses by itself.
void refuse_while_capturing(int device, const char* attempt);

// Keeps what lies in the tensor, to be put back when the capture ends.
void save(const at::Tensor& npu);
// An NPU tensor in the graph's pool with the values of the host's.
at::Tensor placed(const at::Tensor& host, int device);
c10::DataPtr placed(const c10::Storage& host, int device);
std::optional<c10::DataPtr> allocate(int device, size_t nbytes);

// For a scope: what this thread does is the inside of one operator, or a replay. It is not written down.
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// A block of memory that a graph has the address of.
struct Block {
  const void* base;
  size_t nbytes;
  c10::Storage host, npu;  // own nothing; all operands in this block are over one of them
  bool gone = false;
  std::string by;  // who freed it
};

extern std::atomic<int> g_watched;
void forget_block(const void* base);
// Each way to free memory calls it.
inline void freed(const void* base) {
  formats::freed(base);
  if (g_watched.load(std::memory_order_relaxed) > 0) forget_block(base);
}
void moved(const void* from, const void* to);
// Memory behind an address came or went.
void mapping_changed(const void* base, bool mapped);

// What an operator was given, or gave: over the address, without holding it.
struct Operand {
  at::Tensor tensor;
  std::shared_ptr<Block> block;
  std::string name;
};

struct ExternalEvent;

struct Task {
  std::string name;
  std::vector<Operand> operands;
  // Runs it on its operands, or on what is given in their places.
  std::function<void(const Tensors* instead)> run;
  std::shared_ptr<ExternalEvent> waits_for;
  bool unpacks = false;  // among the operands are some in FRACTAL_NZ, which it reads
};

enum class Where { kHost, kNpu };
Operand operand(const at::Tensor& npu, Where where, std::string name);
void add(Task task);

// Computes on aliases of the tensors on the host, places what comes out, and writes that down.
Tensors compute(const char* name, const Tensors& given, const std::function<Tensors(const Tensors& host)>& function);
// A copy on one NPU, or between it and the host.
void add_copy(const at::Tensor& source, const at::Tensor& target);
// An operator that was computed on the host: its arguments as they were given, and its results on the NPU.
void add_kernel(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const std::vector<c10::IValue>& results,
                const std::vector<size_t>& generators);
// That a generator is drawn from.
void drawing(NpuGenerator& generator, int device);

// A tensor over the same memory that does not keep it.
at::Tensor weak(const at::Tensor& npu);
// Raises if it is such a tensor's and that memory is gone.
void check_reference(const c10::Storage& storage);

// Events between streams: a stream that waits for work of a capture becomes part of it.
using Covered = std::map<c10::StreamId, uint64_t>;
struct Mark {
  uint64_t capture = 0;  // 0: none
  Covered covered;
};
Mark mark(const c10::Stream& stream);
void join(const Mark& mark, const c10::Stream& stream);
bool is_under_way(const Mark& mark);


}  // namespace virtual_ascend::graph

namespace virtual_ascend {

// The host waits for all of an NPU; refused to a thread that captures on it.
void synchronize_npu(int device);

}  // namespace virtual_ascend
