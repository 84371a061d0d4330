"""What is known to be wrong with a launch script before it runs: each rule looks at one thing.

Refused is only what is shown to fail: by Hydra, by an assertion of upstream's that a rule names, by MindSpeed, or by
verl-npu itself, whose own functions are asked that end the job. What cannot be shown is a warning.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any  # A configuration of OmegaConf's.

from verl_npu import environment
from verl_npu.ascend.variables import (
    ALLOCATOR,
    EXPANDABLE_SEGMENTS,
    NZ_KEY,
    VIRTUAL_NPUS,
    VISIBLE_DEVICES,
    virtual_npus,
)
from verl_npu.errors import SettingError, SourceError
from verl_npu.features.configuration import Section
from verl_npu.features.device import resolve_device
from verl_npu.features.fleet.forwarding import refuse_other_values
from verl_npu.features.fused_kernels import BLOCKS, MODULE
from verl_npu.features.megatron.contract import recorded_as, revision_for
from verl_npu.features.megatron.request import requests
from verl_npu.features.megatron.rules import problems
from verl_npu.features.micro_batches.packing import pack
from verl_npu.features.rollout import rules as rollout
from verl_npu.features.rollout.unmet import unmet_imports
from verl_npu.features.weight_sync.engines.sglang import refuse_proof
from verl_npu.features.weight_sync.settings import Check
from verl_npu.findings import Finding, Rule, Severity, Stage, error, find, refusals, warning
from verl_npu.language import gettext as _
from verl_npu.language import ngettext
from verl_npu.pins import pins
from verl_npu.registry.source.tree import SourceTree, Target

from ..doctor.site import Site
from ..doctor.variables import unreadable_devices, wrong_variables
from ..pins import PINS, Component
from . import validated
from .keys import (
    ACTOR,
    BATCH,
    CRITIC,
    DEVICE,
    ENGINE,
    ESTIMATOR,
    FREE_CACHE_ENGINE,
    MAX_PROMPT,
    MAX_RESPONSE,
    MODEL,
    NPUS,
    ROLLOUT,
    has_critic,
    is_megatron,
    is_separate,
    may_sleep,
)
from .layout import Framework, indivisible, npus_of, parallelism_of
from .modes import of_modes
from .settings import Settings
from .successor import of_recipe
from .trainer import Trainer

_ROLLOUT_CONFIG = Target("verl.workers.config.rollout", "RolloutConfig")
_OF_WORKERS = r"(?:HCCL|VLLM|ASCEND|PYTORCH_NPU|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM|COMBINED)\w*"
_ASSIGNED = re.compile(rf"^[ \t]*({_OF_WORKERS})=", re.MULTILINE)
_EXPORTED = re.compile(rf"^[ \t]*(?:export|declare -x)[ \t]+(?:\w+=\S*[ \t]+)*({_OF_WORKERS})\b", re.MULTILINE)
_SIZES = (
    r"trainer\.(n_gpus_per_node|nnodes)|data\.train_batch_size"
    r"|actor_rollout_ref\.(actor\.ppo_mini_batch_size|rollout\.(n|tensor_model_parallel_size))"
)
_PATHS = (
    r"(.*\.)?(train_files|val_files|partial_pretrain|model\.path|dist_checkpointing_path|custom_reward_function\.path)"
)

_DATA = (".parquet", ".json", ".jsonl")
_REWARD_MODEL = "reward_model.model.path"

_COLOCATED = re.compile(rb"max_colocate_count(?:: int)? ?= ?(\d{1,3})")
_NO_MODEL = ("~/models/deepseek-llm-7b-chat", "~/models/gemma-1.1-7b-it")
"""The models of verl's own configurations, of reinforcement learning and of fine-tuning."""
_PLACEHOLDER = re.compile(r"(?<![^\s'\"\[\],:=])(?:[^\s'\"\[\],:=]*/)?(?:path/to|PATH/TO)/[^\s'\"\[\],]*")
_OF_WEIGHT_SYNC = frozenset(
    each.name
    for each in (
        environment.WEIGHT_SYNC_TIMEOUT,
        environment.WEIGHT_SYNC_CHECK,
        environment.WEIGHT_SYNC_BUCKET_MB,
        environment.WEIGHT_SYNC_PORT,
    )
)


