from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_npu_workbench.doctor import NAMES, Level, examine, probes
from verl_npu_workbench.doctor.probes import Probe, probe
from verl_npu_workbench.doctor.site import Judged

from verl_npu.errors import CommandError
from verl_npu.findings import Severity, error, exit_status, ok, skipped, warning

from . import smi
from .box import Box

Make = Callable[..., Box]
TEXTS = {"expected": "n", "why": "w", "fix": "f"}


def by_name(box: Box, *only: str) -> dict:
    return {each.code: each for each in examine(box.site(), only=only)}


def test_the_status_is_that_of_the_worst() -> None:
    fine, odd, bad = ok("a", ""), warning("b", "", **TEXTS), error("c", "", **TEXTS)
    cases = ([fine, skipped("d", "")], [fine, odd], [bad, odd], [skipped("d", "")], [])
    assert [exit_status(some) for some in cases] == [0, 0, 1, 2, 2]


def test_only_the_named_subjects_are_looked_at(make: Make) -> None:
    assert set(by_name(make("v0.7.1"), "torch", "npus")) == {"torch", "npus", "npu-memory"}


def test_a_part_of_a_subject_can_be_named(make: Make) -> None:
    box = make("v0.7.1")
    assert set(by_name(box, "npu-memory")) == {"npu-memory"}
    box.environ.update(TASK_QUEUE_ENABLE="9", VLLM_USE_V1="0")
    assert set(by_name(box, "TASK_QUEUE_ENABLE")) == {"TASK_QUEUE_ENABLE"}


def test_of_a_part_that_cannot_be_judged_the_subject_says_why(make: Make) -> None:
    box = make("v0.7.1")
    box.path("usr/local/bin/npu-smi").unlink()
    assert {each.code: each.severity for each in examine(box.site(), only=["npu-memory"])} == {"npus": Severity.ERROR}


def test_a_subject_that_is_not_known_is_refused(make: Make) -> None:
    with pytest.raises(CommandError, match="found cuda"):
        examine(make("v0.7.1").site(), only=["cuda"])


def test_a_subject_of_a_higher_level_is_refused(make: Make) -> None:
    with pytest.raises(CommandError, match="expected --level import"):
        examine(make("v0.7.1").site(), only=["import-torch"])


def test_no_subject_has_the_name_of_another() -> None:
    assert len({*NAMES}) == len(NAMES)


def test_a_machine_without_anything_of_ascends_has_one_error(make: Make) -> None:
    box = make("v0.7.1")
    bare = Box(box.folder / "bare", box.libraries, "v0.7.1", judged=box.judged, environ={"PATH": "/nowhere"})
    for package in ("torch", "transformers", "tensordict", "numpy", "ray"):
        bare.install(package, str(box.site().packages[package].version))
    errors = [each for each in examine(bare.site()) if each.severity is Severity.ERROR]
    assert [each.code for each in errors] == ["npus"]
    assert "VIRTUAL_ASCEND=2" in errors[0].fix


def test_without_verl_nothing_is_compared(make: Make) -> None:
    box = make("v0.7.1")
    box.pin = box.judged = None
    box.install("transformers", "4.30.0")
    found = by_name(box)
    assert found["verl"].severity is Severity.WARNING
    assert "--pin" in found["verl"].fix
    assert found["transformers"].severity is Severity.OK


def test_a_pin_that_nothing_says_the_versions_of_is_no_error_and_nothing_is_compared(make: Make) -> None:
    box = make("v0.7.1")
    box.pin, box.judged = None, Judged("v0.7.2", True, (), ())
    box.install("transformers", "4.30.0")
    found = by_name(box)
    assert found["verl"].severity is Severity.OK
    assert found["verl"].found.endswith("; the versions that v0.7.2 needs are unknown, so no versions were compared")
    assert found["transformers"].severity is Severity.OK


def test_virtual_npus_are_said_to_be_simulated_and_take_other_versions(make: Make) -> None:
    box = make("v0.6.1")
    box.no_npus()
    box.no_cann()
    box.uninstall("torch_npu", "vllm", "vllm-ascend")
    box.install("torch", "2.13.0+cpu")
    box.install("transformers", "4.57.6")
    box.environ["VIRTUAL_ASCEND"] = "2"
    findings = examine(box.site())
    assert exit_status(findings) == 0
    assert next(each for each in findings if each.code == "npus").found == "2 virtual (SIMULATED)"


def test_sglangs_versions_count_where_it_is_installed(make: Make) -> None:
    box = make("v0.8.0")
    box.uninstall("vllm", "vllm-ascend", "torchvision")
    for name, version in {"sglang": "0.5.10", "torch": "2.8.0", "torch_npu": "2.8.0.post2"}.items():
        box.install(name, version)
    assert [each.code for each in examine(box.site()) if each.severity is not Severity.OK and each.fix] == []


def test_the_versions_for_an_a5_do_not_count_on_an_a2(make: Make) -> None:
    box = make("v0.9.0")
    box.install("transformers", "4.57.6")
    assert by_name(box, "transformers")["transformers"].severity is Severity.WARNING
    box.npu_smi(smi.a2(driver="26.0.rc2").replace("910B2", "950PR"))
    assert by_name(box, "transformers")["transformers"].severity is Severity.OK


