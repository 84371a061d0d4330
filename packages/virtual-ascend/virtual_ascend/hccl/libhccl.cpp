// libhccl.so of the virtual Ascend (SIMULATED): HCCL's C functions over TCP, on the memory of virtual NPUs, which is
// host memory. For programs that load HCCL themselves, such as vllm-ascend's PyHccl. Names, types, and numbers are
// those of CANN's hccl/hccl.h and hccl_types.h.
//
// Every rank is connected to every other. A call returns when it is done, so streams need no order. Delayed copies
// (VIRTUAL_ASCEND_COPIES) are not waited for.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "rendezvous.h"
#include "wire.h"

namespace {

enum Op { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

constexpr size_t kRootInfoBytes = 4108;

size_t bytes_of(int type) {
  switch (type) {
    case 0: case 7: return 1;          // int8, uint8
    case 1: case 3: case 8: case 11: return 2;  // int16, fp16, uint16, bf16
    case 2: case 4: case 9: return 4;  // int32, fp32, uint32
    case 5: case 6: case 10: return 8; // int64, uint64, fp64
    case 12: return 16;                // int128
    default: throw Failure{kPara};
  }
}

template <typename T>
void combine(T* into, const T* from, size_t count, int op) {
  for (size_t i = 0; i < count; ++i) {
    if (op == kSum) into[i] = static_cast<T>(into[i] + from[i]);
    else if (op == kProd) into[i] = static_cast<T>(into[i] * from[i]);
    else if (op == kMax) into[i] = std::max(into[i], from[i]);
    else if (op == kMin) into[i] = std::min(into[i], from[i]);
    else throw Failure{kPara};
  }
}

float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
}

void reduce_into(void* into, const void* from, size_t count, int type, int op) {
#define VERL_NPU_AS(T) combine(static_cast<T*>(into), static_cast<const T*>(from), count, op)
  switch (type) {
    case 0: return VERL_NPU_AS(int8_t);
    case 1: return VERL_NPU_AS(int16_t);
    case 2: return VERL_NPU_AS(int32_t);
    case 4: return VERL_NPU_AS(float);
    case 5: return VERL_NPU_AS(int64_t);
#ifdef __FLT16_MAX__
    case 3: return VERL_NPU_AS(_Float16);
#endif
    case 11: {
      auto* a = static_cast<uint16_t*>(into);
      const auto* b = static_cast<const uint16_t*>(from);
      for (size_t i = 0; i < count; ++i) {
        float value = bf16_to_float(a[i]);
        const float other = bf16_to_float(b[i]);
        combine(&value, &other, 1, op);
        a[i] = float_to_bf16(value);
      }
      return;
    }
    default: throw Failure{kNotSupported};
  }
#undef VERL_NPU_AS
}

// Checked before anything is sent, because a rank that fails alone leaves the others waiting. HCCL does not reduce
// unsigned integers or doubles either.
void check_reduction(int type, int op) {
  if (op < kSum || op > kMin) throw Failure{kPara};
  bytes_of(type);
  char none[16] = {};
  reduce_into(none, none, 0, type, op);
}

void broadcast(const Comm& comm, void* data, size_t size, uint32_t root) {
  if (root >= comm.size) throw Failure{kPara};
  if (comm.rank != root) return comm.peers.at(root).read(data, size);
  for (const auto& [rank, peer] : comm.peers) peer.write(data, size);
}

void all_reduce(const Comm& comm, const void* from, void* into, size_t count, int type, int op) {
  check_reduction(type, op);
  const size_t size = count * bytes_of(type);
  if (into != from) std::memmove(into, from, size);
  if (comm.rank == 0) {
    std::vector<char> other(size);
    for (const auto& [rank, peer] : comm.peers) {  // in rank order, so that rounding is always the same
      peer.read(other.data(), size);
      reduce_into(into, other.data(), count, type, op);
    }
  } else {
    comm.peers.at(0).write(into, size);
  }
  broadcast(comm, into, size, 0);
}

template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return kSuccess;
  } catch (const Failure& failure) {
    return failure.result;
  } catch (const std::exception&) {
    return kPara;
  }
}