@dataclass(frozen=True)
class Script:
    """A captured script with its composed settings."""

    trainer: Trainer
    settings: Settings
    pin: str
    """The revision with a lock that its tree is nearest to."""
    text: str
    """The script itself; empty if only a command was given."""
    submitted: bool
    """It is handed to a Ray cluster with `ray job submit`: workers get the runtime environment's variables alone."""
    runtime: Mapping[str, str] | None
    """The variables of that runtime environment; None if they cannot be read here."""
    sources: SourceTree
    """The verl that it starts."""

    @property
    def npus(self) -> int:
        """All NPUs of the trainer; 0 if neither torchrun's words nor the settings say."""
        return npus_of(self.trainer, self.settings)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that the job's processes get from it, and from the shell that it is started in."""
        return (self.runtime or {}) if self.submitted else {**self.trainer.inherited, **self.trainer.exports}

    @cached_property
    def section(self) -> Section:
        """The settings as the job's own functions get them."""
        from omegaconf import OmegaConf

        nested: dict[str, Any] = {}
        for key, value in self.settings.values.items():
            *sections, last = key.split(".")
            section = nested
            for name in sections:
                # A stranger's configuration may call a value a section.
                if not isinstance(section.get(name), dict):
                    section[name] = {}
                section = section[name]
            # OmegaConf would raise an error for a value that is yet to be given.
            if value != "???":
                section[last] = _literal(value)
        config: Section = OmegaConf.create(nested)
        return config


def _literal(value: object) -> object:
    """A value whose interpolations nobody follows: those that are left are known to a running job alone."""
    if isinstance(value, str):
        # As OmegaConf reads it, backslashes in front of an interpolation are two for one.
        return re.sub(r"(?<!\\)(\\*)\$\{", lambda found: 2 * found[1] + "\\${", value)
    if isinstance(value, list):
        return [_literal(each) for each in value]
    if isinstance(value, dict):
        return {name: _literal(each) for name, each in value.items()}
    return value


# What the job itself refuses: its own functions are asked.


def _of(feature: str, ask: Callable[[Script], object], code: str, about: str = "") -> Rule[Script]:
    """Return the rule of what a feature refuses; what a rule of the rollout's is about, that one says."""

    def asked(script: Script) -> Iterator[Finding]:
        yield from refusals(code, ask, script) if _in_force(script, feature) else ()

    return Rule(code, asked, (Stage.SCRIPT, Stage.JOB), about=about)


def _ask_the_rollout(script: Script, code: str) -> None:
    rollout.check(script.section, (code,))


def _in_force(script: Script, feature: str) -> bool:
    """Whether the job asks what a feature refuses: it is left in, and its settings are known, with an engine if it is
    about that."""
    left_out = environment.DISABLE.text(script.environ).replace(" ", "").split(",")
    off = _is_off(script) or feature in left_out
    return not off and (ENGINE in script.settings or (feature == "device" and bool(script.settings.values)))


def _is_off(script: Script) -> bool:
    """Whether verl-npu stays off in the job; it does if it is told so in a word that it does not know."""
    try:
        return environment.SWITCH.read(script.environ) == "off"
    except SettingError:
        return True


def _segments(script: Script) -> Iterator[Finding]:
    """Whether a recipe registers an engine of its own is not in its settings: such a job decides as it runs."""
    setting, engine = script.environ.get(ALLOCATOR, ""), script.settings.text(ENGINE)
    upstreams = script.trainer.module.startswith(("verl.", "verl/")) and "verl" in script.sources
    if upstreams and _in_force(script, "rollout"):

        def remedy(section: Section) -> str:
            return rollout.sleep_mode_overrides_of(section, _fields(script.sources), lambda mode: True)

        def ask(section: Section) -> None:
            rollout.refuse(rollout.expandable_segments(section, script.environ, remedy))

        yield from refusals("rollout.expandable_segments", ask, script.section)
    elif EXPANDABLE_SEGMENTS in setting and engine == "vllm" and may_sleep(script.settings):
        yield warning(
            "rollout.expandable_segments",
            _("expandable segments beside an engine that may sleep"),
            subject=f"{ALLOCATOR}={setting}",
            why=_("vllm-ascend's sleep mode does not work with them; the job ends at its start if its engine sleeps"),
            fix=_("leave {expandable_segments} out, or set {free_cache_engine}=False").format(
                expandable_segments=EXPANDABLE_SEGMENTS, free_cache_engine=FREE_CACHE_ENGINE
            ),
        )


def _fields(sources: SourceTree) -> frozenset[str] | None:
    """Return the names of the fields of a verl's RolloutConfig, or None if it has no such class."""
    nodes = [node for node in sources.nodes(_ROLLOUT_CONFIG) if isinstance(node, ast.ClassDef)]
    if not nodes:
        return None
    fields = (field.target for field in nodes[-1].body if isinstance(field, ast.AnnAssign))
    return frozenset(field.id for field in fields if isinstance(field, ast.Name))


# What upstream, Hydra or MindSpeed refuse, and what may fail.


