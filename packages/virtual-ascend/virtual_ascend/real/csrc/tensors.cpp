// CANN's tensors, and the operators that torch_npu calls directly, mainly for copies: no torch operator is involved
// there, so no torch reference computes them.
#include "cann.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace {

// aclDataType's numbers.
enum Type { kFloat = 0, kHalf = 1, kInt8 = 2, kInt32 = 3, kUint8 = 4, kInt16 = 6, kUint32 = 8, kInt64 = 9, kDouble = 11, kBool = 12, kBfloat16 = 27 };

size_t size_of(int type) {
  switch (type) {
    case kInt8: case kUint8: case kBool: return 1;
    case kHalf: case kInt16: case 7: case kBfloat16: return 2;
    case kFloat: case kInt32: case kUint32: return 4;
    case kInt64: case 10: case kDouble: case 16: return 8;
    case 17: return 16;
    default: return 0;
  }
}

struct Tensor {
  std::vector<int64_t> sizes, strides;
  int type;
  int64_t offset;
  char* data;
  int64_t count() const {
    int64_t total = 1;
    for (const auto size : sizes) total *= size;
    return total;
  }
};
struct Scalar {
  double real;
  int64_t whole;
};
struct Numbers {
  std::vector<int64_t> values;
};
struct Tensors {
  std::vector<Tensor*> items;
};
struct Scalars {
  std::vector<Scalar*> items;
};

float from_half(uint16_t bits) {
  _Float16 value;
  memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}

Scalar read(const char* at, int type) {
  const auto take = [&](auto zero) {
    memcpy(&zero, at, sizeof zero);
    return Scalar{static_cast<double>(zero), static_cast<int64_t>(zero)};
  };
  switch (type) {
    case kFloat: return take(float{});
    case kDouble: return take(double{});
    case kInt64: return take(int64_t{});
    case kInt32: return take(int32_t{});
    case kUint32: return take(uint32_t{});
    case kInt16: return take(int16_t{});
    case kInt8: return take(int8_t{});
    case kUint8: case kBool: return take(uint8_t{});
    case kHalf: { uint16_t bits; memcpy(&bits, at, 2); const float f = from_half(bits); return {f, static_cast<int64_t>(f)}; }
    case kBfloat16: { uint16_t high; memcpy(&high, at, 2); const uint32_t bits = uint32_t{high} << 16; float f; memcpy(&f, &bits, 4); return {f, static_cast<int64_t>(f)}; }
    default: return {0, 0};
  }
}

void write(char* at, int type, const Scalar& value) {
  const auto put = [&](auto converted) { memcpy(at, &converted, sizeof converted); };
  switch (type) {
    case kFloat: put(static_cast<float>(value.real)); break;
    case kDouble: put(value.real); break;
    case kInt64: put(value.whole); break;
    case kInt32: put(static_cast<int32_t>(value.whole)); break;
    case kUint32: put(static_cast<uint32_t>(value.whole)); break;
    case kInt16: put(static_cast<int16_t>(value.whole)); break;
    case kInt8: put(static_cast<int8_t>(value.whole)); break;
    case kUint8: put(static_cast<uint8_t>(value.whole)); break;
    case kBool: put(static_cast<uint8_t>(value.whole != 0 || value.real != 0)); break;
    case kHalf: { const auto half = static_cast<_Float16>(static_cast<float>(value.real)); memcpy(at, &half, 2); break; }
    case kBfloat16: {
      const auto f = static_cast<float>(value.real);
      uint32_t bits;
      memcpy(&bits, &f, 4);
      // Rounds to the nearest, ties to even; NaN stays NaN.
      bits = f != f ? 0x7fc00000u : bits + 0x7fffu + ((bits >> 16) & 1u);
      const auto high = static_cast<uint16_t>(bits >> 16);
      memcpy(at, &high, 2);
      break;
    }
    default: break;
  }
}

