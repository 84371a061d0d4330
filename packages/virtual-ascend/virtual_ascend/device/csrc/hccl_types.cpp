#include "hccl_types.h"

#include "alias.h"

#include <c10/core/ScalarType.h>

namespace virtual_ascend {
namespace {

constexpr const char* kNotSupported = " (ERR02007 DIST feature not supported)";

const char* name_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kBool: return "at::kByte/at::kBool";
    case at::kDouble: return "at::kDouble";
    default: return c10::toString(type);
  }
}

bool known(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
    case at::kBFloat16:
    case at::ScalarType::UInt16:
    case at::ScalarType::UInt32:
    case at::ScalarType::UInt64:
    case at::ScalarType::Float8_e4m3fn:
    case at::ScalarType::Float8_e5m2: return true;
    default: return false;
  }
}

bool reducible(at::ScalarType type) {
  switch (type) {
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kBFloat16: return true;
    default: return false;
  }
}

// A dtype of the same width that gloo can move.
at::ScalarType carrier(at::ScalarType type) {
  switch (type) {
    case at::kShort:
    case at::ScalarType::UInt16: return at::kHalf;
    case at::ScalarType::UInt32: return at::kInt;
    case at::ScalarType::UInt64: return at::kLong;
    case at::ScalarType::Float8_e4m3fn:
    case at::ScalarType::Float8_e5m2: return at::kByte;
    default: return type;
  }
}

void check_known(at::ScalarType type) {
  TORCH_CHECK(known(type), "Unsupported data type for HCCL process group", kNotSupported, ": ", type);
}

}  // namespace

void check_reduction(const char* function, const c10d::ReduceOp& op, const at::Tensor& tensor, bool casts) {
  const auto type = tensor.scalar_type();
  check_known(type);
  TORCH_CHECK(reducible(type) || (casts && (type == at::kBool || type == at::kByte)), "HCCL ", function, ": Unsupported data type ",
              name_of(type), kNotSupported);
  const char* refused = op == c10d::ReduceOp::BAND         ? "BAND"
                        : op == c10d::ReduceOp::BOR        ? "BOR"
                        : op == c10d::ReduceOp::BXOR       ? "BXOR"
                        : op == c10d::ReduceOp::PREMUL_SUM ? "PREMUL_SUM"
                                                           : nullptr;
  TORCH_CHECK(refused == nullptr, "Cannot use ReduceOp.", refused, " with HCCL", kNotSupported);
}

void check_contiguous(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(tensor.suggest_memory_format()), "Tensors must be contiguous (ERR02002 DIST invalid type)");
}

void check_contiguous(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) check_contiguous(tensor);
}

at::Tensor moved(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  check_known(type);
  auto alias = lent_alias(tensor);
  return carrier(type) == type ? alias : alias.view(carrier(type));
}

std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  out.reserve(tensors.size());
  for (const auto& tensor : tensors) out.push_back(moved(tensor));
  return out;
}

at::Tensor reducible_by_gloo(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kBool || type == at::kShort ? tensor.to(at::kInt) : tensor;
}

}  // namespace virtual_ascend