def _device(script: Script) -> Iterator[Finding]:
    device, in_force = script.settings.text(DEVICE), _in_force(script, "device")
    if in_force:
        yield from refusals(
            "device-setting", lambda _: resolve_device(script.section, script.trainer.overrides), script
        )
    source = script.sources.read(script.trainer.module) if script.trainer.module.startswith("verl.") else None
    # From ccd7d934 on upstream's trainers set it to npu themselves, and verl-npu has them leave cpu alone.
    kept = b"auto_set_" not in (source or b"") or (device == "cpu" and in_force)
    # From v0.9.0 on verl asks Ray for the platform's own resource, whatever the setting is.
    by_name = b"ray_resource_name" not in (script.sources.read("verl.single_controller.ray.base") or b"")
    by_ray = by_name and script.trainer.ranks == 0 and ENGINE in script.settings
    if by_ray and kept and device not in ("", "npu") and not (device == "cuda" and in_force):
        # With verl-npu off the script may be meant for CUDA, and a trainer that is not read may set it as well.
        yield (warning if device == "cuda" or source is None else error)(
            "device-setting",
            device,
            subject=DEVICE,
            why=_("Ray has no resource of that name on NPUs: verl ends, or waits for it without end"),
            fix=_("leave {device} out, or set it to npu").format(device=DEVICE),
        )


def _shadowed(script: Script) -> Iterator[Finding]:
    values: dict[str, str] = {}
    for word in script.trainer.overrides:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or word.startswith("~"):
            continue
        if values.get(key, value) != value:
            yield warning(
                "shadowed",
                _("{values} and later {value}").format(values=values[key], value=value),
                subject=key,
                why=_("Hydra takes the last one"),
                fix=_("leave one of them out"),
            )
        values[key] = value


def _empty(script: Script) -> Iterator[Finding]:
    settings = script.settings
    for key in dict.fromkeys((*settings.matching(_SIZES), *validated.no_numbers(settings, script.sources))):
        found = settings.get(key)
        if isinstance(found, str) and found != "???" and "${" not in found:
            yield error(
                "empty",
                _("the text {found!r}, and no number").format(found=found) if found.strip() else _("no value"),
                subject=key,
                why=_("verl computes with it"),
                fix=_(
                    "write a number without quotes, a variable that is assigned before, or a variable of the "
                    "environment as ${oc.decode:${oc.env:NAME}}"
                ),
            )


_DIVIDES = {
    Framework.MEGATRON: _(
        "megatron.core.parallel_state.initialize_model_parallel raises: the world size is not divisible"
    ),
    Framework.FSDP: _("the device mesh (dp, sp) of verl's FSDP workers needs their product to be the number of NPUs"),
    Framework.ROLLOUT: _("verl asserts that the NPUs are divisible by the size of a rollout replica"),
}


def _parallel_sizes(script: Script) -> Iterator[Finding]:
    for each in indivisible(script.settings, script.npus):
        sizes = _("sizes whose product divides") if each.by is Framework.MEGATRON else _("a size that divides")
        yield error(
            "parallel-sizes",
            ngettext("{sizes} on {npus} NPU", "{sizes} on {npus} NPUs", each.npus).format(
                sizes=each.sizes, npus=each.npus
            ),
            subject=each.key,
            why=_DIVIDES[each.by],
            fix=_("choose {sizes} the NPUs").format(sizes=sizes),
        )


def _trains(script: Script) -> bool:
    """Whether it is no program that only generates or evaluates: those compose a trainer's configuration as well, and
    do not validate it."""
    return re.search(r"generat|eval|infer|serv", script.trainer.name) is None


def _source_of_trainer(script: Script) -> bytes:
    return script.sources.read(script.trainer.module) or b""


def _refusing(script: Script) -> Callable[..., Finding]:
    """What upstream's `validate_config` refuses is refused only if the trainer asks it: its own file does, or
    RayPPOTrainer itself, as at 796871d7."""
    trainer = script.sources.read("verl.trainer.ppo.ray_trainer") or b""
    asks = script.trainer.module == "verl.trainer.main_ppo" or re.search(
        rb"(?<![\w.])validate_config\(", _source_of_trainer(script)
    )
    return error if asks or b"self._validate_config()" in trainer else warning


def _roles(script: Script) -> list[str]:
    """Whoever is trained. A recipe may do without a critic whatever its estimator is, as recipe.spin and
    verl.experimental.vla.main_sac do."""
    module = script.trainer.module
    upstreams = module.startswith("verl.trainer.") or (
        module.startswith("verl.") and b"Role.Critic" in _source_of_trainer(script)
    )
    critic = has_critic(script.settings) and (upstreams or script.settings.truth(f"{CRITIC}.enable"))
    return [ACTOR, CRITIC] if critic else [ACTOR]


def _batches(script: Script) -> Iterator[Finding]:
    settings, megatron = script.settings, is_megatron(script.settings)
    sizes = parallelism_of(settings)
    # Ranks that share a sequence have the same samples.
    replica = sizes.replica if megatron else sizes.sequence
    if _is_verls(script) and _trains(script):
        for each in validated.of_shares(settings, script.npus, replica, script.sources):
            yield _refused(_refusing(script), "batches", script, each)


