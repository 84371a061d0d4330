#include "graph_memory.h"

#include "allocator.h"
#include "ledger.h"
#include "runtime.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <mutex>
#include <unordered_map>

namespace py = pybind11;

namespace virtual_ascend::graph {

std::atomic<int> g_watched{0};

namespace {

constexpr size_t kRoundTo = 512;
constexpr size_t kLine = 64;
constexpr size_t kWaste = 4;  // a free block may be at most this many times too large

std::mutex& lock_of_blocks() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

std::unordered_map<const void*, std::weak_ptr<Block>>& blocks() {
  static auto* it = new std::unordered_map<const void*, std::weak_ptr<Block>>();  // tensors may outlive static destructors
  return *it;
}

std::atomic<uint64_t> g_changes{1};

c10::Storage over_address(void* base, size_t nbytes, c10::Device device, c10::Allocator* allocator) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes, c10::DataPtr(base, device),
                                                            allocator, /*resizable=*/true));
}

void point_to(Block& block, void* base) {
  block.base = base;
  for (auto* storage : {&block.host, &block.npu})
    storage->unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(base, storage->device()));
}

// Frees the context of a weak reference's storage.
void drop_reference(void* context) { delete static_cast<std::shared_ptr<Block>*>(context); }

std::shared_ptr<Block> found(const void* base) {
  const auto at = blocks().find(base);
  return at == blocks().end() ? nullptr : at->second.lock();
}

bool is_watched(const void* base) {
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  return found(base) != nullptr;
}

}  // namespace

class Pool {
 public:
  struct Piece {
    size_t nbytes;
    bool used;
  };

  explicit Pool(int device) : device(device) {}

  const int device;
  std::mutex mutex;
  std::map<void*, Piece> pieces;
  int graphs = 0;
};

namespace {

struct Held {
  std::shared_ptr<Pool> pool;
  void* data;
};

void give_back(Pool& pool, void* data, size_t nbytes) {
  unpark(pool.device, nbytes);
  std::free(data);
}

void free_held(void* context) {
  auto* held = static_cast<Held*>(context);
  auto& pool = *held->pool;
  ledger::freed(held->data);
  bool last = false;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    last = pool.graphs == 0;
  }
  if (last) freed(held->data);
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    auto& piece = pool.pieces.at(held->data);
    piece.used = false;
    park(pool.device, piece.nbytes);
    if (pool.graphs == 0) {
      give_back(pool, held->data, piece.nbytes);
      pool.pieces.erase(held->data);
    }
  }
  delete held;
}

struct Pools {
  std::mutex mutex;
  std::map<std::pair<PoolId, int>, std::weak_ptr<Pool>> by_id;
  PoolId last{0, 0};
};

Pools& pools() {
  static auto* it = new Pools();
  return *it;
}

}  // namespace

PoolId new_pool_id(bool by_user) {
  std::lock_guard<std::mutex> lock(pools().mutex);
  return by_user ? PoolId{0, ++pools().last.second} : PoolId{++pools().last.first, 0};
}

std::shared_ptr<Pool> pool_of(const PoolId& id, int device) {
  std::lock_guard<std::mutex> lock(pools().mutex);
  auto& known = pools().by_id[{id, device}];
  auto pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<Pool>(device);
  return pool;
}

void retain(const std::shared_ptr<Pool>& pool) {
  std::lock_guard<std::mutex> lock(pool->mutex);
  ++pool->graphs;
}

void release(const std::shared_ptr<Pool>& pool) {
  std::vector<void*> unused;
  {
    std::lock_guard<std::mutex> lock(pool->mutex);
    if (--pool->graphs > 0) return;
    for (const auto& [data, piece] : pool->pieces)
      if (!piece.used) unused.push_back(data);
  }
  for (const auto* data : unused) freed(data);  // unlocked, because it takes the GIL
  std::lock_guard<std::mutex> lock(pool->mutex);
  for (auto it = pool->pieces.begin(); it != pool->pieces.end();) {
    const auto here = it++;
    if (here->second.used) continue;
    give_back(*pool, here->first, here->second.nbytes);
    pool->pieces.erase(here);
  }
}

c10::DataPtr allocate_in(const std::shared_ptr<Pool>& pool, size_t nbytes) {
  const auto size = (nbytes + kRoundTo - 1) / kRoundTo * kRoundTo;
  const auto give = [&](void* data) {
    ledger::allocated(data, size);
    return c10::DataPtr(data, new Held{pool, data}, &free_held, c10::Device(kNpu, static_cast<c10::DeviceIndex>(pool->device)));
  };
  std::lock_guard<std::mutex> lock(pool->mutex);
  std::pair<void* const, Pool::Piece>* best = nullptr;
  for (auto& piece : pool->pieces) {
    const auto fits = !piece.second.used && piece.second.nbytes >= size && piece.second.nbytes <= size * kWaste;
    if (fits && (best == nullptr || piece.second.nbytes < best->second.nbytes)) best = &piece;
  }
  if (best != nullptr) {
    unpark(pool->device, best->second.nbytes);
    try {
      charge_memory(pool->device, best->second.nbytes);
    } catch (...) {
      park(pool->device, best->second.nbytes, /*held=*/false);
      throw;
    }
    best->second.used = true;
    return give(best->first);
  }
  charge_memory(pool->device, size);
  void* data = nullptr;
  if (posix_memalign(&data, kLine, size) != 0) {
    discharge_memory(pool->device, size);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "NPU out of memory. The host, whose memory it uses, cannot provide ", size, " bytes for a graph");
  }
  pool->pieces[data] = {size, true};
  return give(data);
}

