from __future__ import annotations

import pytest
import yaml
from verl_npu_workbench.pins import PINS

from .conftest import Run


@pytest.mark.parametrize("pin", [pin for pin in PINS if PINS[pin].images])
def test_the_line_for_docker_has_the_image_of_the_pin(run: Run, pin: str) -> None:
    status, printed = run("setup", "--pin", pin, "--server", "a3", "--format", "docker-run")
    assert (status, printed.startswith("docker run ")) == (0, True)
    assert f" verl-npu:{pin}-a3 bash" in printed


def test_the_manifest_is_yaml_below_what_it_needs(run: Run) -> None:
    options = ["--nodes", "4", "--name", "grpo", "--queue", "training", "--claim", "data:/data"]
    status, printed = run(
        "setup", "--pin", "v0.9.1", "--server", "a3", "--format", "rayjob", *options, "--", "bash", "run.sh", "-x"
    )
    made = yaml.safe_load(printed)
    assert status == 0
    assert printed.startswith("# verl v0.9.1 on 4 x 16 NPUs (Atlas 800T A3).")
    assert (made["kind"], made["metadata"]["name"]) == ("RayJob", "grpo")
    assert made["spec"]["entrypoint"] == "bash run.sh -x"
    assert made["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pin", "796871d7", "--format", "docker-run"], "--for image"),
        (["--pin", "v0.9.1", "--format", "rayjob", "--mount", "/x", "--", "x"], "--claim NAME:/PATH"),
        (["--pin", "v0.9.1", "--format", "rayjob"], "the job's command is missing"),
        (["--pin", "v0.9.1", "--format", "docker-run", "--nodes", "2"], "use --format rayjob"),
        (["--pin", "v0.9.1", "--format", "docker-run", "--", "bash", "run.sh"], "use --format rayjob"),
        (["--pin", "796871d7", "--for", "image", "--format", "rayjob", "--", "x"], "--image REGISTRY/ascendhub/"),
    ],
)
def test_what_cannot_be_had_is_one_line(run: Run, arguments: list[str], said: str) -> None:
    status, printed = run("setup", *arguments)
    assert status == 2
    assert printed.startswith("verl-npu: ")
    assert len(printed.splitlines()) == 1
    assert said in printed


def test_without_yaml_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, printed = run("setup", "--pin", "v0.9.1", "--format", "rayjob", "--", "bash", "run.sh")
    assert status == 2
    assert "pip install 'verl-npu-workbench[kubernetes]'" in printed
