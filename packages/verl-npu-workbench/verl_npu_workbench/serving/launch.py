"""With what vLLM's server is started: its command line, its environment, and what is refused before it is."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from verl_npu.ascend.variables import virtual_npus
from verl_npu.errors import EngineSettingError, ServingError
from verl_npu.features.rollout import rules
from verl_npu.language import gettext as _

from ..processes import why_port_is_taken

_SERVER = "vllm.entrypoints.openai.api_server"
"""The program of `vllm serve`, by a name that vLLM 0.7.3 to 0.25.1 have and that needs no script in PATH."""
_PLUGINS = "VLLM_PLUGINS"


class Engine(Enum):
    """What generates."""

    NPU = _("vllm-ascend on NPUs")
    VIRTUAL = _("vllm-ascend on virtual NPUs")
    CPU = _("vLLM on the CPU")


@dataclass(frozen=True, slots=True)
class Launch:
    """A server to be started."""

    model: str
    engine: Engine
    host: str
    port: int
    name: str
    tensor_parallel: int
    dtype: str
    max_model_len: int | None
    more: tuple[str, ...]
    """vLLM's own options, which win because they come last."""

    @property
    def url(self) -> str:
        """Where it answers, seen from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def command(self) -> list[str]:
        """Return the server's command line."""
        given = [
            "--model",
            self.model,
            "--served-model-name",
            self.name,
            "--host",
            self.host,
            "--port",
            str(self.port),
        ]
        given += ["--tensor-parallel-size", str(self.tensor_parallel), "--dtype", self.dtype]
        if self.max_model_len is not None:
            given += ["--max-model-len", str(self.max_model_len)]
        if self.engine is Engine.VIRTUAL and not _captures():
            given.append("--enforce-eager")
        return [sys.executable, "-m", _SERVER, *given, *self.more]

    def environment(self) -> dict[str, str]:
        """Return the server's environment."""
        variables = dict(os.environ)
        if self.engine is Engine.CPU and _has("vllm_ascend"):
            # vllm-ascend claims every machine that it is installed on, those without NPUs too.
            variables.setdefault(_PLUGINS, "verl_npu")
        return variables


def _captures() -> bool:
    """Whether the installed vllm-ascend may capture graphs on virtual NPUs."""
    from ..simulation import graphs

    return graphs.are_tried()


def engine() -> Engine:
    """Return what this environment serves with.

    Raises:
        ServingError: it has no vLLM, or NPUs and no vllm-ascend.
    """
    virtual = virtual_npus()
    found = Engine.VIRTUAL if virtual else Engine.NPU if _has("torch_npu") else Engine.CPU
    for package in ("vllm",) if found is Engine.CPU else ("vllm", "vllm_ascend"):
        if not _has(package):
            raise ServingError(
                subject=found.value,
                expected=_("the package {package} in {prefix}").format(
                    package=package.replace("_", "-"), prefix=sys.prefix
                ),
                found=_("none"),
                fix=_(
                    "run this where the training's rollout engine is (verl-npu setup --pin PIN says how to install it)"
                ),
            )
    return found


def check(launch: Launch) -> None:
    """Refuse what would end minutes after the start.

    Raises:
        ServingError: the folder is no model, it cannot be divided as asked, or the port is taken.
    """
    path = Path(launch.model)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ServingError(
            subject=launch.model,
            expected=_("a model in Hugging Face's format, with config.json"),
            found=_("a checkpoint") if any(path.glob("**/*_rank_*.pt")) else _("another folder"),
            fix=_("verl-npu merge {model}, and serve what it makes").format(model=launch.model),
        )
    try:
        rules.check(_as_a_job(launch), ("rollout.ranks", "rollout.heads", "rollout.additional_config"))
    except EngineSettingError as error:
        raise ServingError(
            subject=f"--tensor-parallel-size {launch.tensor_parallel}",
            expected=error.expected,
            found=error.found,
            fix=error.fix,
        ) from error
    taken = why_port_is_taken(launch.host, launch.port)
    if taken:
        raise ServingError(
            subject=f"{launch.host}:{launch.port}",
            expected=_("a port that is free"),
            found=taken,
            fix=_("give another one with --port"),
        )


class _Section(dict[str, Any]):
    """A section of a job's configuration, as the rules for rollout engines read it."""

    def get(self, key: str, default: object = None) -> Any:
        return super().get(key, default)

    def __getattr__(self, key: str) -> Any:
        return self[key]

    def __setattr__(self, key: str, value: object) -> None:
        self[key] = value


def _as_a_job(launch: Launch) -> _Section:
    rollout = _Section(name="vllm", tensor_model_parallel_size=launch.tensor_parallel)
    role = _Section(hybrid_engine=False, model=_Section(path=launch.model), rollout=rollout)
    return _Section(actor_rollout_ref=role)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def variables_of(launch: Launch) -> Mapping[str, str]:
    """Return what the server's environment has beyond this process's."""
    return {name: value for name, value in launch.environment().items() if os.environ.get(name) != value}