bool owns(const Pool& pool, const void* base) {
  auto& known = const_cast<Pool&>(pool);
  std::lock_guard<std::mutex> lock(known.mutex);
  return known.pieces.count(const_cast<void*>(base)) > 0;
}

std::shared_ptr<Block> watch(const c10::Storage& storage) {
  const auto& pointer = storage.data_ptr();
  if (pointer.get_deleter() == &drop_reference) return *static_cast<std::shared_ptr<Block>*>(pointer.get_context());
  auto* base = const_cast<void*>(storage.data());
  if (base == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  auto block = found(base);
  if (block == nullptr || block->nbytes != storage.nbytes()) {
    block = std::make_shared<Block>();
    block->base = base;
    block->nbytes = storage.nbytes();
    block->host = over_address(base, storage.nbytes(), c10::Device(c10::kCPU), c10::GetCPUAllocator());
    block->npu = over_address(base, storage.nbytes(), storage.device(), npu_allocator());
    blocks()[base] = block;
    g_watched = static_cast<int>(blocks().size());
  }
  return block;
}

void tidy() {
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  for (auto it = blocks().begin(); it != blocks().end();) it = it->second.expired() ? blocks().erase(it) : std::next(it);
  g_watched = static_cast<int>(blocks().size());
}

uint64_t changes() { return g_changes.load(std::memory_order_relaxed); }

void forget_block(const void* base) {
  if (!is_watched(base)) return;
  const auto line = line_of_program();  // before locking, because it takes the GIL
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  const auto block = found(base);
  if (block == nullptr) return;
  block->gone = true;
  block->by = "freed " + line;
  blocks().erase(base);
  g_watched = static_cast<int>(blocks().size());
  ++g_changes;
}

void moved(const void* from, const void* to) {
  if (g_watched.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  const auto block = found(from);
  if (block == nullptr) return;
  blocks().erase(from);
  point_to(*block, const_cast<void*>(to));
  blocks()[to] = block;
  ++g_changes;
}

void mapping_changed(const void* base, bool mapped) {
  if (g_watched.load(std::memory_order_relaxed) == 0 || !is_watched(base)) return;
  const auto line = line_of_program();
  std::lock_guard<std::mutex> lock(lock_of_blocks());
  const auto block = found(base);
  if (block == nullptr) return;
  block->gone = !mapped;
  if (!mapped) block->by = "unmapped " + line;
  ++g_changes;
}

at::Tensor weak(const at::Tensor& npu) {
  TORCH_CHECK(npu.device().type() == kNpu, "_weak_ref_tensor: expected an NPU tensor; found one on ", npu.device());
  const auto block = watch(npu.storage());
  if (block == nullptr) return over(over_address(nullptr, 0, npu.device(), npu_allocator()), kNpuKey, npu);
  c10::DataPtr pointer(const_cast<void*>(block->base), new std::shared_ptr<Block>(block), &drop_reference, npu.device());
  return over(c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), npu.storage().nbytes(),
                                                                 std::move(pointer), npu_allocator(), /*resizable=*/false)),
              kNpuKey, npu);
}

void check_reference(const c10::Storage& storage) {
  const auto& pointer = storage.data_ptr();
  if (C10_LIKELY(pointer.get_deleter() != &drop_reference)) return;
  const auto& block = *static_cast<std::shared_ptr<Block>*>(pointer.get_context());
  TORCH_CHECK(!block->gone && block->base == pointer.get(), "a weak reference to an NPU tensor is used after its memory was ",
              block->gone ? block->by : "moved", " (virtual Ascend; a real NPU would read whatever is there now)");
}

static bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

std::string line_of_program() {
  // Memory is freed with and without the GIL.
  if (Py_IsInitialized() == 0 || is_finalizing() || PyGILState_GetThisThreadState() == nullptr) return "by a thread without Python";
  py::gil_scoped_acquire gil;
  std::string last = "outside Python functions";
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const char* name = PyUnicode_AsUTF8(code->co_name);
    last = std::string("at ") + (file ? file : "?") + ":" + std::to_string(PyFrame_GetLineNumber(frame)) + " in " + (name ? name : "?");
    const bool ours = file != nullptr && (std::string(file).find("/torch/") != std::string::npos ||
                                          std::string(file).find("/virtual_ascend/") != std::string::npos);
    Py_DECREF(code);
    PyFrameObject* back = ours ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return last;
}

}  // namespace virtual_ascend::graph
