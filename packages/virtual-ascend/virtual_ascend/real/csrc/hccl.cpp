// libhccl.so for torch_npu's ProcessGroupHCCL: the functions for programs that load HCCL themselves, run on streams,
// and those that only torch_npu needs.
#define HcclAllReduce HcclAllReduceNow
#define HcclBroadcast HcclBroadcastNow
#define HcclAllGather HcclAllGatherNow
#define HcclReduceScatter HcclReduceScatterNow
#define HcclSend HcclSendNow
#define HcclRecv HcclRecvNow
#define HcclBarrier HcclBarrierNow
#define HcclCommDestroy HcclCommDestroyNow
#include "../../hccl/libhccl.cpp"
#undef HcclAllReduce
#undef HcclBroadcast
#undef HcclAllGather
#undef HcclReduceScatter
#undef HcclSend
#undef HcclRecv
#undef HcclBarrier
#undef HcclCommDestroy

#include "cann.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <thread>

namespace {

// A function of the stub CANN, which is loaded before this library.
template <typename Function>
Function core(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// Errors from the communicators' threads.
std::mutex g_failures_mutex;
std::map<void*, int> g_failures;

int exec_seconds() { return seconds("HCCL_EXEC_TIMEOUT", 1836); }

struct Later {
  void* comm;
  std::function<int()> body;
};

int run(void* argument) {
  std::unique_ptr<Later> later(static_cast<Later*>(argument));
  const auto started = Clock::now();
  const int result = later->body();
  if (result == kSuccess) return result;
  // An NPU does not notice that another one is gone: it waits for the whole timeout.
  if (result == kTransfer || result == kTimeout) std::this_thread::sleep_until(started + std::chrono::seconds(exec_seconds()));
  say("a collective failed: %s", HcclGetErrorString(result));
  std::lock_guard<std::mutex> lock(g_failures_mutex);
  g_failures[later->comm] = result;
  return result;
}

// The data that a call got from this rank. An unknown dtype is refused where it is used.
size_t moved(uint64_t count, int type) {
  try {
    return count * bytes_of(type);
  } catch (const Failure&) {
    return 0;
  }
}
size_t moved(const std::vector<uint64_t>& counts, int type) {
  return moved(std::accumulate(counts.begin(), counts.end(), uint64_t{0}), type);
}

int later(const char* name, size_t bytes, void* comm, void* stream, std::function<int()> body) {
  static const auto enqueue = core<void (*)(void*, void*, int (*)(void*), void*)>("virtual_ascend_cann_enqueue");
  static const auto at_collective = core<double (*)(const char*, int64_t)>("virtual_ascend_cann_at_collective");
  if (comm == nullptr) return kPtr;
  const std::chrono::duration<double> slow(at_collective(name, static_cast<int64_t>(bytes)));
  const auto begin = Clock::now() + std::chrono::duration_cast<Clock::duration>(slow);
  enqueue(comm, stream, &run, new Later{comm, [begin, body = std::move(body)] {
            std::this_thread::sleep_until(begin);
            return body();
          }});
  return kSuccess;
}

// An array with one number for each rank.
std::vector<uint64_t> numbers(const void* array, void* comm) {
  const auto* first = static_cast<const uint64_t*>(array);
  return {first, first + static_cast<Comm*>(comm)->size};
}

struct Part {
  char* data;
  size_t size;
  uint32_t rank;
};

// Sends and receives at the same time, each in its own order: if one came after the other, two ranks with much to send
// would wait for each other forever.
void exchange(const Comm& comm, const std::vector<Part>& sent, const std::vector<Part>& received) {
  std::exception_ptr failure;
  std::thread sender([&] {
    try {
      for (const auto& part : sent) peer_of(comm, part.rank).write(part.data, part.size);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  try {
    for (const auto& part : received) peer_of(comm, part.rank).read(part.data, part.size);
  } catch (...) {
    sender.join();
    throw;
  }
  sender.join();
  if (failure) std::rethrow_exception(failure);
}

// What each rank sends to every other: `from` gives the part to send to a rank, and `into` the place for the part from
// a rank.
template <typename From, typename Into>
void all_to_all(const Comm& comm, const From& from, const Into& into) {
  const Part own = from(comm.rank), kept = into(comm.rank);
  if (own.size != kept.size) throw Failure{kPara};
  std::memmove(kept.data, own.data, own.size);
  std::vector<Part> sent, received;
  for (uint32_t step = 1; step < comm.size; ++step) {
    sent.push_back(from((comm.rank + step) % comm.size));
    received.push_back(into((comm.rank + comm.size - step) % comm.size));
  }
  exchange(comm, sent, received);
}

struct Item {  // HcclSendRecvItem
  int kind;    // 0 to send, 1 to receive
  void* data;
  uint64_t count;
  int type;
  uint32_t rank;
};

Part part(const void* base, const void* counts, const void* offsets, int type, uint32_t rank) {
  const size_t size = bytes_of(type);
  return {static_cast<char*>(const_cast<void*>(base)) + static_cast<const uint64_t*>(offsets)[rank] * size,
          static_cast<const uint64_t*>(counts)[rank] * size, rank};
}

}  // namespace

extern "C" {

int HcclAlltoAllNow(const void* from, uint64_t count, int type, void* into, uint64_t, int, void* comm, void*) {
  return guarded([&] {
    const size_t size = count * bytes_of(type);
    const auto at = [size](const void* base) {
      return [=](uint32_t rank) { return Part{static_cast<char*>(const_cast<void*>(base)) + rank * size, size, rank}; };
    };
    all_to_all(checked(comm), at(from), at(into));
  });
}

int HcclAlltoAllVNow(const void* from, const void* sent, const void* from_offsets, int sent_type, void* into, const void* received,
                  const void* into_offsets, int received_type, void* comm, void*) {
  return guarded([&] {
    all_to_all(
        checked(comm), [&](uint32_t rank) { return part(from, sent, from_offsets, sent_type, rank); },
        [&](uint32_t rank) { return part(into, received, into_offsets, received_type, rank); });
  });
}

int HcclReduceNow(void* from, void* into, uint64_t count, int type, int op, uint32_t root, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    std::vector<char> whole(count * bytes_of(type));
    all_reduce(c, from, whole.data(), count, type, op);
    if (c.rank == root) std::memcpy(into, whole.data(), whole.size());
  });
}

int HcclScatterNow(void* from, void* into, uint64_t count, int type, uint32_t root, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    const size_t size = count * bytes_of(type);
    if (c.rank != root) {
      peer_of(c, root).read(into, size);
      return;
    }
    auto* parts = static_cast<char*>(from);
    std::memmove(into, parts + root * size, size);
    for (uint32_t rank = 0; rank < c.size; ++rank)
      if (rank != root) peer_of(c, rank).write(parts + rank * size, size);
  });
}

int HcclAllGatherVNow(void* from, uint64_t count, void* into, const void* counts, const void* offsets, int type, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    const Part own = part(into, counts, offsets, type, c.rank);
    if (own.size != count * bytes_of(type)) throw Failure{kPara};
    std::memmove(own.data, from, own.size);
    for (uint32_t root = 0; root < c.size; ++root) {
      const Part each = part(into, counts, offsets, type, root);
      broadcast(c, each.data, each.size, root);
    }
  });
}

