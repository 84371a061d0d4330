"""The variables that workers on other hosts receive."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from testing.interpreter import import_path

from verl_npu import environment, manifest
from verl_npu.activation import status
from verl_npu.ascend.variables import SHARED, Shared
from verl_npu.errors import FleetError, SettingError
from verl_npu.features.fleet import forward_variables_to_workers, install_hook, remove_hook
from verl_npu.features.fleet.comparison import differences
from verl_npu.features.fleet.forwarding import add_variables


@pytest.fixture(autouse=True)
def activated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process one that has variables to forward."""
    monkeypatch.setattr(manifest, "_activities", [status])


def test_every_process_gets_the_layout_that_new_weights_may_be_copied_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ASCEND_ENABLE_NZ", raising=False)
    monkeypatch.setenv("VERL_NPU_WEIGHT_SYNC_TIMEOUT", "30")
    made = forward_variables_to_workers(lambda: {"env_vars": {"MINE": "1"}})["env_vars"]
    assert made["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert made["VERL_NPU_WEIGHT_SYNC_TIMEOUT"] == "30"
    assert made["MINE"] == "1"


def test_workers_get_of_the_drivers_manifest_what_processes_are_compared_by(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"target": "verl.x:y", "state": "applied", "reason": "as at pin v0.6.1"}
    names = ("device", "host_copies", "attention", "fused_ops", "rollout", "weight_sync", "megatron", "fleet")
    patches = {f"fleet.patch_{number}": entry for number in range(20)}
    whole = {name: {"owner": "", "state": "applied", "patches": patches} for name in names}
    native = {"by": "verl.z", "state": "native", "reason": "assigned"}
    activity = {**status(), "features": whole, "natives": {"transformers.x.y": native}}
    monkeypatch.setattr(manifest, "_activities", [lambda: activity])
    text = forward_variables_to_workers(lambda: {})["env_vars"]["VERL_NPU_DRIVER_MANIFEST"]
    assert len(text) < 500, "Ray and verl print it in one line"
    told = manifest.decoded(manifest.unpacked(text), "the driver")
    assert differences([manifest.manifest(), told]) == []
    activity["features"] = {"fleet": {"owner": "", "state": "drifted", "patches": {}}}
    assert "feature fleet" in differences([manifest.manifest(), told])[0]


@pytest.mark.parametrize("reads", [True, False])
def test_a_layout_is_left_to_an_installed_engine_that_does_not_read_the_variable(
    reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = tmp_path / "vllm_ascend" / "envs.py"
    variables.parent.mkdir()
    variables.with_name("__init__.py").touch()
    variables.write_text('names = {"VLLM_ASCEND_ENABLE_NZ": 1}\n' if reads else "names = {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(manifest, "_activities", [lambda: {**status(), "active": True}])
    with pytest.raises(FleetError) if reads else contextlib.nullcontext():
        made = add_variables({"env_vars": {"VLLM_ASCEND_ENABLE_NZ": "1"}})
        assert made["env_vars"]["VLLM_ASCEND_ENABLE_NZ"] == "1"


@pytest.mark.parametrize("asked_in", ["shell", "runtime environment"])
@pytest.mark.parametrize("added", [add_variables, lambda runtime: forward_variables_to_workers(lambda: runtime)])
def test_a_layout_that_garbles_new_weights_is_refused(
    asked_in: str, added: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "_activities", [lambda: {**status(), "active": True}])
    asked = {"VLLM_ASCEND_ENABLE_NZ": "1"} if asked_in == "runtime environment" else {}
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_NZ", "0" if asked else "1")
    with pytest.raises(FleetError, match="VLLM_ASCEND_ENABLE_NZ=1: expected VLLM_ASCEND_ENABLE_NZ=0"):
        added({"env_vars": asked})


def test_a_submitted_job_is_not_given_its_own_variables_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"VERL_NPU_STRICT": "1"}}}')
    monkeypatch.setenv("VERL_NPU_STRICT", "1")
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1500")
    made = forward_variables_to_workers(lambda: {"env_vars": {}})["env_vars"]
    assert "VERL_NPU_STRICT" not in made
    assert made["HCCL_CONNECT_TIMEOUT"] == "1500"


def test_folders_are_forwarded_with_their_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIRTUAL_ASCEND_CACHE", "cache")
    monkeypatch.setenv("VERL_NPU_MANIFEST_DIR", "outputs/manifests")
    made = forward_variables_to_workers(lambda: {})["env_vars"]
    assert made["VIRTUAL_ASCEND_CACHE"] == str(tmp_path / "cache")
    assert made["VERL_NPU_MANIFEST_DIR"] == str(tmp_path / "outputs" / "manifests")


@pytest.mark.parametrize("shared", SHARED, ids=lambda shared: shared.name)
def test_upstream_asks_for_each_variable_of_ascend_that_is_forwarded(shared: Shared) -> None:
    checkout = Path(environment.UPSTREAMS.read()) / f"verl-{shared.pin}"
    if not environment.UPSTREAMS.is_set() or not checkout.is_dir():
        pytest.skip(f"no checkout of {shared.pin}")
    assert shared.name in (checkout / shared.path).read_text()


