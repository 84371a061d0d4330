"""vllm-ascend's switch for reinforcement learning is set where vllm-ascend knows it, and opens no endpoint."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verl_npu.errors import JobSettingError
from verl_npu.features.rollout import keep_development_endpoints_closed, rl_mode, rules
from verl_npu.features.rollout.rl_mode import enable_rl_mode
from verl_npu.registry.source.tree import SourceTree

omegaconf = pytest.importorskip("omegaconf")

MAIN = """
class RlConfig:
    enabled: bool
    enable_batch_invariant: bool
    _DEFAULTS = {}
"""
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"


@pytest.fixture
def ascend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the configuration of a vllm-ascend that knows the switch."""
    (tmp_path / "vllm_ascend").mkdir()
    module = tmp_path / "vllm_ascend" / "ascend_config.py"
    module.write_text(MAIN)
    monkeypatch.setattr(SourceTree, "installed", lambda packages: SourceTree.at(tmp_path, packages))
    monkeypatch.setattr(rl_mode, "report", lambda line: None)
    return module


def job(additional: object = None, name: str = "vllm") -> Any:
    kwargs = {} if additional is None else {"vllm": {"additional_config": additional}}
    config = omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": name, "engine_kwargs": kwargs}}})
    omegaconf.OmegaConf.set_struct(config, True)
    return config


def additional(config: Any) -> Any:
    kwargs = config.actor_rollout_ref.rollout.engine_kwargs
    return kwargs.vllm.additional_config if "vllm" in kwargs else None


@pytest.mark.usefixtures("ascend")
@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, {"rl_config": {"enabled": True}}),
        ({"refresh": True}, {"refresh": True, "rl_config": {"enabled": True}}),
        (
            {"rl_config": {"enable_batch_invariant": True}},
            {"rl_config": {"enable_batch_invariant": True, "enabled": True}},
        ),
        ({"rl_config": {"enabled": False}}, {"rl_config": {"enabled": False}}),
    ],
)
def test_it_is_enabled_beside_what_the_user_asks_unless_that_says_no(asked: object, given: object) -> None:
    config = job(asked)
    enable_rl_mode(config)
    assert additional(config) == given


@pytest.mark.usefixtures("ascend")
def test_a_text_of_json_stays_one() -> None:
    config = job('{"refresh": true}')
    enable_rl_mode(config)
    assert json.loads(additional(config)) == {"refresh": True, "rl_config": {"enabled": True}}


@pytest.mark.usefixtures("ascend")
@pytest.mark.parametrize(
    ("mode", "found"), [({"enabeld": True}, "enabeld=True"), ({"enabled": 1}, "enabled=1"), ("yes", "yes")]
)
def test_what_vllm_ascend_would_refuse_is_refused_before_a_process_starts(mode: object, found: str) -> None:
    with pytest.raises(
        JobSettingError, match=rf"enable_batch_invariant, enabled\), each set to True .* found {found};"
    ):
        rules.check(job({"rl_config": mode}), ("rollout.rl_config",))


@pytest.mark.usefixtures("ascend")
def test_another_engine_is_left() -> None:
    config = job(name="sglang")
    enable_rl_mode(config)
    assert additional(config) is None


def test_a_release_that_does_not_know_it_gets_nothing(ascend: Path) -> None:
    ascend.write_text("class AscendConfig: ...")
    config = job()
    enable_rl_mode(config)
    assert additional(config) is None


@pytest.mark.upstream
@pytest.mark.parametrize("release", ["0.7.3.post1", "0.9.1", "0.11.0", "0.13.0", "0.18.0", "0.23.0", "0.25.1rc1"])
def test_no_recorded_release_knows_it(
    release: str, source: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree.at(source("vllm-ascend", f"v{release}"), ("vllm_ascend",))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)
    config = job()
    enable_rl_mode(config)
    assert additional(config) is None


@pytest.mark.upstream
def test_main_knows_it(source: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout is vllm-ascend-main/, of 2026-08-19 or later."""
    tree = SourceTree.at(source("vllm-ascend", "main"), ("vllm_ascend",))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)
    monkeypatch.setattr(rl_mode, "report", lambda line: None)
    asked = dict.fromkeys(("sleep_mode_extra_cleanup", "enable_training_consistency", "enable_batch_invariant"), False)
    config = job({"rl_config": asked})
    enable_rl_mode(config)
    assert additional(config).rl_config == {**asked, "enabled": True}


# The endpoints.


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the values that the variable has while upstream's server makes its application."""
    seen: list[str | None] = []

    def build_app(args: object, supported_tasks: tuple[str, ...] = ()) -> None:
        seen.append(os.environ.get("VLLM_SERVER_DEV_MODE"))

    module = ModuleType(SERVER)
    module.build_app = build_app  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, SERVER, module)
    return seen


async def run_server(server: object, args: object) -> list[str]:
    """Run a server as upstream does, with an engine in RL mode."""
    module = sys.modules[SERVER]
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"
    names = list(inspect.signature(module.build_app).parameters)
    module.build_app(args, supported_tasks=())
    return names


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_the_endpoints_are_as_they_were_before_the_engine(
    before: str | None, server: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", before or "")
    if before is None:
        monkeypatch.delenv("VLLM_SERVER_DEV_MODE")
    build = sys.modules[SERVER].build_app
    names = asyncio.run(keep_development_endpoints_closed(run_server, object(), object()))
    assert server == [before]
    assert names == ["args", "supported_tasks"]
    assert sys.modules[SERVER].build_app is build