int HcclBatchSendRecvNow(void* items, uint32_t count, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    std::vector<Part> sent, received, own_sent, own_received;
    for (uint32_t i = 0; i < count; ++i) {
      const auto& item = static_cast<Item*>(items)[i];
      const Part each{static_cast<char*>(item.data), item.count * bytes_of(item.type), item.rank};
      if (item.rank == c.rank) (item.kind == 0 ? own_sent : own_received).push_back(each);
      else (item.kind == 0 ? sent : received).push_back(each);
    }
    // What a rank sends to itself, in order.
    if (own_sent.size() != own_received.size()) throw Failure{kPara};
    for (size_t i = 0; i < own_sent.size(); ++i) {
      if (own_sent[i].size != own_received[i].size) throw Failure{kPara};
      std::memmove(own_received[i].data, own_sent[i].data, own_sent[i].size);
    }
    exchange(c, sent, received);
  });
}

int HcclCommInitRootInfoConfig(uint32_t ranks, const void* root, uint32_t rank, const void*, void** communicator) {
  static const auto set_rank = core<void (*)(int)>("virtual_ascend_cann_set_rank");
  set_rank(static_cast<int>(rank));
  using Init = int (*)(uint32_t, const void*, uint32_t, void**);
  return reinterpret_cast<Init>(reinterpret_cast<void*>(&HcclCommInitRootInfo))(ranks, root, rank, communicator);
}
// Buffer size and determinism can be configured; neither changes anything here.
uint32_t HcclGetCommConfigCapability() { return 3; }
int HcclGetCommAsyncError(void* comm, int* error) {
  std::lock_guard<std::mutex> lock(g_failures_mutex);
  const auto found = g_failures.find(comm);
  *error = found == g_failures.end() ? 0 : found->second;
  return 0;
}
// A communicator with an unfinished collective is left to its thread.
int HcclCommDestroy(void* comm) {
  static const auto idle = core<int (*)(void*)>("virtual_ascend_cann_is_idle");
  return idle(comm) ? HcclCommDestroyNow(comm) : kSuccess;
}

