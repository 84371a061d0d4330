"""The levers of a job's speed, each with the figure that somebody published for it.

A lever is a setting or a variable. `verl-npu lint` prints advice about each lever that is set the slower way. Advice
is never a refusal, because each figure is from another job. The table has no figure without a source.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from verl_npu import environment
from verl_npu.ascend.variables import NZ, NZ_KEY
from verl_npu.findings import Finding, Severity
from verl_npu.language import gettext as _

from ..pins import PINS, Component
from .keys import BATCH, ENGINE, MINI_BATCH, MODE, NPUS, PATH, ROLLOUT, SYNC_STEP, is_megatron, size
from .modes import trainers
from .rules import OWN_TASK_QUEUE, TASK_QUEUE, Script, is_applied, task_queue_of_engine
from .settings import Settings, override, written

_VLLM = f"{ROLLOUT}.engine_kwargs.vllm"
_EAGER, _GRAPHS = f"{ROLLOUT}.enforce_eager", f"{_VLLM}.compilation_config.cudagraph_mode"
_BINDING = f"{_VLLM}.additional_config.enable_cpu_binding"
_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_UNBOUND = "0.13.0"
"""A release of vllm-ascend that knows `enable_cpu_binding`, but does not enable it. Releases from 0.18 on do."""
_LINEAR_ATTENTION = re.compile(r"qwen3[._-]?(5|next)", re.IGNORECASE)
_GITHUB = "https://github.com"

Values = Mapping[str, object]
"""Values by the names of settings or variables. As a change, None removes the setting or the variable."""


class Effect(enum.Enum):
    """The state of a lever that there is advice about."""

    PAYS = _("off, and it pays")
    COSTS = _("on, and it costs")
    IDLE = _("on, and it did nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One lever."""

    name: str
    effect: Effect
    found: Callable[[Script], Values]
    """Return the settings and variables of a script that are set the slower way. Empty if there is nothing to
    advise."""
    change: Callable[[Script], Values]
    """Return the change to try. Empty if no setting makes the change; `fix` then says what to do."""
    figure: str
    conditions: str
    """The model, the machine, and the versions of the measurement, and what to watch."""
    source: tuple[str, ...]
    fix: str = ""

    @property
    def code(self) -> str:
        """The code of this lever's advice."""
        return f"lever.{self.name}"


def _eager(script: Script) -> Values:
    settings, server = script.settings, script.sources.read(_SERVER) or b""
    # Only these verls pass FULL_DECODE_ONLY on, and vllm-ascend#5200 saw captures fail beside FLASHCOMM1.
    possible = b"cudagraph_mode" in server and script.environ.get("VLLM_ASCEND_ENABLE_FLASHCOMM1") != "1"
    return {_EAGER: True} if possible and settings.text(ENGINE) == "vllm" and settings.truth(_EAGER) else {}


def _capture(script: Script) -> Values:
    variable, level = task_queue_of_engine(script)
    return {_EAGER: False, _GRAPHS: "FULL_DECODE_ONLY", **({variable: "1"} if level == "2" else {})}


def _one_task_queue(script: Script) -> Values:
    level, has_own = script.environ.get(TASK_QUEUE), task_queue_of_engine(script)[0] == OWN_TASK_QUEUE
    return {TASK_QUEUE: level} if has_own and script.settings.text(ENGINE) == "vllm" and level != "2" else {}


def _unbound(script: Script) -> Values:
    settings, engine = (
        script.settings,
        PINS[script.pin].cells.get(Component.VLLM_ASCEND) if script.pin in PINS else None,
    )
    if settings.text(ENGINE) != "vllm" or settings.truth(_BINDING):
        return {}
    by_default = engine is None or not any(SpecifierSet(each.needs).contains(_UNBOUND) for each in engine.claims)
    # torch_npu binds, too, if this variable asks for it.
    bound = by_default or script.environ.get("CPU_AFFINITY_CONF", "0") != "0"
    return {} if bound and settings.get(_BINDING) is None else {_BINDING: settings.get(_BINDING)}