def _choices(script: Script) -> Iterator[Finding]:
    settings = script.settings
    registers = settings.text(f"{MODEL}.external_lib") or "VERL_USE_EXTERNAL_MODULES" in script.environ
    if registers or ESTIMATOR not in settings or not _trains(script):
        return
    try:
        own = list(_own_texts(script))
    except SourceError:
        return
    for each in validated.of_names(settings, _roles(script), script.sources):
        named = settings.text(each.key).encode()
        if not any(re.search(rb"[\"']%s[\"']" % re.escape(named), text) for text in own):
            yield _refused(error, "choices", script, each)


def _own_texts(script: Script) -> Iterator[bytes]:
    """The sources of a recipe, or a reward, of the user's: they may register names of their own."""
    package, top = script.trainer.module.rpartition(".")[0], script.trainer.module.partition(".")[0]
    if package not in ("", "verl.trainer") and all(map(str.isidentifier, package.split("."))):
        sources = script.sources if top in script.sources else SourceTree.at(script.trainer.folder, (top,))
        yield from (sources.read(module) or b"" for module in sources.modules_below(package))
    paths = [Path(script.settings.text(key)).expanduser() for key in script.settings.matching(r".*\.path")]
    for path in (script.trainer.folder / path for path in (*paths, Path(script.trainer.module))):
        if path.suffix == ".py" and path.is_file():
            yield path.read_bytes()


def _is_verls(script: Script) -> bool:
    """Whether a trainer starts verl's own workers, with as many NPUs as its settings say."""
    module = script.trainer.module
    return module == "verl.trainer.main_ppo" or b"verl.workers.fsdp_workers" in _source_of_trainer(script)


def _validation(script: Script) -> Iterator[Finding]:
    settings = script.settings
    if not _trains(script):
        return
    if ESTIMATOR in settings:
        said: set[str] = set()
        for make, found in (
            (error, validated.of_sections(settings, _roles(script), script.sources)),
            # Trainers that stream their samples have no batch.
            (
                _refusing(script),
                validated.of_validation(settings, script.sources) if settings.whole(BATCH) > 0 else (),
            ),
        ):
            for each in found:
                if each.message not in said:
                    said.add(each.message)
                    yield _refused(make, "validation", script, each)


def _refused(make: Callable[..., Finding], code: str, script: Script, refusal: validated.Refusal) -> Finding:
    return make(
        code,
        script.settings.text(refusal.key) or _("settings that verl's own code does not take"),
        subject=refusal.key,
        why=_("verl ends the job with this error: {message}").format(message=" ".join(refusal.message.split())),
        fix=_("change the setting to a value that this verl accepts"),
    )


def _overrides(script: Script) -> Iterator[Finding]:
    if script.pin not in pins():
        return
    words = shlex.join([script.trainer.module, *script.trainer.overrides])
    if not any(section in words for section in (".megatron.", ".mindspeed.")):
        return
    contract = recorded_as(revision_for(script.pin, words))
    for request in requests(words):
        for problem in problems(request, contract):
            yield (error if problem.refused else warning)(
                problem.code,
                problem.found,
                subject=f"{request.worker}: {problem.subject}",
                expected=problem.expected,
                why=_("MindSpeed {revision}, which {pin}'s documents name, expects {expected}").format(
                    revision=contract.revision, pin=script.pin, expected=problem.expected
                ),
                fix=problem.fix,
            )


def _variables(script: Script) -> Iterator[Finding]:
    site = Site(None, None, environ=script.environ, path=())
    for finding in wrong_variables(site, Stage.SCRIPT):
        ours = finding.code in environment.VARIABLES
        severity = Severity.WARNING if ours and not _reads(script, finding.code) else finding.severity
        yield replace(finding, code="variables", subject=finding.code, severity=severity)


def _reads(script: Script, variable: str) -> bool:
    """Whether it is certain that the job reads a variable of verl-npu's, and ends if it is wrong."""
    settings, told_off = script.settings, environment.SWITCH.text(script.environ).lower() == "off"
    if variable in (environment.SWITCH.name, environment.DISABLE.name, environment.FORCE.name):
        return environment.STRICT.text(script.environ) not in ("", "0") and not told_off
    if told_off:
        return False
    if variable == environment.PLACEMENT_TIMEOUT.name:
        return script.trainer.ranks == 0 and ENGINE in settings and _in_force(script, "device")
    if variable == environment.TOKEN_BUDGET.name:
        return settings.truth(f"{ACTOR}.use_dynamic_bsz") and _in_force(script, "micro_batches")
    if variable in _OF_WEIGHT_SYNC:
        return _is_apart(script) and _in_force(script, "weight_sync")
    return True


