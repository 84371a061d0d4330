"""The ways in and the switches, each in a process of its own: verl-npu is activated once in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testing.interpreter import SHOW, Interpreter

FEATURES = {"device", "host_copies", "attention", "fused_ops", "rollout", "engine_sleep", "weight_sync", "megatron"}
FEATURES |= {"fleet"}
FEATURES |= {"fused_kernels", "linear_attention", "micro_batches"}


@pytest.fixture
def ascend(interpreter: Interpreter) -> Interpreter:
    """Install what activation looks for on a machine with Ascend software: an importable torch_npu, and a verl."""
    interpreter.package("torch_npu")
    interpreter.package("verl", "print('verl is imported')")
    return interpreter


def test_without_ascend_software_nothing_is_printed_and_nothing_is_patched(interpreter) -> None:
    interpreter.package("verl")
    result = interpreter.run(
        f"import sys; finders = list(sys.meta_path); import verl_npu, verl; {SHOW}; print(sys.meta_path == finders)"
    )
    assert result.out.splitlines()[-1] == "True"
    assert json.loads(result.out.splitlines()[0])["active"] is False
    assert result.err == ""


@pytest.mark.parametrize(
    ("software", "variables", "active"),
    [
        (True, {}, True),
        (True, {"ASCEND_RT_VISIBLE_DEVICES": ""}, True),  # software decides, and not visible devices
        (True, {"VERL_NPU": "off"}, False),
        (False, {"VERL_NPU": "on"}, True),
    ],
    ids=str,
)
def test_ascend_software_and_the_switch_decide(
    interpreter, software: bool, variables: dict[str, str], active: bool
) -> None:
    if software:
        interpreter.package("torch_npu")
    assert interpreter.run(f"import verl_npu; {SHOW}", **variables).status["active"] is active


@pytest.mark.parametrize(
    ("software", "variables", "said"),
    [
        (False, {}, "is off: torch_npu is not installed, and VIRTUAL_ASCEND asks for no virtual NPU>"),
        (True, {"VERL_NPU": "off"}, "is off: VERL_NPU is off>"),
        (True, {}, "is on, by import verl_npu: device drifted, host_copies"),
    ],
    ids=str,
)
def test_printed_what_is_done_here_is_one_line_that_says_why_it_is_off(
    interpreter, software: bool, variables: dict[str, str], said: str
) -> None:
    if software:
        interpreter.package("torch_npu")
    interpreter.package("verl")
    result = interpreter.run("import verl_npu, verl; print(verl_npu.status())", **variables)
    assert said in result.out
    assert len(result.out) < 500


def test_a_wrong_switch_is_one_line_and_leaves_it_off(ascend) -> None:
    result = ascend.run(f"import verl_npu; {SHOW}", VERL_NPU="yes")
    assert result.code == 0
    assert result.status["active"] is False
    (line,) = result.err.splitlines()
    assert "VERL_NPU='yes'" in line
    assert "on, off or auto" in line


@pytest.mark.parametrize("first", ["import verl_npu", "import verl_npu_entry; verl_npu_entry.torch_backends()"])
def test_under_strict_a_wrong_switch_is_an_error_of_each_import_of_verl(ascend, first: str) -> None:
    program = (
        f"{first}\nfor _ in range(2):\n    try: import verl\n    except Exception as e: print(type(e).__name__, e)"
    )
    result = ascend.run(program, VERL_NPU="maybe", VERL_NPU_STRICT="1")
    assert (result.code, result.err) == (0, "")
    assert [line.split("=")[0] for line in result.out.splitlines()] == [
        "SettingError VERL_NPU",
        "SettingError VERL_NPU",
    ]


def test_what_was_interrupted_after_verl_was_imported_begins_again(ascend) -> None:
    program = (
        "import verl, verl_npu.reporting, sys\n"
        "verl_npu.deactivate()\n"
        "real = verl_npu.reporting.report\n"
        "def interrupt(line): raise KeyboardInterrupt\n"
        "import verl_npu.session as session\n"
        "session.reporting.report = interrupt\n"
        "try: verl_npu.activate()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "session.reporting.report = real\n"
        f"verl_npu.activate(); {SHOW}"
    )
    result = ascend.run(program, VERL_NPU_DISABLE="")
    assert "interrupted" in result.out, result.err
    assert set(result.status["features"]) == FEATURES


def test_importing_it_imports_nothing_that_costs_time(ascend) -> None:
    program = (
        "import sys; before = set(sys.modules); import verl_npu; print(*sorted(set(sys.modules) - before)); "
        "import verl; print('verl_npu.features' in sys.modules)"
    )
    imported, *_, after_verl = ascend.run(program).out.splitlines()
    heavy = {"torch", "torch_npu", "verl", "virtual_ascend", "typing", "dataclasses", "pathlib", "verl_npu.features"}
    assert not heavy & set(imported.split())
    assert after_verl == "True"


def test_verl_that_was_imported_first_is_patched_as_well(ascend) -> None:
    result = ascend.run(f"import verl, verl_npu; {SHOW}")
    assert set(result.status["features"]) == FEATURES


def test_upstreams_own_line_in_its_init_works_while_verl_is_half_initialised(ascend) -> None:
    ascend.package("verl", "import verl_npu")
    result = ascend.run(f"import verl; {SHOW}")
    assert result.code == 0, result.err
    assert set(result.status["features"]) == FEATURES


def test_an_entry_point_is_named_where_its_module_lies_apart_from_the_package(ascend) -> None:
    source = Path(__file__).resolve().parents[1] / "verl_npu_entry.py"
    (ascend.site / source.name).write_text(source.read_text())
    load = f"import sys; sys.path.insert(0, {str(ascend.site)!r}); {entered('vllm_general_plugins')}()"
    result = ascend.run(f"{load}; import verl_npu_entry, verl_npu; print(verl_npu_entry.__file__); {SHOW}")
    assert result.out.splitlines()[0] == str(ascend.site / source.name)
    assert result.status["origin"] == "the entry point vllm.general_plugins"


def entered(function: str) -> str:
    """Return a program that loads the object that an entry point of ours names."""
    return f"from importlib.metadata import EntryPoint as E; E('a', 'verl_npu_entry:{function}', 'b').load()"


@pytest.mark.parametrize(
    ("program", "origin"),
    [
        ("import verl_npu", "import verl_npu"),
        ("import verl", "import verl_npu"),
        (f"{entered('torch_backends')}()", "the entry point torch.backends"),
        (f"{entered('vllm_general_plugins')}()", "the entry point vllm.general_plugins"),
        # Upstream calls nothing that it loads.
        (entered("verl_plugins"), "the entry point verl.plugins"),
        (f"{entered('torch_backends')}(); import verl; {entered('verl_plugins')}", "the entry point torch.backends"),
        (f"{entered('torch_backends')}", "import verl_npu"),
    ],
)
def test_whatever_comes_first_is_the_origin(ascend, program: str, origin: str) -> None:
    ascend.package("verl", "import verl_npu")
    status = ascend.run(f"{program}; {SHOW}").status
    assert (status["active"], status["origin"]) == (True, origin)


def test_torch_npu_that_comes_back_in_the_middle_of_the_beginning_does_not_begin(ascend) -> None:
    ascend.package(
        "torch_npu",
        "import sys, verl_npu_entry; verl_npu_entry.torch_backends(); print('verl_npu.session' in sys.modules)",
    )
    result = ascend.run(f"import verl_npu, verl; {SHOW}")
    assert result.out.splitlines()[0] == "False", result.err
    assert set(result.status["features"]) == FEATURES


def test_taken_back_nothing_of_ours_is_asked_by_an_import(ascend) -> None:
    program = "import sys; before = list(sys.meta_path); import verl_npu, verl; verl_npu.deactivate()"
    assert ascend.run(f"{program}; print(sys.meta_path == before)").out.splitlines()[-1] == "True"


def test_activated_again_after_it_was_taken_back_a_process_has_another_origin(ascend) -> None:
    program = f"{entered('torch_backends')}(); import verl_npu; verl_npu.deactivate(); verl_npu.activate(); {SHOW}"
    assert ascend.run(program).status["origin"] == "import verl_npu"


def test_the_driver_prints_one_line_and_writes_a_manifest_where_one_is_asked_for(ascend, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    program = "import os, verl_npu, verl, verl_npu; verl_npu.activate(); print(os.getpid())"
    result = ascend.run(program, VERL_NPU_MANIFEST_DIR=str(folder))
    (path,) = folder.iterdir()
    manifest = json.loads(path.read_text())
    assert manifest["pid"] == int(result.out.split()[-1])
    assert manifest["role"] == "driver"
    assert set(manifest["features"]) == FEATURES
    # The driver prints one line, however often it is activated.
    assert len([line for line in result.err.splitlines() if "attention" in line and "device" in line]) == 1


def test_a_manifest_that_cannot_be_written_is_one_line_and_no_error(ascend, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = ascend.run("import verl_npu, verl", VERL_NPU_MANIFEST_DIR=str(tmp_path / "file"))
    assert result.code == 0
    assert len([line for line in result.err.splitlines() if "VERL_NPU_MANIFEST_DIR" in line]) == 1


def test_strict_makes_an_upstream_that_is_no_pin_an_error_at_import(ascend) -> None:
    result = ascend.run("import verl_npu, verl", VERL_NPU_STRICT="1")
    assert result.code != 0
    assert "DriftError" in result.err


def test_an_error_inside_us_does_not_break_the_import(ascend) -> None:
    ascend.package("broken_finder")
    program = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'torch_npu': raise ZeroDivisionError('broken')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import verl_npu\n"
        "print('alive')\n"
    )
    result = ascend.run(program)
    assert result.out.startswith("alive\n")
    (line,) = result.err.splitlines()
    assert "broken" in line


STRICT = {"VERL_NPU": "on", "VERL_NPU_STRICT": "1"}
# A verl that imports torch, like the real one, and a program that tries it twice and then uses torch.
TWICE = """
for _ in range(2):
    try:
        import verl
    except Exception as error:
        print(type(error).__name__)