int HcclAllReduce(void* from, void* into, uint64_t count, int type, int op, void* comm, void* stream) {
  return later("HcclAllReduce", moved(count, type), comm, stream, [=] { return HcclAllReduceNow(from, into, count, type, op, comm, nullptr); });
}
int HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, void* comm, void* stream) {
  return later("HcclBroadcast", moved(count, type), comm, stream, [=] { return HcclBroadcastNow(data, count, type, root, comm, nullptr); });
}
int HcclAllGather(void* from, void* into, uint64_t count, int type, void* comm, void* stream) {
  return later("HcclAllGather", moved(count, type), comm, stream, [=] { return HcclAllGatherNow(from, into, count, type, comm, nullptr); });
}
int HcclReduceScatter(void* from, void* into, uint64_t count, int type, int op, void* comm, void* stream) {
  return later("HcclReduceScatter", moved(count, type), comm, stream, [=] { return HcclReduceScatterNow(from, into, count, type, op, comm, nullptr); });
}
int HcclSend(void* data, uint64_t count, int type, uint32_t rank, void* comm, void* stream) {
  return later("HcclSend", moved(count, type), comm, stream, [=] { return HcclSendNow(data, count, type, rank, comm, nullptr); });
}
int HcclRecv(void* data, uint64_t count, int type, uint32_t rank, void* comm, void* stream) {
  return later("HcclRecv", moved(count, type), comm, stream, [=] { return HcclRecvNow(data, count, type, rank, comm, nullptr); });
}
int HcclBarrier(void* comm, void* stream) {
  return later("HcclBarrier", 0, comm, stream, [=] { return HcclBarrierNow(comm, nullptr); });
}
int HcclAlltoAll(const void* from, uint64_t count, int type, void* into, uint64_t received, int received_type, void* comm, void* stream) {
  return later("HcclAlltoAll", moved(count, type), comm, stream, [=] { return HcclAlltoAllNow(from, count, type, into, received, received_type, comm, nullptr); });
}
int HcclAlltoAllV(const void* from, const void* sent, const void* from_offsets, int sent_type, void* into, const void* received,
                  const void* into_offsets, int received_type, void* comm, void* stream) {
  // The arrays of counts belong to the caller and may be gone when this runs.
  const auto a = numbers(sent, comm), b = numbers(from_offsets, comm), c = numbers(received, comm), d = numbers(into_offsets, comm);
  return later("HcclAlltoAllV", moved(a, sent_type), comm, stream, [=] {
    return HcclAlltoAllVNow(from, a.data(), b.data(), sent_type, into, c.data(), d.data(), received_type, comm, nullptr);
  });
}
int HcclReduce(void* from, void* into, uint64_t count, int type, int op, uint32_t root, void* comm, void* stream) {
  return later("HcclReduce", moved(count, type), comm, stream, [=] { return HcclReduceNow(from, into, count, type, op, root, comm, nullptr); });
}
int HcclScatter(void* from, void* into, uint64_t count, int type, uint32_t root, void* comm, void* stream) {
  return later("HcclScatter", moved(count, type), comm, stream, [=] { return HcclScatterNow(from, into, count, type, root, comm, nullptr); });
}
int HcclAllGatherV(void* from, uint64_t count, void* into, const void* counts, const void* offsets, int type, void* comm, void* stream) {
  const auto a = numbers(counts, comm), b = numbers(offsets, comm);
  return later("HcclAllGatherV", moved(count, type), comm, stream, [=] { return HcclAllGatherVNow(from, count, into, a.data(), b.data(), type, comm, nullptr); });
}
int HcclBatchSendRecv(void* items, uint32_t count, void* comm, void* stream) {
  std::vector<Item> kept(static_cast<Item*>(items), static_cast<Item*>(items) + count);
  size_t bytes = 0;
  for (const auto& item : kept) bytes += moved(item.count, item.type);
  return later("HcclBatchSendRecv", bytes, comm, stream, [=]() mutable { return HcclBatchSendRecvNow(kept.data(), count, comm, nullptr); });
}
int HcclGetCommName(void*, char* name) {
  snprintf(name, 128, "virtual");
  return 0;
}
int HcclSetConfig(int, int) { return 0; }
// One process with several NPUs, and communicators that continue after an error: torch_npu is told that neither exists.
int HcclCommInitAll(uint32_t, int32_t*, void**) { return 5; }
int HcclCommResume(void*) { return 5; }
}