def _is_apart(script: Script) -> bool:
    """Tell whether the engine has NPUs of its own, to which a weight sync brings the trainer's weights."""
    by_recipe = re.search(r"one_step_off|fully_async", script.trainer.module) is not None
    return by_recipe or is_separate(script.settings)


def unexported(text: str, exports: Collection[str]) -> Iterator[Finding]:
    """Warn of variables of workers that a script's text sets, and neither it nor anything else exports."""
    exported = {*_EXPORTED.findall(text), *exports}
    for name in dict.fromkeys(_ASSIGNED.findall(text)):
        if name not in exported:
            yield warning(
                "exports",
                _("that the script sets it and does not export it"),
                subject=name,
                why=_("no process that the script starts sees it"),
                fix=_("write export {name}=…").format(name=name),
            )


def _exports(script: Script) -> Iterator[Finding]:
    yield from unexported(script.text, script.trainer.exports)
    if not script.submitted or script.runtime is None:
        return
    for name in script.trainer.exports:
        if re.fullmatch(_OF_WORKERS, name) and name not in script.runtime:
            yield warning(
                "exports",
                _("that the script exports it and hands the job to a cluster with ray job submit"),
                subject=name,
                why=_("a submitted job gets the variables of its runtime environment, and not those of the shell"),
                fix=_("put {name} under env_vars of the file that --runtime-env names").format(name=name),
            )


def _visible_devices(script: Script) -> Iterator[Finding]:
    listed, each = script.environ.get(VISIBLE_DEVICES), script.trainer.ranks or script.settings.whole(NPUS)
    virtual = virtual_npus(script.environ)
    there = int(virtual) if virtual.isdecimal() else None
    if script.trainer.ranks and not script.trainer.counted:
        return
    trouble = unreadable_devices(listed) if listed is not None else ""
    count = there
    if listed is not None and not trouble:
        count = sum(there is None or int(number) < there for number in listed.split(","))
    if trouble or (count is not None and count < each):
        by_torchrun = script.trainer.ranks > 0
        variables = {VISIBLE_DEVICES: listed, VIRTUAL_NPUS: virtual or None}
        yield (error if by_torchrun else warning)(
            "visible-devices",
            trouble
            or ngettext(
                "{count} NPU, and {each} of each node are asked for",
                "{count} NPUs, and {each} of each node are asked for",
                count or 0,
            ).format(count=count, each=each),
            subject=", ".join(f"{name}={text}" for name, text in variables.items() if text is not None),
            why=_(
                "torchrun starts a process for each NPU, and those beyond the list end with `invalid device ordinal`"
            )
            if by_torchrun
            else _(
                "Ray counts these NPUs alone, unless it was started with another list, and verl ends or waits for "
                "the others"
            ),
            fix=_("set {virtual_npus} to {each}, or ask for fewer").format(virtual_npus=VIRTUAL_NPUS, each=each)
            if listed is None
            else _("list as many NPUs as a node is to use, or unset {visible_devices}").format(
                visible_devices=VISIBLE_DEVICES
            ),
        )


def _ray_cpus(script: Script) -> Iterator[Finding]:
    """Source: the bundles of `get_placement_groups`, which hold `max_colocate_count` CPUs each."""
    settings, each = script.settings, script.settings.whole(NPUS)
    modules = ("verl.trainer.ppo.ray_trainer", "verl.single_controller.ray.base")
    counts = (_COLOCATED.search(script.sources.read(module) or b"") for module in modules)
    beside = next((int(found[1]) for found in counts if found), 1)
    # verl's own trainers read the first, and recipes of an earlier day the second.
    upstreams = script.trainer.module.startswith("verl.")
    for key in ("ray_kwargs.ray_init.num_cpus", *(() if upstreams else ("ray_init.num_cpus",))):
        cpus = settings.get(key)
        if script.trainer.ranks == 0 and ENGINE in settings and isinstance(cpus, int) and 0 < cpus < beside * each:
            yield error(
                "ray-cpus",
                _("{cpus}, for {each} NPUs").format(cpus=cpus, each=each),
                subject=key,
                why=_("verl asks Ray for {beside} CPUs beside each NPU, and the job cannot be placed").format(
                    beside=beside
                ),
                fix=_("leave it out, or set it to {needed} or more: verl's own runner takes one, too").format(
                    needed=beside * each + 1
                ),
            )


