// Operators without their own kernel run the CPU kernel on zero-copy aliases of their tensors.
#pragma once

namespace virtual_ascend {

// Called once after all kernels of this device are registered; sends the remaining operators directly to the CPU.
void register_fallbacks();

}  // namespace virtual_ascend
