from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from verl_npu.findings import Finding, Severity, error, ok, skipped, warning

from .conftest import Run

# In the package, this name is the command.
module = importlib.import_module("verl_npu_workbench.cli.doctor")

FIELDS = {"name", "verdict", "found", "needed", "why", "fix"}
FINDINGS = [
    ok("python", "3.11.10"),
    warning("ray", "2.54.0", expected="2.46.0 (v0.6.1)", why="tested with it", fix="pip install ray==2.46.0"),
    error("cann", "none", expected="8.2.RC1 (v0.6.1)", why="torch_npu needs it", fix="install CANN"),
    skipped("mindspeed", "not installed"),
    skipped("mbridge", "not installed"),
]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return the findings that the doctor reports instead of its own; a test may change them."""
    findings = [*FINDINGS]
    monkeypatch.setattr(module, "_judged", lambda: None)
    monkeypatch.setattr(module, "examine", lambda site, level, only: findings)
    return findings


def test_this_machine_is_examined(run: Run) -> None:
    status, output = run("doctor", "--json")
    findings = json.loads(output)
    assert all(set(each) == FIELDS for each in findings)
    verdicts = {each["verdict"] for each in findings}
    assert verdicts <= {verdict.value for verdict in Severity}
    assert status == (1 if "error" in verdicts else 0)


def test_a_pin_can_be_named(run: Run) -> None:
    _, output = run("doctor", "--json", "--pin", "v0.7.1", "--only", "python,verl")
    assert [each["name"] for each in json.loads(output)] == ["python", "verl"]


def test_errors_come_first_with_all_that_is_known(run: Run, said: list[Finding]) -> None:
    status, output = run("doctor")
    assert status == 1
    assert output.splitlines()[:4] == [
        "error  cann: none",
        "    needed  8.2.RC1 (v0.6.1)",
        "    why     torch_npu needs it",
        "    fix     install CANN",
    ]
    assert output.index("error") < output.index("warning  ray") < output.index("ok: python (3.11.10)")


def test_what_was_not_judged_stands_together_with_its_reason(run: Run, said: list[Finding]) -> None:
    _, output = run("doctor")
    assert "skipped: mindspeed, mbridge (not installed)" in output
    assert output.splitlines()[-1] == "1 ok, 1 warning, 1 error, 2 skipped"


@pytest.mark.parametrize(("left", "status"), [(["python"], 0), (["python", "ray"], 0), (["cann"], 1), ([], 2)])
def test_the_status_is_that_of_the_worst(run: Run, said: list[Finding], left: list[str], status: int) -> None:
    said[:] = [each for each in said if each.code in left]
    assert run("doctor")[0] == status


def test_a_finding_cannot_command_the_terminal(run: Run, said: list[Finding]) -> None:
    said[:] = [warning("x", "\x1b[31mred", expected="\x07", why="w", fix="f")]
    assert "\x1b[31m" not in run("doctor")[1]


def test_a_name_that_is_not_known_ends_with_one_line(run: Run) -> None:
    status, output = run("doctor", "--only", "cuda")
    assert status == 2
    assert output.startswith("verl-npu: --only: expected names of python")


def test_virtual_npus_are_said_first(run: Run, said: list[Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    assert run("doctor")[1].startswith("SIMULATED")


def test_nodes_that_differ_are_said_first_and_are_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"10.0.0.1": [ok("torch", "2.8.0")], "10.0.0.2": [ok("torch", "2.7.1")]}
    asked = []
    monkeypatch.setattr(module.cluster, "examine_nodes", lambda arguments: asked.extend(arguments) or nodes)
    status, output = run("doctor", "--cluster", "--pin", "v0.7.1", "--only", "torch")
    assert status == 1
    assert output.startswith("The nodes differ:\n  torch\n    10.0.0.1: 2.8.0\n    10.0.0.2: 2.7.1\n")
    assert asked == ["--level", "static", "--pin", "v0.7.1", "--only", "torch"]


def test_an_empty_environment_is_led_to_the_command_that_installs_all_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    # An earlier test may have imported verl into this process.
    monkeypatch.setattr(module, "_judged", lambda: None)
    # Not by `run`, which would find no entry point on that path.
    done = CliRunner().invoke(module.doctor, ["--only", "verl,torch,transformers,ray,numpy,tensordict"])
    status, output = done.exit_code, done.output
    assert status == 1
    assert output.startswith("error  verl: neither verl nor torch")
    assert "verl-npu setup --pin v0.7.1" in output
    assert "pip install" not in output, "nothing that is of no pin"


@pytest.mark.parametrize("mode", ["--report", "--hang=", "--log=train.log"])
@pytest.mark.parametrize("option", ["--level=import", "--pin=v0.6.1", "--only=torch", "--cluster"])
def test_an_option_that_would_be_ignored_is_refused(run: Run, mode: str, option: str) -> None:
    status, output = run("doctor", mode, option)
    assert status == 2
    assert f"{option.partition('=')[0]} cannot be used with {mode.partition('=')[0]}" in output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--report", "--hang=", "--json"], "--hang, --json cannot be used with --report"),
        (["--hang=", "--log=train.log"], "--log cannot be used with --hang"),
    ],
)
def test_only_one_question_is_asked(run: Run, options: list[str], said: str) -> None:
    status, output = run("doctor", *options)
    assert status == 2
    assert said in output
