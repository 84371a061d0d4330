"""Runs a comparison of layers for a launch script: the engine and the trainer, one after the other."""

from __future__ import annotations

import json
import os
import pickle
import random
import tempfile
from collections.abc import Mapping, Set
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_npu import progress
from verl_npu.ascend.variables import NZ, VIRTUAL_NPUS
from verl_npu.errors import RolloutError
from verl_npu.language import gettext as _
from verl_npu.language import ngettext
from verl_npu.registry.source.tree import SourceTree

from ..jobs.keys import ACTOR, MAX_PROMPT, MODEL, PACKED, PATH, ROLLOUT, ROLLOUT_TENSOR, STRATEGY, is_megatron, size
from ..jobs.settings import Settings
from ..processes import captured, own_python
from ..rehearse.preparation import chosen_architecture, small_model_of
from ..sandbox import available_memory
from . import ASK, CHUNKS, EXCHANGED, GRAPHS, PREFIX, RESULT

_LENGTHS, _SHARED, _NEW, _LONGEST = (20, 150, 7, 140), 130, 12, 256
"""The lengths of the prompts, the number of tokens that two of them share, which is more than a block of the cache,
the length of the answers, and the engine's limit. The middle of the packed sequences is within an answer: two ranks
may divide them there."""
_GIB, _LAYERS = 1 << 30, 2
_BLOCKS = 64
"""The blocks of the engine's cache, which are many times what the prompts and answers need."""
_CHUNK, _WHOLE = 64, 2048
"""The tokens that the engine computes at once with and without chunked prefill."""
IN_JOBS = ("qwen2", "qwen3", "qwen3_moe", "deepseek_v3")
SUPPORTED = (*IN_JOBS, "qwen2_5_vl", "qwen3_5")
"""The model types that can be compared within a job, and by the command."""
_MEGATRON, _FSDP = f"{ACTOR}.megatron", f"{ACTOR}.fsdp_config"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""verl's other names of dtypes."""


def compare_layers(settings: Settings, models: Path, architecture: str = "") -> Mapping[str, Any]:
    """Compare what a script's engine and trainer compute, and return the result as JSON.

    Raises:
        CommandError: the script's model is not on this machine, and its architecture is unknown.
        RolloutError: the model is of an unsupported type, or the engine or the trainer fails.
    """
    notes = [_("weights after a weight sync: the trainer and the engine load the same checkpoint")]
    path = Path(settings.text(PATH)).expanduser()
    if not (path / "config.json").is_file() or not [*path.glob("*.safetensors")]:
        made = chosen_architecture(settings, architecture)
        note = _("the model {path}: a small random model takes its place ({name}, {layers} layers)")
        notes.append(note.format(path=settings.text(PATH), name=made.name, layers=_LAYERS))
        _check_supported(made.name)
        path = small_model_of(made, _LAYERS, models)
    else:
        _check_supported(str(json.loads((path / "config.json").read_text()).get("model_type")))
    _check_memory(path, {_rollout_dtype(settings), _trainer_dtype(settings)})
    variables = _variables()
    with tempfile.TemporaryDirectory(prefix="verl-npu-layers-") as made_in:
        folder = Path(made_in)
        (folder / ASK).write_text(json.dumps({"engine": {"model": str(path), "dtype": _rollout_dtype(settings)}}))
        _run(folder, variables, _("reading the trainer's weights"), "computing", "prepare")
        prepared = json.loads((folder / ASK).read_text())
        asked, exchanged = _asked(settings, path, prepared["npus"], notes)
        (folder / ASK).write_text(json.dumps({**prepared, **asked}))
        if find_spec("vllm") is None:
            exchanged = {}
        else:
            _run(folder, variables, _("letting the engine answer"), "vllm")
        if GRAPHS in exchanged:
            _answer_again(folder, variables, {GRAPHS: exchanged.pop(GRAPHS)}, notes)
        found = _compared(folder, variables)
        if exchanged and found["first"] and found["first"]["side"] == "engine" and not found["cause"]:
            _answer_again(folder, variables, exchanged, notes)
            found = _compared(folder, variables)
    return {
        "engine": _engine(),
        "model": str(path),
        "simulated": VIRTUAL_NPUS in variables,
        **found,
        "not_shown": [*notes, *found["not_shown"]],
    }