def test_what_torch_npu_itself_asks_of_torch_counts(make: Make) -> None:
    box = make("v0.7.1")
    box.install("torch_npu", "2.8.0.post2", requires=["torch==2.8.0"])
    assert by_name(box, "torch-pair")["torch-pair"].severity is Severity.OK
    box.install("torch_npu", "2.8.0.post2", requires=["torch==2.8.1"])
    assert by_name(box, "torch-pair")["torch-pair"].severity is Severity.WARNING


def test_a_range_of_ports_of_which_enough_are_free_is_right(make: Make) -> None:
    box = make("v0.7.1")
    box.write("proc/net/tcp", "head\n   0: 00000000:EA63 00000000:0000 0A 0 0 0 0 0\n")
    box.environ["HCCL_HOST_SOCKET_PORT_RANGE"] = "60000-60050"
    assert by_name(box, "hccl-ports")["hccl-ports"].found == "60000-60050, 50 of them free"


def test_a_container_may_call_its_npus_by_their_numbers_on_the_host(make: Make) -> None:
    box = make("v0.7.1")
    rows = smi.a2(8).splitlines()
    first = next(number for number, row in enumerate(rows) if row.startswith("| 0     910B2"))
    box.npu_smi("\n".join(rows[:first] + rows[first + 12 :]))
    assert [npu.card for npu in box.site().smi.npus] == [4, 5, 6, 7]
    box.environ["ASCEND_RT_VISIBLE_DEVICES"] = "4,5,6,7"
    assert set(by_name(box, "variables")) == {"variables"}
    box.environ["ASCEND_RT_VISIBLE_DEVICES"] = "7,8"
    assert "8, but there are 4 NPUs here" in by_name(box, "variables")["ASCEND_RT_VISIBLE_DEVICES"].found


# The programs that are run.


def trial(code: str, patience: float = 60.0) -> Probe:
    return Probe("trial", Level.IMPORT, (), ("-c", code), patience, "a test")


@pytest.fixture
def run(make: Make) -> Callable[[Probe], object]:
    box = make("v0.7.1")
    box.environ["PATH"] = os.environ["PATH"]
    return lambda asked: next(probe(box.site(), asked))


def test_a_probe_that_works_is_right(run: Callable) -> None:
    found = run(trial("print('yes')"))
    assert (found.severity, found.found) == (Severity.OK, "yes")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("libhccl.so: cannot open shared object file: No such file or directory", "ascend-toolkit/set_env.sh"),
        ("libascend_hal.so: cannot open shared object file", "driver/lib64"),
        ("libatb.so: cannot open shared object file", "nnal/atb/set_env.sh"),
        ("/lib64/libstdc++.so.6: version `CXXABI_1.3.15' not found", "libstdcxx-ng"),
        ("libtorch_npu.so: undefined symbol: _ZN5torch8autograd", "--only torch-pair"),
        ("something that nobody knows", "python -c"),
    ],
)
def test_a_probe_that_fails_names_the_fix(run: Callable, said: str, fix: str) -> None:
    found = run(trial(f"raise ImportError({said!r})"))
    assert found.severity is Severity.ERROR
    assert said in found.found
    assert fix in found.fix


def test_a_probe_that_hangs_is_ended_with_all_that_it_started(run: Callable, tmp_path: Path) -> None:
    marker = tmp_path / "child"
    child = f"import subprocess; subprocess.run(['/bin/sh', '-c', 'echo $$ > {marker}; exec sleep 60'])"
    found = run(trial(child, patience=2.0))
    assert "a process that still runs after 2 s" in found.found
    command = Path("/proc") / marker.read_text().strip() / "cmdline"
    # It takes a moment to die, and then nobody may have taken note of its end yet: it has no command line any more.
    deadline = time.monotonic() + 30
    while command.exists() and command.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not command.exists() or not command.read_bytes()


def test_a_probe_of_what_is_not_installed_is_skipped(make: Make) -> None:
    box = make("v0.6.1")
    box.uninstall("vllm", "vllm-ascend")
    asked = next(each for each in probes.PROBES if each.name == "import-vllm-ascend")
    found = next(probe(box.site(), asked))
    assert (found.severity, found.found) == (Severity.SKIPPED, "vllm and vllm-ascend are not installed")


def test_every_probe_is_a_program_that_python_understands() -> None:
    for each in probes.PROBES:
        if each.command[0] == "-c":
            compile(each.command[1], each.name, "exec")


def test_looking_imports_none_of_the_users_packages() -> None:
    code = (
        "import atexit, sys; from verl_npu.cli import main; "
        "atexit.register(lambda: print(sorted({n.partition('.')[0] for n in sys.modules}), file=sys.stderr)); "
        "main(['doctor', '--json'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    imported = set(ran.stderr.strip().splitlines()[-1].strip("[]").replace("'", "").split(", "))
    assert "verl_npu" in imported
    assert not imported & {"torch", "torch_npu", "verl", "transformers", "vllm", "ray", "numpy", "tensordict"}