def _placeholders(script: Script) -> Iterator[Finding]:
    for key in script.settings.matching(r"actor_rollout_ref\.model\.path|model\.(path|partial_pretrain)"):
        path = script.settings.text(key)
        if path in _NO_MODEL and not Path(path).expanduser().exists():
            yield warning(
                "placeholders",
                _("{path}, which is verl's own default").format(path=path),
                subject=key,
                why=_("the script names no model, and this one is hardly yours"),
                fix=_("add {key}=YOUR_MODEL").format(key=key),
            )
    for word in script.trainer.overrides:
        key, _unused, value = word.lstrip("+").partition("=")
        for path in map(str, _PLACEHOLDER.findall(value)):
            if (script.trainer.folder / path).exists():
                continue
            is_read = re.fullmatch(_PATHS, key) and not path.startswith("/") and not script.submitted
            yield (error if is_read else warning)(
                "placeholders",
                _("{path}, which is not on this machine").format(path=path),
                subject=key,
                why=_("the script's author has left the path for you to fill in"),
                fix=_("write your own path there"),
            )


def _imports(script: Script) -> Iterator[Finding]:
    parts = script.trainer.module.split(".")
    if parts[0] == "verl" or "verl" not in script.sources or not all(map(str.isidentifier, parts)):
        return
    modules = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    with contextlib.suppress(SourceError):
        for unmet in unmet_imports(modules, parts[0], "verl", script.sources):
            yield error(
                "imports",
                _("no {missing} in the verl that it is judged by").format(missing=unmet.missing),
                subject=unmet.module,
                why=_("line {line} imports {unmet}, and the trainer ends there with an ImportError").format(
                    line=unmet.line, unmet=unmet.name
                ),
                fix=_("take the script and its trainer from the revision of this verl, or the verl that they are for"),
            )


def _groups(script: Script) -> Iterator[Finding]:
    package = script.trainer.module.rpartition(".")[0]
    top = package.partition(".")[0]
    if not all(map(str.isidentifier, package.split("."))) or _HAVE_OUR_GROUPS.match(script.trainer.module):
        return
    with contextlib.suppress(SourceError):
        sources = script.sources if top in script.sources else SourceTree.at(script.trainer.folder, (top,))
        texts = ((module, sources.read(module) or b"") for module in sources.modules_below(package))
        makers = (each for each, text in texts if b"ray.util.collective" in text and _MAKES_A_GROUP.search(text))
        module = next(makers, None)
        if module is not None:
            yield warning(
                "ray-collective-hccl",
                _("a group of ray.util.collective in {module}").format(module=module),
                subject=script.trainer.module,
                why=_("Ray's collectives have no HCCL, and verl-npu makes the groups of verl's own recipes alone"),
                fix=_("start verl's own recipe, or see what else `verl-npu explain ray-collective-hccl` names"),
            )


def _weight_format(script: Script) -> Iterator[Finding]:
    asked = [rule for rule in rollout.RULES if rule.code == "rollout.weight_format"]
    for finding in find(asked, script.section, Stage.SCRIPT) if _in_force(script, "rollout") else ():
        yield warning(
            "rollout.weight_format",
            finding.found,
            subject=f"{ROLLOUT}.engine_kwargs.vllm.additional_config",
            why=_("the job warns of it, and goes on"),
            fix=_("leave {nz_key} out of it").format(nz_key=NZ_KEY),
        )


def _token_budget(script: Script) -> Iterator[Finding]:
    settings, parallel = script.settings, parallelism_of(script.settings)
    key = f"{ACTOR}.ppo_max_token_len_per_gpu"
    budget = settings.whole(key) * parallel.sequence * parallel.context
    longest = settings.whole(MAX_PROMPT) + settings.whole(MAX_RESPONSE)
    if budget <= 0 or longest <= 0 or not settings.truth(f"{ACTOR}.use_dynamic_bsz"):
        return
    for refusal in refusals("token-budget", lambda _: pack([longest], budget), script):
        yield replace(
            refusal,
            severity=Severity.WARNING,
            subject=key,
            why=_("a rank holds {subject}; the update ends with an error if one is longer, or is padded so").format(
                subject=refusal.subject
            ),
            fix=_("raise it, or lower {max_prompt} or {max_response}").format(
                max_prompt=MAX_PROMPT, max_response=MAX_RESPONSE
            ),
        )


def _sync_check(script: Script) -> Iterator[Finding]:
    asked = environment.WEIGHT_SYNC_CHECK.text(script.environ) == Check.ENGINE.value
    if _is_apart(script) and asked and script.settings.text(ENGINE) == "sglang" and _in_force(script, "weight_sync"):
        for refusal in refusals("weight-proof", lambda _: refuse_proof(), script):
            yield replace(refusal, severity=Severity.WARNING)