def _compared(folder: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    _run(folder, variables, _("computing each layer in the trainer and in float64"), "computing", "compare")
    found: dict[str, Any] = pickle.loads((folder / RESULT).read_bytes())
    return found


def _answer_again(
    folder: Path, variables: Mapping[str, str], exchanged: Mapping[str, Mapping[str, object]], notes: list[str]
) -> None:
    """Record the engine with each of these settings exchanged. An engine that fails is a note."""
    asked = json.loads((folder / ASK).read_text())
    for name, change in exchanged.items():
        (own := folder / str(EXCHANGED.index(name))).mkdir()
        (own / ASK).write_text(json.dumps({**asked, "engine": {**asked["engine"], **change}}))
        try:
            what = _("letting the engine answer with another setting of {name}").format(name=name)
            _run(own, variables, what, "vllm")
        except RolloutError as error:
            notes.append(_("the engine with another setting of {name}: {error}").format(name=name, error=str(error)))


def _check_supported(kind: str) -> None:
    if kind not in SUPPORTED:
        raise RolloutError(
            subject=_("the model type {kind}").format(kind=kind),
            expected=_("one of ") + _(", ").join(SUPPORTED),
            found=_("a model type whose operators verl-npu does not know"),
            fix=_("compare the layers of a script whose model has one of these types"),
        )


def _check_memory(path: Path, dtypes: Set[str]) -> None:
    """Raise RolloutError if the host cannot hold the model, and for each dtype a copy in it and one in float64."""
    config = json.loads((path / "config.json").read_text())
    own = 4 if "float32" in (config.get("dtype"), config.get("torch_dtype")) else 2
    sizes = [4 if dtype == "float32" else 2 for dtype in dtypes]
    whole = sizes[0] if len(sizes) == 1 else 4
    count = sum(each.stat().st_size for each in path.glob("*.safetensors")) // own
    needed = count * (whole + 8 * len(sizes) + sum(sizes))
    available = available_memory()
    if needed > available:
        raise RolloutError(
            subject=_("a comparison of the layers of {path}").format(path=path),
            expected=_("{size:.1f} GiB of free memory on this host").format(size=needed / _GIB),
            found=f"{available / _GIB:.1f} GiB",
            fix=_(
                "compare on a host with more memory, or compare a small random model by specifying a model path "
                "without weights"
            ),
        )


def _asked(
    settings: Settings, path: Path, npus: int, notes: list[str]
) -> tuple[dict[str, Any], dict[str, Mapping[str, object]]]:
    """Return what the programs must compute, and the changes with which the engine may answer again."""
    config = json.loads((path / "config.json").read_text())
    vocabulary = config.get("vocab_size") or config["text_config"]["vocab_size"]
    numbers, special = random.Random(0), [value for key, value in config.items() if key.endswith("_token_id")]
    tokens = [each for each in range(5, vocabulary - 5) if each not in special]
    sampling = {
        "temperature": settings.number(f"{ROLLOUT}.temperature", 1.0),
        "top_k": settings.whole(f"{ROLLOUT}.top_k", -1),
        "top_p": settings.number(f"{ROLLOUT}.top_p", 1.0),
    }
    parallel = size(settings, ROLLOUT_TENSOR)
    if parallel > npus:
        notes.append(
            ngettext(
                "the engine's tensor parallelism {size}: computed with 1, because this machine has {npus} NPU",
                "the engine's tensor parallelism {size}: computed with 1, because this machine has {npus} NPUs",
                npus,
            ).format(size=parallel, npus=npus)
        )
        parallel = 1
    quantized = settings.text(f"{ROLLOUT}.quantization")
    if quantized:
        notes.append(_("the engine's quantization {name}: computed without it").format(name=quantized))
    mode, kwargs = settings.text(f"{ROLLOUT}.logprobs_mode"), settings.below(f"{ROLLOUT}.engine_kwargs.vllm")
    graphs = {**kwargs.pop("compilation_config", {}), "cudagraph_capture_sizes": [1, 2, 4]}
    chunks, cache = (
        _is_on(settings, f"{ROLLOUT}.{name}") for name in ("enable_chunked_prefill", "enable_prefix_caching")
    )
    pictures = "vision_config" in config
    # A chunk is no smaller than a block of the cache, and linear attention has large blocks.
    divided = chunks and "linear_attention" not in config.get("text_config", config).get("layer_types", ())
    exchanged: dict[str, Mapping[str, object]] = {}
    if divided:
        exchanged[CHUNKS] = {"max_num_batched_tokens": _WHOLE}
    if cache:
        exchanged[PREFIX] = {"enable_prefix_caching": False}
    if not settings.truth(f"{ROLLOUT}.enforce_eager"):
        exchanged[GRAPHS] = {"enforce_eager": False, "compilation_config": graphs}
    engine = {
        "model": str(path),
        "dtype": _rollout_dtype(settings),
        "tensor_parallel_size": parallel,
        "gpu_memory_utilization": settings.number(f"{ROLLOUT}.gpu_memory_utilization", 0.5),
        "enable_expert_parallel": settings.whole(f"{ROLLOUT}.expert_parallel_size", 1) > 1,
        "enable_prefix_caching": cache,
        "enable_chunked_prefill": chunks,
        **({"logprobs_mode": mode} if mode else {}),
        # The rest of the memory would be allocated for nothing, on a virtual NPU from the host's memory.
        "num_gpu_blocks_override": _BLOCKS,
        **kwargs,
        "enforce_eager": True,
        # A model with pictures has a processor, which needs the tokenizer also for text.
        "skip_tokenizer_init": not pictures,
        # vllm-ascend 0.11.0 fails if such a model takes no picture at all.
        **({"limit_mm_per_prompt": {"image": 1, "video": 0}} if pictures else {}),
        "max_model_len": _LONGEST,
        "max_num_batched_tokens": _CHUNK if divided else _WHOLE,
        "max_num_seqs": len(_LENGTHS),
    }
    prompts = [numbers.choices(tokens, k=length) for length in _LENGTHS]
    prompts[3][:_SHARED] = prompts[1][:_SHARED]
    # verl's trainer does not divide by a temperature of 0.
    temperature, padded = sampling["temperature"] or 1.0, settings.whole(MAX_PROMPT)
    asked = {
        "engine": engine,
        "sampling": {**sampling, "max_tokens": _NEW, "seed": 0},
        "settings": {**sampling, "temperature": temperature, "prompt_length": padded},
        "prompts": prompts,
        "attention": settings.text(f"{MODEL}.override_config.attn_implementation") or "flash_attention_2",
        "trainer": _trainer(settings, npus, notes),
    }
    return asked, exchanged


def _trainer(settings: Settings, npus: int, notes: list[str]) -> dict[str, Any]:
    # With Megatron, the ranks of a tensor-parallel group share their rows, and with Ulysses each has some.
    name, key = _("Ulysses sequence parallelism"), f"{ACTOR}.ulysses_sequence_parallel_size"
    if megatron := is_megatron(settings):
        name, key = _("tensor parallelism"), f"{_MEGATRON}.tensor_model_parallel_size"
    shared, of_experts = min(npus, size(settings, key)), f"{_MEGATRON}.expert_model_parallel_size"
    # Each group of ranks needs a prompt of its own.
    groups = min(npus // shared, len(_LENGTHS))
    experts = max(each for each in range(1, groups + 1) if groups % each == 0 and each <= size(settings, of_experts))
    parallel = [(name, key, shared)]
    if megatron:
        parallel += [
            (_("expert parallelism"), of_experts, experts),
            (_("pipeline parallelism"), f"{_MEGATRON}.pipeline_model_parallel_size", 1),
            (_("context parallelism"), f"{_MEGATRON}.context_parallel_size", 1),
        ]
    for said, each, used in parallel:
        if used < size(settings, each):
            note = _("the trainer's {name} {asked}: computed with {used}")
            notes.append(note.format(name=said, asked=size(settings, each), used=used))
    strategy, dtype, packed = settings.text(STRATEGY) or "fsdp", _trainer_dtype(settings), _is_on(settings, PACKED)
    fused = ""
    if megatron:
        engine = {
            "dtype": dtype,
            "use_remove_padding": packed,
            "forward_only": True,
            "tensor_model_parallel_size": shared,
            "expert_model_parallel_size": experts,
            "vanilla_mbridge": settings.truth(f"{_MEGATRON}.vanilla_mbridge"),
            "override_transformer_config": settings.below(f"{_MEGATRON}.override_transformer_config"),
        }
    else:
        engine = {
            "strategy": strategy,
            "model_dtype": settings.text(f"{_FSDP}.model_dtype") or "fp32",
            "mixed_precision": {"param_dtype": dtype, "reduce_dtype": "float32", "buffer_dtype": "float32"},
            "ulysses_sequence_parallel_size": shared,
            "use_torch_compile": False,
        }
        if settings.truth(f"{MODEL}.use_fused_kernels"):
            fused = settings.text(f"{MODEL}.fused_kernel_options.impl_backend") or "torch"
    return {
        "strategy": strategy,
        "ranks": groups * shared,
        "shared": shared,
        "remove_padding": packed,
        "dtype": dtype,
        "fused": fused,
        "engine": engine,
    }


def _rollout_dtype(settings: Settings) -> str:
    return settings.text(f"{ROLLOUT}.dtype") or "bfloat16"


def _trainer_dtype(settings: Settings) -> str:
    """Return the dtype in which the trainer computes. If the script does not say it, it is the engine's."""
    keys, otherwise = [f"{_FSDP}.mixed_precision.param_dtype"], _rollout_dtype(settings)
    if is_megatron(settings):
        keys = [f"{_MEGATRON}.dtype"]
    elif _workers_read_dtype(SourceTree.installed(("verl",))):
        keys.append(f"{_FSDP}.dtype")
    else:
        otherwise = "bfloat16"
    asked = next((settings.text(key) for key in keys if settings.text(key)), otherwise)
    return _DTYPES.get(asked, asked)


def _workers_read_dtype(verl: SourceTree) -> bool:
    """Return whether verl's FSDP workers read `fsdp_config.dtype`, as before its engines, which always compute in
    bfloat16 without `mixed_precision`."""
    engine = verl.read("verl.workers.engine.fsdp.transformer_impl")
    return engine is None or b"fsdp_config.dtype" in (verl.read("verl.workers.fsdp_workers") or b"")


def _is_on(settings: Settings, key: str) -> bool:
    return settings.truth(key) or settings.get(key) is None


def _variables() -> dict[str, str]:
    """Return the variables of the processes, which use virtual NPUs where there is no real torch_npu."""
    variables = {**os.environ, NZ.name: NZ.value, "HF_HUB_OFFLINE": "1"}
    try:
        version("torch_npu")
    except PackageNotFoundError:
        variables.setdefault(VIRTUAL_NPUS, "2")
    return variables


def _engine() -> str:
    for package in ("vllm-ascend", "vllm"):
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    return _("transformers with a cache")


def _run(folder: Path, variables: Mapping[str, str], what: str, module: str, *words: str) -> None:
    command = own_python("-m", f"{__package__}.{module}", *words, str(folder))
    with progress.step(what):
        done = captured(command, env=variables, cwd=folder)
    if done.returncode:
        # pydantic ends its errors with an address.
        lines = [line for line in done.stderr.splitlines() if line.strip() and "For further information" not in line]
        raise RolloutError(
            subject=_("the program {module}").format(module=module),
            expected=_("a recording of the layers"),
            found=(lines or [_("no output")])[-1][:500],
            fix=_(
                "run `verl-npu rehearse` with this script first: if the job does not start, the rehearsal "
                "reports more about the reason"
            ),
        )