// Calls `visit` with the positions of each element in both tensors; `from` is broadcast.
template <typename Visit>
void walk(const Tensor& to, const Tensor& from, const Visit& visit) {
  const auto dims = to.sizes.size(), lead = dims - from.sizes.size();
  std::vector<int64_t> at(dims, 0);
  for (int64_t i = 0, total = to.count(); i < total; ++i) {
    int64_t there = to.offset, here = from.offset;
    for (size_t d = 0; d < dims; ++d) {
      there += at[d] * to.strides[d];
      if (d >= lead && from.sizes[d - lead] != 1) here += at[d] * from.strides[d - lead];
    }
    visit(to.data + there * size_of(to.type), from.data + here * size_of(from.type));
    for (size_t d = dims; d-- > 0;) {
      if (++at[d] < to.sizes[d]) break;
      at[d] = 0;
    }
  }
}

void copy(const Tensor& to, const Tensor& from) {
  if (from.sizes.size() > to.sizes.size()) return;
  const auto size = size_of(to.type);
  if (to.type == from.type)
    walk(to, from, [&](char* a, const char* b) { memcpy(a, b, size); });
  else
    walk(to, from, [&](char* a, const char* b) { write(a, to.type, read(b, from.type)); });
}

void fill(const Tensor& to, const Scalar& value) {
  walk(to, to, [&](char* a, const char*) { write(a, to.type, value); });
}

// What an operator's first step keeps for its second step.
using Work = std::function<void()>;

int keep(uint64_t* workspace, void** executor, Work work) {
  *workspace = 0;
  *executor = new Work(std::move(work));
  return 0;
}

int perform(void* executor, void* stream) {
  virtual_ascend_cann_settle(stream);
  const std::unique_ptr<Work> work(static_cast<Work*>(executor));
  (*work)();
  return 0;
}

void turn_round(const Tensor& to, const Tensor& from) {
  walk(to, from, [&](char* a, const char* b) {
    const auto value = read(b, from.type);
    write(a, to.type, value.whole == 0 && value.real == 0 ? Scalar{1, 1} : Scalar{0, 0});
  });
}

void pad(Tensor part, Tensor from, const std::vector<int64_t>& pads, const Scalar& value) {
  fill(part, value);
  for (size_t d = 0; d < from.sizes.size(); ++d) {
    const size_t k = (from.sizes.size() - 1 - d) * 2;
    const int64_t left = k < pads.size() ? pads[k] : 0, right = k + 1 < pads.size() ? pads[k + 1] : 0;
    const int64_t skip = left < 0 ? -left : 0, cut = right < 0 ? -right : 0;
    from.offset += skip * from.strides[d];
    from.sizes[d] -= skip + cut;
    part.offset += (left > 0 ? left : 0) * part.strides[d];
    part.sizes[d] = from.sizes[d];
  }
  copy(part, from);
}

// Finds the positions of nonzero elements: one row for each position or, turned, one row for each dimension. The count
// is reported through the sizes of `into`, which torch_npu reads afterwards to check indices.
void find_nonzero(const Tensor& from, Tensor& into, bool turned) {
  const auto dims = static_cast<int64_t>(from.sizes.size());
  std::vector<int64_t> places;
  int64_t at = 0;
  walk(from, from, [&](char*, const char* b) {
    const auto value = read(b, from.type);
    if (value.whole != 0 || value.real != 0) places.push_back(at);
    ++at;
  });
  const auto found = static_cast<int64_t>(places.size());
  auto* indices = reinterpret_cast<int64_t*>(into.data) + into.offset;
  for (int64_t i = 0; i < found; ++i) {
    int64_t left = places[static_cast<size_t>(i)];
    for (int64_t d = dims; d-- > 0; left /= from.sizes[static_cast<size_t>(d)])
      indices[turned ? d * found + i : i * dims + d] = left % from.sizes[static_cast<size_t>(d)];
  }
  into.sizes = turned ? std::vector<int64_t>{dims, found} : std::vector<int64_t>{found, dims};
}

}  // namespace