def test_verl_finds_the_task_queue_of_engines_on_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl 0.9.0 reads it in the process that starts the engines, which another host may run."""
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "2")
    monkeypatch.setenv("VLLM_ASCEND_TASK_QUEUE_ENABLE", "1")
    made = forward_variables_to_workers(lambda: {})["env_vars"]
    assert (made["TASK_QUEUE_ENABLE"], made["VLLM_ASCEND_TASK_QUEUE_ENABLE"]) == ("2", "1")


def test_what_differs_between_hosts_is_not_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HCCL_IF_IP", "LD_PRELOAD"):
        monkeypatch.setenv(name, "")
        assert name not in forward_variables_to_workers(lambda: {})["env_vars"]


class TestHook:
    """Ray's hook, for entry points that make their own environment."""

    @pytest.fixture(autouse=True)
    def active(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = {**status(), "active": True}
        monkeypatch.setattr(manifest, "_activities", [lambda: made])
        for name in ("RAY_RUNTIME_ENV_HOOK", "VERL_NPU_RAY_HOOK"):
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)

    def test_what_the_entry_point_asks_for_wins_and_is_not_changed_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "3600")
        asked = {"env_vars": {"TOKENIZERS_PARALLELISM": "true", "HCCL_EXEC_TIMEOUT": "60"}, "working_dir": "w"}
        made = add_variables(asked)
        assert made["env_vars"].items() >= asked["env_vars"].items()
        assert made["env_vars"]["VLLM_ASCEND_ENABLE_NZ"] == "0"
        assert made["working_dir"] == "w"
        assert "VLLM_ASCEND_ENABLE_NZ" not in asked["env_vars"]

    def test_the_hook_of_the_user_is_called_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", f"{__name__}.users_hook")
        install_hook()
        install_hook()
        assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "verl_npu.features.fleet.forwarding.add_variables"
        assert add_variables({"env_vars": {"MINE": "1"}})["env_vars"].items() >= {"MINE": "1", "OF_USER": "1"}.items()
        remove_hook()
        assert os.environ["RAY_RUNTIME_ENV_HOOK"] == f"{__name__}.users_hook"

    def test_the_hook_is_gone_when_it_is_removed(self) -> None:
        install_hook()
        remove_hook()
        remove_hook()
        assert "RAY_RUNTIME_ENV_HOOK" not in os.environ

    def test_a_hook_that_is_no_function_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VERL_NPU_RAY_HOOK", "no.such.module.hook")
        with pytest.raises(SettingError, match=r"RAY_RUNTIME_ENV_HOOK=no\.such\.module\.hook: expected"):
            add_variables(None)

    def test_a_program_that_syncs_no_weights_keeps_its_layout(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["/site/verl/trainer/main_generation.py"])
        made = add_variables({"env_vars": {"VLLM_ASCEND_ENABLE_NZ": "1"}})
        assert made["env_vars"]["VLLM_ASCEND_ENABLE_NZ"] == "1"

    def test_a_process_where_nothing_is_active_adds_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manifest, "_activities", [])
        assert add_variables(None) is None
        monkeypatch.setattr(manifest, "_activities", [lambda: {**status(), "active": False}])
        assert add_variables({"env_vars": {}}) == {"env_vars": {}}


def users_hook(runtime):
    """A hook of the user's."""
    return {**runtime, "env_vars": {**runtime["env_vars"], "OF_USER": "1"}}


CLUSTER = """
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
input()
"""

DRIVER = """
import json, os, sys
import recipe.dapo.main_dapo as main_dapo
from omegaconf import OmegaConf
import ray

@ray.remote(num_cpus=1)
class Runner:
    def run(self, config):
        print("ENVIRONMENT " + json.dumps(dict(os.environ)), file=open(config.out, "w"))

main_dapo.TaskRunner = Runner
settings = {"ray_init": {"num_cpus": None}, "ray_kwargs": {"ray_init": {}}, "trainer": {}, "out": sys.argv[1]}
settings["global_profiler"] = {"tool": None}
main_dapo.run_ppo(OmegaConf.create(settings))
"""


@pytest.mark.upstream
def test_an_entry_point_with_its_own_environment_reaches_workers_of_another_host(
    tmp_path: Path, importable: Callable[[str], Path]
) -> None:
    pytest.importorskip("ray")
    # Workers of a cluster that somebody else started inherit nothing from the user's shell.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_NPU", "RAY_", "HCCL"))}
    clean |= {"RAY_USAGE_STATS_ENABLED": "0"}
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        address = cluster.stdout.readline().strip()
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(tmp_path / "out")],
            env={
                **clean,
                "PYTHONPATH": import_path(importable("796871d7")),
                "RAY_ADDRESS": address,
                "VERL_NPU": "on",
                "VERL_NPU_STRICT": "1",
                "HCCL_CONNECT_TIMEOUT": "1500",
                "HCCL_SOCKET_IFNAME": "eth7",
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        cluster.communicate("\n", timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "out").read_text().removeprefix("ENVIRONMENT "))
    expected = {"VERL_NPU": "on", "VERL_NPU_STRICT": "1", "HCCL_CONNECT_TIMEOUT": "1500", "VLLM_ASCEND_ENABLE_NZ": "0"}
    assert seen.items() >= expected.items()
    told = manifest.decoded(manifest.unpacked(seen["VERL_NPU_DRIVER_MANIFEST"]), "the driver")
    assert told["features"]["fleet"]["state"] == "applied"
    assert len(seen["VERL_NPU_DRIVER_MANIFEST"]) < 700, "Ray prints it in one line"
    assert "HCCL_SOCKET_IFNAME" not in seen
