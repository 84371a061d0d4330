"""`trainer.device`: left at its default it ends on the NPU, and what the user set stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...registry.source.probe import Defines, Mentions, Never
from .feature import DEFAULT, device

__all__ = ["DeviceContradictionError", "resolve_device"]


class DeviceContradictionError(RuntimeError):
    """The job asks for a device that this installation is not for."""


@device.wrap(
    "hydra.core.utils:run_job",
    why="trainer.device is cuda by default, and Ray then waits for ever for a GPU that an NPU cluster does not have",
    how="the composed configuration gets trainer.device=npu before any entry point sees it, unless the user set it",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Never("entry points that do not set the device themselves exist at every revision"),
)
def composed_device(original: Callable[..., Any], task_function: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
    """Resolve the device in the configuration that Hydra hands to an entry point, `python -m` included."""
    overrides = config.hydra.overrides.task if "hydra" in config else ()
    resolve_device(config, overrides)
    return original(task_function, config, *args, **kwargs)


@device.wrap(
    "verl.trainer.main_ppo:run_ppo",
    why="callers of run_ppo that do not come through Hydra leave trainer.device at cuda as well",
    how="the configuration gets trainer.device=npu before upstream's function reads it, unless it is not the default",
    link="https://github.com/volcengine/verl/issues/3583",
    retired_by=Mentions("verl.trainer.main_ppo:run_ppo", "auto_set_device"),
)
def called_device(original: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
    """Resolve the device for a caller of `run_ppo`."""
    resolve_device(config, ())
    return original(config, *args, **kwargs)


_OVERRIDES_CPU = "upstream sets trainer.device to npu even where the user asked for cpu"
_KEEPS_CPU = "an explicit cpu stays; everything else is upstream's to decide"


@device.wrap(
    "verl.utils.device:auto_set_ascend_device_name",
    why=_OVERRIDES_CPU,
    how=_KEEPS_CPU,
    link="https://github.com/volcengine/verl/pull/4489",
    retired_by=Never("every revision that has the function overrides cpu"),
    requires=Defines("verl.utils.device:auto_set_ascend_device_name"),
)
def ascend_unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    """Set the device, unless it is cpu."""
    return _unless_cpu(original, config)


@device.wrap(
    "verl.utils.device:auto_set_device",
    why=_OVERRIDES_CPU,
    how=_KEEPS_CPU,
    link="https://github.com/volcengine/verl/pull/4489",
    retired_by=Never("every revision that has the function overrides cpu"),
    requires=Defines("verl.utils.device:auto_set_device"),
)
def npu_unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    """Set the device, unless it is cpu."""
    return _unless_cpu(original, config)


def _unless_cpu(original: Callable[..., Any], config: Any) -> Any:
    trainer = config.get("trainer") if config else None
    if trainer is not None and trainer.get("device") == "cpu":
        return None
    return original(config)


def resolve_device(config: Any, overrides: Sequence[str]) -> None:
    """Set `config.trainer.device` to npu where it is the default, in place.

    `overrides` are the user's own words on the command line. Raises DeviceContradictionError where they ask for cuda.
    """
    trainer = config.get("trainer")
    if trainer is None or trainer.get("device") != DEFAULT:
        return
    asked = [text for text in overrides if text.lstrip("+").split("=", 1)[0] == "trainer.device"]
    if asked:
        raise DeviceContradictionError(
            f"{asked[-1]}: this installation is for NPUs and has no CUDA; leave trainer.device out, or set it to npu "
            "(override: VERL_NPU_DISABLE=device)"
        )
    trainer.device = "npu"