extern "C" {

void* aclCreateTensor(const int64_t* sizes, uint64_t dims, int type, const int64_t* strides, int64_t offset, int, const int64_t*, uint64_t, void* data) {
  auto* made = new Tensor{{sizes, sizes + dims}, {}, type, offset, static_cast<char*>(data)};
  if (strides != nullptr) made->strides.assign(strides, strides + dims);
  made->strides.resize(dims, 0);
  return made;
}
int aclDestroyTensor(Tensor* tensor) {
  delete tensor;
  return 0;
}
void* aclCreateScalar(void* value, int type) { return new Scalar(read(static_cast<char*>(value), type)); }
int aclDestroyScalar(Scalar* scalar) {
  delete scalar;
  return 0;
}
void* aclCreateIntArray(const int64_t* values, uint64_t count) { return new Numbers{{values, values + count}}; }
void* aclCreateFloatArray(const float*, uint64_t) { return new Numbers{}; }
void* aclCreateBoolArray(const bool*, uint64_t) { return new Numbers{}; }
int aclDestroyIntArray(Numbers* numbers) {
  delete numbers;
  return 0;
}
int aclDestroyFloatArray(Numbers* numbers) { return aclDestroyIntArray(numbers); }
int aclDestroyBoolArray(Numbers* numbers) { return aclDestroyIntArray(numbers); }
void* aclCreateTensorList(Tensor* const* items, uint64_t count) { return new Tensors{{items, items + count}}; }
// As in CANN, destroying a list also destroys its elements.
int aclDestroyTensorList(Tensors* list) {
  for (auto* item : list->items) delete item;
  delete list;
  return 0;
}
void* aclCreateScalarList(Scalar* const* items, uint64_t count) { return new Scalars{{items, items + count}}; }
int aclDestroyScalarList(Scalars* list) {
  for (auto* item : list->items) delete item;
  delete list;
  return 0;
}
int aclGetViewShape(const Tensor* tensor, int64_t** sizes, uint64_t* dims) {
  *dims = tensor->sizes.size();
  *sizes = static_cast<int64_t*>(malloc(sizeof(int64_t) * (*dims + 1)));  // the caller frees it
  memcpy(*sizes, tensor->sizes.data(), sizeof(int64_t) * *dims);
  return 0;
}

int aclnnInplaceZeroGetWorkspaceSize(Tensor* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { fill(*to, {0, 0}); });
}
int aclnnInplaceZero(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnInplaceOneGetWorkspaceSize(Tensor* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { fill(*to, {1, 1}); });
}
int aclnnInplaceOne(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnInplaceFillScalarGetWorkspaceSize(Tensor* to, Scalar* value, uint64_t* size, void** executor) {
  return keep(size, executor, [to, value = *value] { fill(*to, value); });
}
int aclnnInplaceFillScalar(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnInplaceCopyGetWorkspaceSize(Tensor* to, Tensor* from, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { copy(*to, *from); });
}
int aclnnInplaceCopy(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnCastGetWorkspaceSize(Tensor* from, int, Tensor* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { copy(*to, *from); });
}
int aclnnCast(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

// torch_npu's own attention inverts a mask with this, without a torch operator.
int aclnnLogicalNotGetWorkspaceSize(Tensor* from, Tensor* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { turn_round(*to, *from); });
}
int aclnnLogicalNot(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

// torch_npu's own assignment by a mask calls these, without a torch operator.
int aclnnNonzeroGetWorkspaceSize(Tensor* from, Tensor* into, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { find_nonzero(*from, *into, false); });
}
int aclnnNonzero(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnNonzeroV2GetWorkspaceSize(Tensor* from, Tensor* into, uint64_t* size, void** executor) {
  return keep(size, executor, [=] { find_nonzero(*from, *into, true); });
}
int aclnnNonzeroV2(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnForeachCopyGetWorkspaceSize(Tensors* from, Tensors* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=] {
    for (size_t i = 0; i < from->items.size(); ++i) copy(*to->items[i], *from->items[i]);
  });
}
int aclnnForeachCopy(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }

int aclnnConstantPadNdGetWorkspaceSize(Tensor* from, Numbers* pads, Scalar* value, Tensor* to, uint64_t* size, void** executor) {
  return keep(size, executor, [=, value = *value] { pad(*to, *from, pads->values, value); });
}
int aclnnConstantPadNd(void*, uint64_t, void* executor, void* stream) { return perform(executor, stream); }
}