def _synchronous(script: Script) -> Values:
    settings = script.settings
    wanted = script.trainer.module == "verl.trainer.main_ppo" and settings.truth("trainer.use_v1")
    known = wanted and settings.text(MODE) == "sync" and "separate_async" in trainers(script.sources)
    return {MODE: "sync"} if known and settings.whole(BATCH) % size(settings, MINI_BATCH) == 0 else {}


def _separate(script: Script) -> Values:
    settings = script.settings
    return {
        MODE: "separate_async",
        SYNC_STEP: max(settings.whole(BATCH) // size(settings, MINI_BATCH), 1),
        f"{ROLLOUT}.nnodes": 1,
        f"{ROLLOUT}.n_gpus_per_node": settings.whole(NPUS),
        f"{ROLLOUT}.checkpoint_engine.backend": "hccl",
    }


def _without_fused_ops(script: Script) -> Values:
    disabled = is_applied(script, "") and not is_applied(script, "fused_ops")
    name = environment.DISABLE.name
    return {name: script.environ[name]} if disabled and not is_megatron(script.settings) else {}


def _with_fused_ops(script: Script) -> Values:
    left_out = [each for each in environment.DISABLE.text(script.environ).split(",") if each.strip() != "fused_ops"]
    return {environment.DISABLE.name: ",".join(left_out) or None}


def _linear_attention(script: Script) -> Values:
    path = script.settings.text(PATH)
    return {PATH: path} if _LINEAR_ATTENTION.search(path) and not is_megatron(script.settings) else {}


def _set_to(value: str, *names: str) -> Callable[[Script], Values]:
    """Return a function that finds the settings that match, and the variables with one of the names, if they have this
    value."""

    def found(script: Script) -> Values:
        values = {key: script.settings.get(key) for name in names for key in script.settings.matching(name)}
        values |= {name: script.environ[name] for name in names if name in script.environ}
        return {name: each for name, each in values.items() if str(each).lower() == value}

    return found


def _removed(found: Callable[[Script], Values]) -> Callable[[Script], Values]:
    return lambda script: dict.fromkeys(found(script))


def _idle(name: str, value: str, *names: str) -> Lever:
    found = _set_to(value, *names)
    return Lever(
        name=name,
        effect=Effect.IDLE,
        found=found,
        change=_removed(found),
        figure=_("0.0 % of the time per token"),
        conditions=_("a dense model with graphs and 1 or 4 requests at a time; a full batch may differ"),
        source=(f"{_GITHUB}/vllm-project/vllm-ascend/pull/11109",),
    )


_forced = _set_to("2", NZ.name, rf"{re.escape(_VLLM)}\.additional_config\.{NZ_KEY}")

LEVERS = (
    Lever(
        name="graphs",
        effect=Effect.PAYS,
        found=_eager,
        change=_capture,
        figure=_("15 to 20 % of the engine's time, on average"),
        conditions=_(
            "Qwen3-32B, 4 Atlas 800T A3, vllm-ascend 0.18, where eager mode also loses a fused operator (verl#6948); "
            "in one job, CANN refused such a graph (EE1023, verl#7959)"
        ),
        source=(
            "verl 1dda039b: docs/ascend_tutorial/model_support/examples/gspo_optimization_practice.md",
            f"{_GITHUB}/verl-project/verl/pull/6948",
            f"{_GITHUB}/verl-project/verl/issues/7959",
        ),
    ),
    Lever(
        name="fused-ops",
        effect=Effect.PAYS,
        found=_without_fused_ops,
        change=_with_fused_ops,
        figure=_("15.25 % of a step for norms and rotary embeddings; over 20 % of the training for experts"),
        conditions=_(
            "fine-tuning Qwen3 with VeOmni, and Qwen3-MoE with verl's FSDP; rotary embeddings alone 5 % (Qwen3-VL-8B, "
            "8 Ascend 910B); over 7 % of the throughput of GRPO with siiRL (Qwen2.5-7B)"
        ),
        source=(
            f"{_GITHUB}/ByteDance-Seed/VeOmni/pull/308",
            f"{_GITHUB}/ByteDance-Seed/VeOmni/pull/323",
            f"{_GITHUB}/verl-project/verl/pull/4406",
            f"{_GITHUB}/sii-research/siiRL/pull/43",
        ),
    ),
    Lever(
        name="gated-delta-rule",
        effect=Effect.PAYS,
        found=_linear_attention,
        change=lambda script: {},
        figure=_("training is about 33 % slower where transformers' torch code computes the gated delta rule"),
        conditions=_("Qwen3.5 with twinkle and MindSpeed's Triton kernels; transformers falls back without an error"),
        source=(f"{_GITHUB}/modelscope/twinkle/pull/204",),
        fix=_("run `verl-npu check MODEL` in the job's environment, which says what computes it there"),
    ),
    Lever(
        name="cpu-binding",
        effect=Effect.PAYS,
        found=_unbound,
        change=lambda script: {_BINDING: True},
        figure=_("18 % more tokens per second in one measurement, 1 % in another"),
        conditions=_(
            "decoding with 1 request at a time: Qwen3-8B, tensor parallelism 8, Atlas 800I A2 (18 %), and a dense "
            "model (1 %); only on hosts with Arm processors"
        ),
        source=(
            f"{_GITHUB}/vllm-project/vllm-ascend/issues/6966",
            f"{_GITHUB}/vllm-project/vllm-ascend/pull/11109",
        ),
    ),
    Lever(
        name="asynchrony",
        effect=Effect.PAYS,
        found=_synchronous,
        change=_separate,
        figure=_("1.72 times as many steps"),
        conditions=_(
            "GRPO of Qwen3-4B with vime on A3, with separate NPUs for trainer and servers in both runs; on four nodes "
            "of GPUs, 150 steps took 22.79 h with verl's sync and 14.10 h with separate_async (Qwen3.5-35B-A3B); the "
            "servers need NPUs of their own, and answers may be older than the policy"
        ),
        source=(
            f"{_GITHUB}/vllm-project/vime/issues/358",
            "verl 1dda039b: docs/advance/v1_async_trainer.md",
        ),
    ),
    Lever(
        name="task-queue",
        effect=Effect.PAYS,
        found=_one_task_queue,
        change=lambda script: {TASK_QUEUE: "2", OWN_TASK_QUEUE: "1"},
        figure=_("no published figure"),
        conditions=_("level 2 is for trainers, and engines that capture graphs need level 1"),
        source=(f"{_GITHUB}/verl-project/verl/pull/6562",),
    ),
    Lever(
        name="forced-nz",
        effect=Effect.COSTS,
        found=_forced,
        change=_removed(_forced),
        figure=_("10.8 % more time per token"),
        conditions=_("a dense model with graphs and 1 request at a time"),
        source=(f"{_GITHUB}/vllm-project/vllm-ascend/pull/11109",),
    ),
    _idle("balance-scheduling", "1", "VLLM_ASCEND_BALANCE_SCHEDULING"),
    _idle("matmul-allreduce", "1", "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE"),
    _idle("block-size", "128", rf"{re.escape(_VLLM)}\.block_size"),
    _idle("static-kernel", "true", rf"{re.escape(_VLLM)}\.additional_config\..*enable_static_kernel"),
)

BY_CODE = {lever.code: lever for lever in LEVERS}


def advice(script: Script) -> Iterator[Finding]:
    """Yield the advice about each lever that a script sets the slower way."""
    for lever in LEVERS:
        found = lever.found(script)
        if found:
            yield Finding(
                lever.code,
                Severity.ADVICE,
                lever.figure,
                subject=", ".join(_written(name, value) for name, value in found.items()),
                why=lever.conditions,
                fix=lever.fix or _fix(lever.change(script), script.settings),
                source=lever.source,
            )


def _written(name: str, value: object) -> str:
    return _("{name} (not set)").format(name=name) if value is None else f"{name}={value}"


def _fix(change: Values, settings: Settings) -> str:
    variables = {name: value for name, value in change.items() if name.isupper()}
    exported = [f"{name}={value}" for name, value in variables.items() if value is not None]
    added = [
        f"{name}={written(value)}" if name in settings else override(name, value)
        for name, value in change.items()
        if value is not None and name not in variables
    ]
    removed = [name for name, value in change.items() if value is None]
    parts = (
        _("set {names}").format(names=" ".join(added)) if added else "",
        _("export {names}").format(names=" ".join(exported)) if exported else "",
        _("remove {names}").format(names=_(", ").join(removed)) if removed else "",
    )
    return _(", and ").join(part for part in parts if part)