// The virtual Ascend's phantom memory (../device/csrc/phantom.h) has nothing that could be sent.
void check_memory(std::initializer_list<const void*> memory) {
  for (const auto* data : memory)
    if ((reinterpret_cast<uintptr_t>(data) >> 60) == 1) throw Failure{kNotSupported};
}

Comm& checked(void* comm) {
  if (comm == nullptr) throw Failure{kPtr};
  return *static_cast<Comm*>(comm);
}

const Socket& peer_of(const Comm& comm, uint32_t rank) {
  const auto found = comm.peers.find(rank);
  if (found == comm.peers.end()) throw Failure{kPara};
  return found->second;
}

}  // namespace

extern "C" {

const char* HcclGetErrorString(int code) {
  switch (code) {
    case kSuccess: return "no error";
    case kPara: return "parameter error (virtual Ascend)";
    case kPtr: return "null pointer (virtual Ascend)";
    case kNotSupported: return "not supported (virtual Ascend)";
    case kSyscall: return "system call error (virtual Ascend)";
    case kTimeout: return "timeout: a rank did not arrive (virtual Ascend)";
    case kConnect: return "tcp connect error (virtual Ascend)";
    case kTransfer: return "tcp transfer error: a rank is gone (virtual Ascend)";
    default: return "unknown error (virtual Ascend)";
  }
}

int HcclGetRootInfo(void* info) {
  return guarded([&] {
    if (info == nullptr) throw Failure{kPtr};
    const auto root = open_root();
    std::memset(info, 0, kRootInfoBytes);
    std::memcpy(info, &root, sizeof(root));
  });
}

int HcclCommInitRootInfo(uint32_t size, const void* info, uint32_t rank, void** comm) {
  return guarded([&] {
    if (info == nullptr || comm == nullptr) throw Failure{kPtr};
    Root root{};
    std::memcpy(&root, info, sizeof(root));
    if (std::memcmp(root.magic, kMagic, sizeof(kMagic)) != 0 || size == 0 || rank >= size) throw Failure{kPara};
    *comm = join(size, root, rank).release();
  });
}

int HcclCommDestroy(void* comm) {
  return guarded([&] { delete &checked(comm); });
}

int HcclGetRankSize(void* comm, uint32_t* size) {
  return guarded([&] { *size = checked(comm).size; });
}

int HcclGetRankId(void* comm, uint32_t* rank) {
  return guarded([&] { *rank = checked(comm).rank; });
}

int HcclAllReduce(void* from, void* into, uint64_t count, int type, int op, void* comm, void*) {
  return guarded([&] {
    check_memory({from, into});
    all_reduce(checked(comm), from, into, count, type, op);
  });
}

int HcclBroadcast(void* data, uint64_t count, int type, uint32_t root, void* comm, void*) {
  return guarded([&] {
    check_memory({data});
    broadcast(checked(comm), data, count * bytes_of(type), root);
  });
}

int HcclAllGather(void* from, void* into, uint64_t count, int type, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    check_memory({from, into});
    const size_t size = count * bytes_of(type);
    auto* parts = static_cast<char*>(into);
    std::memmove(parts + c.rank * size, from, size);
    for (uint32_t root = 0; root < c.size; ++root) broadcast(c, parts + root * size, size, root);
  });
}

int HcclReduceScatter(void* from, void* into, uint64_t count, int type, int op, void* comm, void*) {
  return guarded([&] {
    const auto& c = checked(comm);
    check_memory({from, into});
    const size_t size = count * bytes_of(type);
    std::vector<char> whole(size * c.size);
    all_reduce(c, from, whole.data(), count * c.size, type, op);
    std::memcpy(into, whole.data() + c.rank * size, size);
  });
}

int HcclSend(void* data, uint64_t count, int type, uint32_t rank, void* comm, void*) {
  return guarded([&] {
    check_memory({data});
    peer_of(checked(comm), rank).write(data, count * bytes_of(type));
  });
}

int HcclRecv(void* data, uint64_t count, int type, uint32_t rank, void* comm, void*) {
  return guarded([&] {
    check_memory({data});
    peer_of(checked(comm), rank).read(data, count * bytes_of(type));
  });
}

int HcclBarrier(void* comm, void*) {
  return guarded([&] {
    int8_t nothing = 0;
    all_reduce(checked(comm), &nothing, &nothing, 1, 0, kSum);
  });
}

}  // extern "C"