import torch
print(torch.ones(1).item())
"""


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("torch_npu", "environment", "error"),
    [
        ("", STRICT, "DriftError"),
        ("", {"VERL_NPU_STRICT": "yes"}, "SettingError"),
        ("raise ImportError('libhccl.so')", {"VERL_NPU": "on"}, "AscendSoftwareError"),
    ],
    ids=["drift under strict", "a wrong switch", "a torch_npu that cannot be imported"],
)
def test_each_import_of_verl_raises_the_error_and_torch_works(
    interpreter, torch_npu: str, environment, error: str
) -> None:
    pytest.importorskip("torch")
    interpreter.package("torch_npu", torch_npu)
    interpreter.package("verl", "import torch")
    result = interpreter.run(TWICE, **environment)
    assert result.out.splitlines() == [error, error, "1.0"], result.err


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_nothing_breaks_no_import_and_puts_nothing_on_stdout(ascend, redirection: str) -> None:
    # `exec` in a shell: the process itself has no stderr to write to.
    shell = f"{sys.executable} -c 'import verl_npu, verl; print(5)' {redirection}"
    result = ascend.run(f"import os; os.execvp('sh', ['sh', '-c', {shell!r}])")
    assert (result.code, result.out) == (0, "verl is imported\n5\n")


def test_a_folder_named_torch_npu_is_no_ascend_software(interpreter) -> None:
    (interpreter.site / "torch_npu").mkdir()
    interpreter.package("verl")
    result = interpreter.run(f"import verl_npu, verl; {SHOW}")
    assert (result.status["active"], result.err) == (False, "")


@pytest.mark.parametrize("group", ["torch.backends", "verl.plugins", "vllm.general_plugins"])
def test_the_entry_points_are_declared_and_load(group: str) -> None:
    from importlib.metadata import entry_points

    (entry,) = [e for e in entry_points(group=group) if e.name == "verl_npu"]
    assert callable(entry.load())


@pytest.mark.virtual
def test_the_virtual_npus_stay_where_the_patches_are_off(interpreter) -> None:
    pytest.importorskip("torch")
    program = f"import torch; print(torch.npu.device_count()); {SHOW}"
    result = interpreter.run(program, VIRTUAL_ASCEND="2", VERL_NPU="off")
    assert result.out.splitlines()[0] == "2"
    assert (result.status["active"], result.status["simulated"]) == (False, True)


@pytest.mark.virtual
def test_virtual_npus_that_cannot_be_had_leave_it_off(interpreter) -> None:
    pytest.importorskip("torch")
    interpreter.package("verl")
    result = interpreter.run(f"import torch, verl; {SHOW}", VIRTUAL_ASCEND="two")
    assert (result.code, result.status["active"]) == (0, False)
    (line,) = result.err.splitlines()
    assert line.startswith("virtual-ascend: VIRTUAL_ASCEND='two'")


def test_processes_that_start_at_once_leave_a_whole_manifest_each_and_no_other_file(ascend, tmp_path: Path) -> None:
    folder = tmp_path / "manifests"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VERL_", "ASCEND_"))}
    ascend.run("import verl_npu, verl")  # Python writes its bytecode once
    before = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    environment = {**inherited, "PYTHONPATH": str(ascend.site), "VERL_NPU_MANIFEST_DIR": str(folder)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "import verl_npu, verl"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(8)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * 8
    manifests = [json.loads(path.read_text()) for path in folder.iterdir()]
    assert sorted(manifest["pid"] for manifest in manifests) == sorted(process.pid for process in processes)
    assert all(set(manifest["features"]) == FEATURES for manifest in manifests)
    after = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts and folder not in path.parents}
    assert after - before == {folder}


EARLIER = "import sys, types; sys.modules['verl_npu.plugin'] = types.ModuleType('verl_npu.plugin'); "


def test_beside_the_earlier_plugin_of_the_same_name_it_is_an_error(ascend) -> None:
    result = ascend.run(f"{EARLIER} import verl_npu")
    last = result.err.splitlines()[-1]
    assert "AscendSoftwareError" in last
    assert "an earlier plugin named verl_npu is loaded in the same process (verl_npu.plugin)" in last
    assert "pip uninstall verl_npu" in last


def test_by_the_entry_point_of_torch_the_import_of_verl_says_so(ascend) -> None:
    result = ascend.run(f"{EARLIER} {entered('torch_backends')}(); print('alive'); import verl")
    assert result.out.startswith("alive\n")
    assert "AscendSoftwareError" in result.err.splitlines()[-1]


def test_the_earlier_plugin_cannot_be_imported_after_it(ascend) -> None:
    """Files of both may lie in one folder."""
    left = ascend.site / "left" / "plugin.py"
    left.parent.mkdir()
    left.write_text("print('patched by both')\n")
    result = ascend.run(f"import verl_npu; verl_npu.__path__.append({str(left.parent)!r}); import verl_npu.plugin")
    assert "AscendSoftwareError" in result.err.splitlines()[-1]
    assert "patched by both" not in result.out
