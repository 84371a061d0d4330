// What torch_npu's ProcessGroupHCCL asks of libhccl.so beside what programs ask that load it by themselves.
#include "../../hccl/libhccl.cpp"

#include <cstdio>
#include <exception>
#include <thread>

namespace {

struct Part {
  char* data;
  size_t size;
  uint32_t rank;
};

// Sends and receives at once, each in its order: one after the other, two ranks with much to send would wait for each
// other for ever.
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

// What each rank sends to each other one: `from` and `into` give the part for a rank, and of a rank.
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

int HcclAlltoAll(const void* from, uint64_t count, int type, void* into, uint64_t, int, void* comm, void*) {
  return guarded([&] {
    const size_t size = count * bytes_of(type);
    const auto at = [size](const void* base) {
      return [=](uint32_t rank) { return Part{static_cast<char*>(const_cast<void*>(base)) + rank * size, size, rank}; };
    };
    all_to_all(checked(comm), at(from), at(into));
  });
}

int HcclAlltoAllV(const void* from, const void* sent, const void* from_offsets, int sent_type, void* into, const void* received,
                  const void* into_offsets, int received_type, void* comm, void*) {
  return guarded([&] {
    all_to_all(
        checked(comm), [&](uint32_t rank) { return part(from, sent, from_offsets, sent_type, rank); },
        [&](uint32_t rank) { return part(into, received, into_offsets, received_type, rank); });
  });
}

int HcclReduce(void* from, void* into, uint64_t count, int type, int op, uint32_t root, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    std::vector<char> whole(count * bytes_of(type));
    all_reduce(c, from, whole.data(), count, type, op);
    if (c.rank == root) std::memcpy(into, whole.data(), whole.size());
  });
}

int HcclScatter(void* from, void* into, uint64_t count, int type, uint32_t root, void* comm, void*) {
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

int HcclAllGatherV(void* from, uint64_t count, void* into, const void* counts, const void* offsets, int type, void* comm, void*) {
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

int HcclBatchSendRecv(void* items, uint32_t count, void* comm, void*) {
  return guarded([&] {
    std::vector<Part> sent, received;
    for (uint32_t i = 0; i < count; ++i) {
      const auto& item = static_cast<Item*>(items)[i];
      (item.kind == 0 ? sent : received).push_back({static_cast<char*>(item.data), item.count * bytes_of(item.type), item.rank});
    }
    exchange(checked(comm), sent, received);
  });
}

int HcclCommInitRootInfoConfig(uint32_t ranks, const void* root, uint32_t rank, const void*, void** communicator) {
  using Init = int (*)(uint32_t, const void*, uint32_t, void**);
  return reinterpret_cast<Init>(reinterpret_cast<void*>(&HcclCommInitRootInfo))(ranks, root, rank, communicator);
}
// Buffer size and determinism may be configured; both change nothing here.
uint32_t HcclGetCommConfigCapability() { return 3; }
int HcclGetCommAsyncError(void*, int* error) {
  *error = 0;
  return 0;
}
int HcclGetCommName(void*, char* name) {
  snprintf(name, 128, "virtual");
  return 0;
}
int HcclSetConfig(int, int) { return 0; }
// One process with several NPUs, and communicators that go on after an error: torch_npu is told that there are none.
int HcclCommInitAll(uint32_t, int32_t*, void**) { return 5; }
int HcclCommResume(void*) { return 5; }
}
