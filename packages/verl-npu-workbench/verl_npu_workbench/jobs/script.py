"""A captured launch script with its composed settings: the subject of all rules and advice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from verl_npu import environment
from verl_npu.errors import SettingError
from verl_npu.features.configuration import Section
from verl_npu.findings import Finding, Rule, Stage
from verl_npu.registry.source.tree import SourceTree

from . import validated
from .keys import ACTOR, CRITIC, ENGINE, has_critic
from .layout import npus_of
from .settings import Settings, nested
from .trainer import Trainer


@dataclass(frozen=True)
class Script:
    """A captured script with its composed settings."""

    trainer: Trainer
    settings: Settings
    pin: str
    """The pin that is nearest to the script's verl."""
    text: str
    """The text of the script. Empty if only a command was given."""
    submitted: bool
    """Whether the script submits the job to a Ray cluster with `ray job submit`. Ray's workers then get only the
    variables of the runtime environment."""
    runtime: Mapping[str, str] | None
    """The variables of the runtime environment; None if they cannot be read here."""
    sources: SourceTree
    """The source of the verl that the script uses."""

    @property
    def npus(self) -> int:
        """The number of NPUs that the trainer uses on all nodes, or 0 if neither torchrun's arguments nor the settings
        specify the number."""
        return npus_of(self.trainer, self.settings)

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that the job's processes get, both from the script and from the shell in which the script is
        started."""
        return (self.runtime or {}) if self.submitted else {**self.trainer.inherited, **self.trainer.exports}

    @cached_property
    def unknown_names(self) -> tuple[validated.Refusal, ...]:
        """The values that upstream looks up by name and cannot find."""
        return tuple(validated.name_refusals(self.settings, trained_roles(self), self.sources))

    @cached_property
    def section(self) -> Section:
        """The settings, as the job's functions receive them."""
        from omegaconf import OmegaConf

        # OmegaConf raises an error for a mandatory value that is missing.
        given = ((key, _literal(value)) for key, value in self.settings.values.items() if value != "???")
        config: Section = OmegaConf.create(nested(given))
        return config


def source_of_trainer(script: Script) -> bytes:
    """Return the source of the trainer's own file, in the tree or in the clone of verl-recipe."""
    found, module, recipes = script.sources.read(script.trainer.module), script.trainer.module, script.trainer.recipes
    if found is None and recipes is not None:
        path = recipes.joinpath(*module.split(".")[1:]).with_suffix(".py")
        return path.read_bytes() if path.is_file() else b""
    return found or b""


def trained_roles(script: Script) -> list[str]:
    """Return the settings sections of the models that are trained.

    Some recipes (recipe.spin and verl.experimental.vla.main_sac) train without a critic, whatever their estimator is.
    """
    module = script.trainer.module
    upstreams = module.startswith("verl.trainer.") or (
        module.startswith("verl.") and b"Role.Critic" in source_of_trainer(script)
    )
    critic = has_critic(script.settings) and (upstreams or script.settings.truth(f"{CRITIC}.enable"))
    return [ACTOR, CRITIC] if critic else [ACTOR]


def _literal(value: object) -> object:
    """Return a value with its remaining interpolations escaped, because these can only be resolved in the running
    job."""
    if isinstance(value, str):
        # OmegaConf reads two backslashes in front of an interpolation as one.
        return re.sub(r"(?<!\\)(\\*)\$\{", lambda found: 2 * found[1] + "\\${", value)
    if isinstance(value, list):
        return [_literal(each) for each in value]
    if isinstance(value, dict):
        return {name: _literal(each) for name, each in value.items()}
    return value


def is_applied(script: Script, feature: str) -> bool:
    """Return whether the job will run a feature's checks. This requires that the feature is not disabled, and that the
    settings that the checks read are known."""
    left_out = environment.DISABLE.text(script.environ).replace(" ", "").split(",")
    off = _is_off(script) or feature in left_out
    return not off and (ENGINE in script.settings or (feature == "device" and bool(script.settings.values)))


def _is_off(script: Script) -> bool:
    """Return whether verl-npu is off in the job. It is also off if its switch has an unknown value."""
    try:
        return environment.SWITCH.read(script.environ) == "off"
    except SettingError:
        return True


def rule(
    code: str, about: str = "", stages: tuple[Stage, ...] = (Stage.SCRIPT,)
) -> Callable[[Callable[[Script], Iterable[Finding]]], Rule[Script]]:
    """Return a decorator that registers a function as a rule."""
    return lambda ask: Rule(code, ask, stages, about=about)