def _task_queue(script: Script) -> Iterator[Finding]:
    """Source: NPUGraph::capture_begin of torch_npu.

    This is only a warning, because the engine's own settings may still leave graphs out.
    """
    variable, own = "TASK_QUEUE_ENABLE", "VLLM_ASCEND_TASK_QUEUE_ENABLE"
    settings, environ = script.settings, script.environ
    has_own = own.encode() in (script.sources.read("verl.plugin.platform.platform_npu") or b"")
    level = (environ.get(own) if has_own else None) or environ.get(variable)
    captures = settings.text(ENGINE) == "vllm" and settings.get(f"{ROLLOUT}.enforce_eager") is False
    if level == "2" and captures:
        yield warning(
            "task-queue",
            _("level 2 of torch_npu's task queue beside an engine that captures graphs"),
            subject=f"{variable}={level}",
            why=_("torch_npu ends a capture with `Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture`"),
            fix=_("export {own}=1, which changes the engine alone").format(own=own)
            if has_own
            else _("export {variable}=1, or set {key}=True").format(variable=variable, key=f"{ROLLOUT}.enforce_eager"),
        )


def _fused_kernels(script: Script) -> Iterator[Finding]:
    """Of the two ways to compute the fused loss only one launches kernels, and Megatron's trainer has no other."""
    key, way = f"{MODEL}.use_fused_kernels", f"{MODEL}.fused_kernel_options.impl_backend"
    if not script.settings.truth(key) or not (is_megatron(script.settings) or script.settings.text(way) == "triton"):
        return
    is_fixed = _in_force(script, "fused_kernels")
    yield warning(
        "fused-kernels",
        _("Triton kernels that Ascend's compiler refuses with upstream's blocks: {names}").format(
            names=_(", ").join(BLOCKS)
        ),
        subject=f"{key}=True",
        why=_(
            "verl-npu's feature fused_kernels launches them with smaller ones where the installed compiler refuses "
            "these; results and speed on an NPU cannot be shown here"
        )
        if is_fixed
        else _(
            "the job ends with `ub overflow` (verl issue 7950), and up to v0.7.0 a vocabulary that is no multiple of "
            "1024 gives wrong log probabilities without an error"
        ),
        fix=_(
            "`verl-npu kernels {module}` compiles them, `verl-npu rehearse --kernels` as the job launches them"
        ).format(module=MODULE)
        if is_fixed
        else _("let verl-npu apply fused_kernels, or set {key}=False").format(key=key),
    )


def _liger(script: Script) -> Iterator[Finding]:
    cell = PINS[script.pin].cells.get(Component.LIGER_KERNEL) if script.pin in PINS else None
    claims = [claim for claim in cell.claims if claim.unsupported] if cell else []
    for key in (f"{MODEL}.use_liger", "model.use_liger"):
        if claims and script.settings.truth(key) and not is_megatron(script.settings):
            yield warning(
                "liger-kernel",
                _("kernels of liger-kernel in place of the model's layers"),
                subject=f"{key}=True",
                why=_(
                    "{source} calls liger-kernel not supported; its releases from the end of 2025 on have "
                    "code for NPUs, which was not tried with this verl"
                ).format(source=claims[0].source),
                fix=_("set {key}=False: verl-npu puts the NPU's fused operators into these layers").format(key=key),
            )


def _files(script: Script) -> Iterator[Finding]:
    missing: dict[str, None] = {}
    for key in script.settings.matching(_PATHS):
        if key.startswith(f"{CRITIC}.") and CRITIC not in _roles(script):
            continue
        if key == _REWARD_MODEL and not script.settings.truth("reward_model.enable"):
            continue
        value = script.settings.get(key)
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str) or _PLACEHOLDER.search(each) or each in _NO_MODEL:
                continue
            # A model without a slash in front may be a name of the hub; data are files.
            is_file = each.startswith(("/", "~")) or each.endswith(_DATA)
            if is_file and not (script.trainer.folder / Path(each).expanduser()).exists():
                missing[each] = None
    if missing:
        yield warning(
            "files",
            ngettext(
                "{count} path that is not on this machine", "{count} paths that are not on this machine", len(missing)
            ).format(count=len(missing)),
            subject=_(", ").join(missing),
            why=_("the job reads them on the machines that it runs on"),
            fix=_("make sure that they are on every node"),
        )


_HAVE_OUR_GROUPS = re.compile(r"(?:verl|recipe\.(?:fully_async_policy|gkd|one_step_off_policy))\.")
"""Trainers whose weight sync's groups verl-npu makes (verl_npu.features.weight_sync), where there are any."""
_MAKES_A_GROUP = re.compile(rb"\b(?:create|init)_collective_group\(")

