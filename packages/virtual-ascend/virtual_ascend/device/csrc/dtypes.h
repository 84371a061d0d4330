// Dtype checks that ATen's CPU kernels do and its Meta kernels do not.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace virtual_ascend::dtypes {

// Raises where the CPU kernel would: for mixed floating-point dtypes, and for an index that is neither integer nor
// bool.
void check(const c10::OperatorHandle& op, const c10::IValue* arguments);

}  // namespace virtual_ascend::dtypes
