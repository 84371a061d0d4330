"""The reasons why tests of PyTorch cannot pass on a virtual NPU."""

from __future__ import annotations

_OPERATOR = "calls an operator of the example device's own"
_CAPABILITY = "torch_npu does not answer `torch.accelerator.get_device_capability`"
_METADATA = "torch_npu keeps a storage's format there, and no keys of the caller; formats are not simulated"
_SDPA = "attention is PyTorch's own arithmetic here; the example device, and a real NPU, have an operator"

# The test, as file::class::name.
REASONS: dict[str, str] = {
    "test_autocast::TestAutocast::test_npu_autocast_error_message": "float32 is among torch_npu's autocast dtypes",
    "test_autocast::TestAutocast::test_npu_autocast_float32_supported": (
        "`dot` in float32 is the example device's own rule, not torch_npu's"
    ),
    "test_device::TestDevice::test_device_capability": _CAPABILITY,
    "test_device::TestDevice::test_device_properties": _CAPABILITY,
    "test_device::TestDevice::test_invalid_device_index": "raises a RuntimeError of other words",
    "test_ops::TestAutogradFunction::test_compile_autograd_function_aliasing": _OPERATOR,
    "test_ops::TestAutogradFunction::test_compile_autograd_function_returns_self": _OPERATOR,
    "test_ops::TestCustomAutogradFunctions::test_custom_autograd_fn_aliasing_basic": _OPERATOR,
    "test_ops::TestCustomAutogradFunctions::test_custom_autograd_fn_aliasing_no_grad": _OPERATOR,
    "test_ops::TestCustomAutogradFunctions::test_custom_autograd_fn_returns_self_basic": _OPERATOR,
    "test_ops::TestCustomAutogradFunctions::test_custom_autograd_fn_returns_self_no_grad": _OPERATOR,
    "test_ops::TestFactory::test_empty": "asks for named tensors, which torch 2.13 no longer has, on the CPU either",
    "test_ops::TestSDPA::test_fused_sdp_choice_privateuseone": _SDPA,
    "test_ops::TestSDPA::test_scaled_dot_product_fused_attention_overrideable_backward": _SDPA,
    "test_ops::TestSDPAExtended::test_fused_sdp_choice_with_mask": _SDPA,
    "test_ops::TestSTUBExtended::test_custom_abs": _OPERATOR,
    "test_openreg::TestNPU::test_autograd_init": "asks the example device's module for NUM_DEVICES",
    "test_pointwise_ops::DistElementwiseOpsTest::test_dropout_errors": (
        "expects the error of the CPU, which composes dropout of operators in place; on an NPU it is one operator"
    ),
    "test_redistribute::RedistributeTest::test_redistribute_shard_dim_change": (
        "expects an all-gather of every device but cuda; an NPU's backend has the all-to-all that is used there"
    ),
    "test_rng::TestRNG::test_offset_unsupported": "functions of the example device; an NPU's generator has an offset",
    "test_storage::TestSerialization::test_copy_backend_meta": _METADATA,
    "test_storage::TestSerialization::test_fake_tensor_metadata_preservation": _METADATA,
    "test_storage::TestSerialization::test_fake_tensor_metadata_preservation_functional": _METADATA,
    "test_storage::TestSerialization::test_open_device_numpy_serialization": (
        "reads a file whose bytes hold the example device's name and its length"
    ),
    "test_storage::TestSerialization::test_serialization": _METADATA,
    "test_storage::TestSerialization::test_serialization_metadata_preservation": _METADATA,
}


def reason(test: str, skipped: str = "") -> str:
    """Return the reason why a test does not pass, PyTorch's own words if it skips the test, or an empty text."""
    return REASONS.get(test, skipped)