_BEFORE = (Stage.SCRIPT,)
_OF_ENGINES = (
    "rollout.ranks",
    "rollout.heads",
    "rollout.additional_config",
    "rollout.rl_config",
    "rollout.engine_arguments",
)
"""The rollout's rules that a script is asked as a job is."""
RULES: tuple[Rule[Script], ...] = (
    Rule(
        "device-setting",
        _device,
        (Stage.SCRIPT, Stage.JOB),
        about="A trainer.device that the job is given by name and that is no NPU.",
    ),
    Rule("imports", _imports, _BEFORE, about="What a trainer imports, before anything else, and its verl has not."),
    Rule(
        "ray-collective-hccl",
        _groups,
        _BEFORE,
        about="A group of Ray's collectives, which have no HCCL, in a trainer that is not one of verl's own.",
    ),
    Rule("shadowed", _shadowed, _BEFORE, about="A key that is given with two values: the later one wins."),
    Rule(
        "empty",
        _empty,
        _BEFORE,
        about="A size that is empty, as of a variable that nothing was assigned to, or that is no number.",
    ),
    Rule("parallel-sizes", _parallel_sizes, _BEFORE, about="Sizes that do not divide the NPUs."),
    Rule("batches", _batches, _BEFORE, about="Mini-batches, or micro-batches, that verl's workers cannot divide."),
    Rule(
        "validation",
        _validation,
        _BEFORE,
        about="Settings that verl refuses as it validates its configuration, or makes objects of its sections.",
    ),
    Rule("choices", _choices, _BEFORE, about="Values that verl looks up by name and does not find."),
    Rule(
        "trainer-mode",
        lambda script: of_modes(script.trainer.module, script.settings, script.sources),
        _BEFORE,
        about="Settings, or a checkpoint engine, that the chosen mode of verl's v1 trainer refuses.",
    ),
    Rule(
        "successor",
        lambda script: of_recipe(script.trainer, script.settings, script.sources),
        _BEFORE,
        about="The settings of verl's v1 trainer that stand for those of fully_async_policy or one_step_off_policy.",
    ),
    Rule(
        "mindspeed-overrides",
        _overrides,
        (Stage.SCRIPT, Stage.JOB),
        about="Each worker's overrides, by the MindSpeed that the documents of the script's verl name.",
    ),
    *(_of("rollout", partial(_ask_the_rollout, code=code), code) for code in _OF_ENGINES),
    _of(
        "rollout",
        lambda script: rollout.refuse(rollout.unread_parallelism(script.section, script.sources)),
        "rollout.unread_parallelism",
    ),
    _of(
        "rollout",
        lambda script: rollout.refuse(rollout.sizes_in_one_word(script.section, script.sources)),
        "rollout.sizes_in_one_word",
    ),
    Rule("rollout.expandable_segments", _segments, (Stage.SCRIPT, Stage.JOB)),
    _of(
        "fleet",
        lambda script: refuse_other_values(script.environ, script.trainer.name),
        "required-variables",
        "Variables with a value with which the job would compute wrongly, where verl-npu gives workers its own.",
    ),
    Rule(
        "variables",
        _variables,
        (Stage.SCRIPT, Stage.ENVIRONMENT, Stage.JOB),
        about="What an exported variable has to hold, as far as that can be told without the machine that it is for.",
    ),
    Rule(
        "fused-kernels",
        _fused_kernels,
        _BEFORE,
        about="Triton kernels of verl's fused loss that Ascend's compiler refuses, and what verl-npu does about them.",
    ),
    Rule(
        "liger-kernel",
        _liger,
        _BEFORE,
        about="liger-kernel, where the documents of the script's verl say that NPUs do not run it.",
    ),
    Rule("exports", _exports, _BEFORE, about="Variables that are set and do not reach Ray's workers."),
    Rule("task-queue", _task_queue, _BEFORE, about="A level of torch_npu's task queue at which graphs fail."),
    Rule("rollout.weight_format", _weight_format, (Stage.SCRIPT, Stage.JOB)),
    Rule(
        "weight-proof",
        _sync_check,
        (Stage.SCRIPT, Stage.JOB),
        about="A proof of its weights that an SGLang engine apart from its trainer cannot give.",
    ),
    Rule(
        "token-budget",
        _token_budget,
        _BEFORE,
        about="A token budget below the longest sequence that the settings allow; no sequence need become as long.",
    ),
    Rule(
        "visible-devices",
        _visible_devices,
        _BEFORE,
        about="A list of visible NPUs with fewer than each node is to use; Ray may have been started with another.",
    ),
    Rule("ray-cpus", _ray_cpus, _BEFORE, about="Fewer CPUs for Ray than a node is to use NPUs."),
    Rule(
        "placeholders",
        _placeholders,
        _BEFORE,
        about="Paths that the script's author has left to fill in. An absolute one may be on the cluster.",
    ),
    Rule("files", _files, _BEFORE, about="Paths that do not exist here; the cluster may have them."),
)


def findings(script: Script) -> list[Finding]:
    """Return what all rules find that can be asked from a script, refusals first."""
    found = list(find(RULES, script, Stage.SCRIPT))
    # Sizes that do not divide are refused by upstream and by verl-npu: they are told once.
    told = {finding.subject for finding in found if finding.code == "parallel-sizes"}
    found = [finding for finding in found if finding.code != "rollout.ranks" or finding.subject not in told]
    return sorted(found, key=lambda finding: not finding.refused)
