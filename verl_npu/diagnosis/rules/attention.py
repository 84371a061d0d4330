"""Attention and operators: packages for GPUs, shapes and masks, and kernels that do not compile."""

from __future__ import annotations

from ..rule import Precision, rule

__all__ = ["ATTENTION"]

ATTENTION = (
    rule(
        "flash-attn-placeholder",
        Precision.EXACT,
        r"No module named 'flash_attn\.\w+(?:\.\w+)*'; 'flash_attn' is not a package",
        means="MindSpeed puts an empty module in the place of flash_attn, and another library takes it for the "
        "package",
        fix="update vllm and vllm-ascend; if it stays, import vLLM's module before MindSpeed. Do not install "
        "flash_attn, which "
        "is for GPUs",
        seen=("vllm-project/vllm-ascend#6555", "vllm-project/vllm-ascend#5563", "modelscope/ms-swift#7990"),
    ),
    rule(
        "flash-attn-asked-for",
        Precision.EXACT,
        r"No package metadata was found for flash_attn|PackageNotFoundError: flash_attn|No module named 'flash_attn'"
        r"|FlashAttention2 has been toggled on, but it cannot be used|flash_attn seems to be not installed",
        means="flash_attention_2 was asked for, and this transformers does not know NPUs there (4.54 to 4.55.2, or "
        "with "
        "the package kernels installed)",
        fix="install transformers 4.52.4, 4.53.3 or 4.55.3 and newer, uninstall kernels, and activate verl-npu's "
        "feature "
        "attention; never install flash_attn on an NPU",
        seen=("huggingface/transformers#36696", "huggingface/transformers#36383"),
    ),
    rule(
        "mask-shape",
        Precision.EXACT,
        r"get unsupported atten_mask shape, the shape is (?P<shape>\[[^\]]*\])",
        means="fused attention was given a mask of shape {shape}; it takes [B, N, Sq, Skv], [B, 1, Sq, Skv], [1, 1, "
        "Sq, Skv] "
        "and [Sq, Skv], and does not broadcast others",
        fix="expand the mask to [B, 1, Sq, Skv], or use attn_implementation=flash_attention_2, which makes its own",
        seen=("vllm-project/vllm-ascend#6573", "huggingface/diffusers#13490"),
    ),
    rule(
        "ub-overflow",
        Precision.EXACT,
        r"ub overflow, requires (?P<wants>\d+) bits while (?P<has>\d+)",
        means="a Triton kernel needs {wants} bits of an AI core's buffer, which has {has}: its blocks were chosen "
        "for a GPU",
        fix="in verl set actor_rollout_ref.model.use_fused_kernels=False; in a kernel of yours choose smaller blocks",
        seen=("verl-project/verl#7950", "triton-lang/triton-ascend#302", "Ascend/pytorch#102"),
        anywhere=True,
    ),
    rule(
        "operator-not-in-cann",
        Precision.EXACT,
        r"(?P<name>aclnn\w+) or aclnn\w+ not in libopapi\.so",
        means="this CANN has no operator {name}, which torch_npu calls: CANN is older than torch_npu needs",
        fix="install the CANN, with its operators (kernels) for your NPU, that belongs to your torch_npu",
        seen=("vllm-project/vllm#8054",),
    ),
    rule(
        "operator-not-in-torch-npu",
        Precision.EXACT,
        r"module 'torch_npu' has no attribute '(?P<name>npu_\w+)'"
        r"|'_OpNamespace' 'npu' object has no attribute '(?P<op>\w+)'",
        means="this torch_npu has no operator {name}: it is older than the program needs",
        fix="install the torch_npu of your pin",
        seen=("Ascend/op-plugin: op_plugin/config/op_plugin_functions.yaml",),
    ),
    rule(
        "operator-argument",
        Precision.EXACT,
        r"(?P<name>npu_\w+)\(\)[^\n]*(?:[Uu]nknown keyword argument|unexpected keyword argument"
        r"|expected at most)[^\n]*",
        means="{name} was called with an argument that this torch_npu does not know: newer releases added "
        "softmax_layout, "
        "sink and others",
        fix="install the torch_npu of your pin",
        seen=("Ascend/op-plugin: docs of npu_fusion_attention",),
    ),
    rule(
        "index-out-of-range",
        Precision.EXACT,
        r"Assertion `\(0 <= val && val < this->gxSize_\)' Index (?P<index>\d+) out of range\[0 (?P<size>\d+)\)",
        means="an operator was asked for element {index} of {size}: a token id above the vocabulary, a position "
        "above the "
        "table, or a wrong index",
        fix="compare the tokenizer's size with the model's vocabulary and the sequence length with its positions; "
        "ASCEND_LAUNCH_BLOCKING=1 shows the line",
        seen=("vllm-project/vllm-ascend#1115",),
        anywhere=True,
    ),
    rule(
        "operator-binary",
        Precision.EXACT,
        r"error code is 561003\b|the socversion \S+ of bin package does not match",
        means="CANN has no compiled operators for this NPU",
        fix="install CANN's kernels package for your NPU (910b for A2, 910_93 for A3), of the toolkit's version",
        seen=("hiascend.com: CANN 9.1.0, aclnn return codes", "vllm-project/vllm-ascend#6676"),
    ),
    rule(
        "compile-backend",
        Precision.EXACT,
        r"BackendCompilerFailed|torch\._inductor\.exc\.\w+",
        means="torch.compile has no working backend on this NPU",
        fix="set actor_rollout_ref.actor.use_torch_compile=False (and the same for ref and critic), as verl's "
        "scripts for "
        "NPUs do",
        seen=("verl-project/verl#3618",),
    ),
    rule(
        "attention-failed",
        Precision.CODE,
        r"call (?P<name>aclnn(?:FlashAttention|FusedInferAttention)\w*) failed",
        means="fused attention ({name}) refused its arguments; the lines after EZ9999 say which",
        fix="compare head sizes, layout, lengths and mask with the operator's documents; the first `get "
        "unsupported` or "
        "`check ... failed` line names the argument",
        seen=("vllm-project/vllm-ascend#12623", "vllm-project/vllm-ascend#8523", "vllm-project/vllm-ascend#10094"),
    ),
    rule(
        "kernel-compilation",
        Precision.CODE,
        r"MLIRCompilationError|Failed to run BiShengI?R",
        means="triton-ascend could not compile a kernel",
        fix="read the first `error:` line after it; try the triton-ascend of your pin, and the program without that "
        "kernel",
        seen=("vllm-project/vllm-ascend#7421", "triton-lang/triton-ascend#1638"),
    ),
)
