"""The state of a process with virtual NPUs from its first line on."""

# ruff: noqa: E501 - the lines of programs in strings

from __future__ import annotations

import json
import os

import pytest
from virtual_ascend.exposure import SITE
from virtual_ascend.testing.fixtures import Run

NIGHTLY = pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/loading.py",
    "packages/virtual-ascend/virtual_ascend/activation.py",
    "packages/virtual-ascend/virtual_ascend/exposure.py",
    "packages/virtual-ascend/virtual_ascend/device",
)
WITH_SITE = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))


@pytest.mark.usefixtures("from_nothing")
def test_import_torch_brings_up_the_npu(python: Run) -> None:
    done = python("import torch; print(torch.npu.device_count(), torch.ones(1, device='npu').device)")
    assert (done.stdout, done.stderr) == ("2 npu:0\n", "")


@pytest.mark.usefixtures("from_nothing")
def test_import_torch_npu_alone_brings_up_everything(python: Run) -> None:
    done = python("import torch_npu; import torch; print(torch_npu.npu is torch.npu)", PYTHONPATH=WITH_SITE)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.usefixtures("from_nothing")
@NIGHTLY
def test_import_torch_npu_works_without_autoload(python: Run) -> None:
    done = python(
        "import torch_npu, torch; print(torch.npu.device_count())",
        PYTHONPATH=WITH_SITE,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,9,1", [0]),
        *(
            pytest.param(*case, marks=pytest.mark.nightly("packages/virtual-ascend/virtual_ascend/device"))
            for case in ((None, [0, 1, 2, 3]), ("", []), ("1,3", [1, 3]), ("3", [3]), ("1,1", [1]), ("NoDevFiles", []))
        ),
    ],
)
def test_the_visible_devices_are_those_of_the_variable(python: Run, visible: str | None, expected: list[int]) -> None:
    done = python(
        """
        import json, torch, acl
        from virtual_ascend.device.extension import extension
        print(json.dumps([extension().visible_devices(), torch.npu.device_count(), torch.npu.is_available(),
                          acl.rt.get_device_count()]))
        """,
        VIRTUAL_ASCEND="4",
        ASCEND_RT_VISIBLE_DEVICES=visible,
    )
    assert json.loads(done.stdout) == [expected, len(expected), bool(expected), [len(expected), 0]]


@NIGHTLY
def test_the_visible_devices_are_read_until_first_use_and_then_fixed(python: Run) -> None:
    done = python(
        """
        import os, torch
        counts = [torch.npu.device_count()]
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "1"; counts.append(torch.npu.device_count())
        torch.ones(1, device="npu")
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0,1"; counts.append(torch.npu.device_count())
        print(counts)
        """
    )
    assert done.stdout == "[2, 1, 1]\n"


def test_with_no_visible_device_a_tensor_on_the_npu_says_why(python: Run) -> None:
    done = python("import torch; torch.ones(1, device='npu')", ASCEND_RT_VISIBLE_DEVICES="")
    assert "No NPUs are available: 0 NPUs are visible, ASCEND_RT_VISIBLE_DEVICES=''" in done.stderr


def test_a_forked_child_may_not_use_the_npu_again(python: Run) -> None:
    done = python(
        """
        import os, torch
        torch.ones(1, device="npu")
        child = os.fork()
        if child == 0:
            torch.manual_seed(1)  # as a DataLoader's worker does
            try: torch.ones(1, device="npu")
            except RuntimeError as error: print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert "Cannot re-initialize NPU in forked subprocess" in done.stdout


@NIGHTLY
def test_a_data_loader_with_workers_fills_npu_batches(python: Run) -> None:
    done = python(
        """
        import torch
        torch.ones(1, device="npu")
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=2, pin_memory=True)
        print(sum(batch.to("npu").sum().item() for batch in loader))
        """
    )
    assert done.stdout == "28.0\n", done.stderr[-2000:]


def test_the_stand_ins_answer_what_programs_ask(python: Run) -> None:
    done = python(
        """
        import json, os, platform, subprocess, torch
        board = subprocess.run(["npu-smi", "info", "-t", "board", "-i", "1"], capture_output=True, text=True, check=True).stdout
        software = next(line.split(":")[1].strip() for line in board.splitlines() if "Software Version" in line)
        info = open(os.path.join(os.environ["ASCEND_HOME_PATH"], f"{platform.machine()}-linux", "ascend_toolkit_install.info"))
        cann = next(line.strip() for line in info if line.startswith("version="))
        unknown = subprocess.run(["npu-smi", "reset"], capture_output=True, text=True)
        print(json.dumps([software, cann, unknown.returncode, "'reset' is not implemented" in unknown.stderr]))
        """,
        ASCEND_HOME_PATH=None,
    )
    assert json.loads(done.stdout) == ["25.2.0", "version=8.3.RC1", 1, True]


def test_a_bad_number_of_npus_is_one_line_and_no_npu(python: Run) -> None:
    done = python("import torch; print(hasattr(torch, 'npu'))", VIRTUAL_ASCEND="two")
    assert done.stdout == "False\n"
    assert "VIRTUAL_ASCEND='two': expected a whole number of NPUs from 0 to 64" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("from_nothing")
def test_unset_means_nothing_happens(python: Run) -> None:
    done = python("import sys, torch; print(hasattr(torch, 'npu'), 'torch_npu' in sys.modules)", VIRTUAL_ASCEND=None)
    assert (done.stdout, done.stderr) == ("False False\n", "")


@NIGHTLY
def test_the_versions_are_those_that_are_set(python: Run) -> None:
    done = python(
        """
        import json, os, pathlib, subprocess, torch, torch_npu
        from torch_npu.utils import collect_env
        info = next(pathlib.Path(os.environ["ASCEND_HOME_PATH"]).glob("*-linux/ascend_toolkit_install.info")).read_text()
        board = subprocess.run(["npu-smi", "info", "-t", "board", "-i", "0"], capture_output=True, text=True).stdout
        print(json.dumps([torch_npu.__version__, torch_npu.version.__version__, collect_env.get_cann_version(),
                          "version=9.0.0\\n" in info, ": 25.5.0\\n" in board]))
        """,
        VIRTUAL_ASCEND_TORCH_NPU_VERSION="2.9.0.post2",
        VIRTUAL_ASCEND_CANN_VERSION="9.0.0",
        VIRTUAL_ASCEND_DRIVER_VERSION="25.5.0",
        ASCEND_HOME_PATH=None,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["2.9.0.post2", "2.9.0.post2", "9.0.0", True, True]


@NIGHTLY
@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_a_program_may_end_right_after_its_first_backward(python: Run, device: str) -> None:
    # With this interval the main thread keeps Python's lock, and each of autograd's threads still waits for it.
    program = f"""
        import sys, torch
        sys.setswitchinterval(1000)
        torch.ones(1, requires_grad=True, device={device!r}).sum().backward()
    """
    for _ in range(3):
        done = python(program, VIRTUAL_ASCEND="8")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("broken", ["a fault of no operator", "no compiler"])
def test_after_a_failure_there_is_nothing_of_the_virtual_ascend(python: Run, tmp_path, broken: str) -> None:
    faulty = {"VIRTUAL_ASCEND_FAULTS": "fail:operator=nope"}
    bare = {"VIRTUAL_ASCEND_CACHE": str(tmp_path), "CXX": "no-such-compiler"}
    program = (
        "import importlib.util, os, sys, torch\n"
        "print(hasattr(torch, 'npu'), importlib.util.find_spec('torch_npu'), 'torch_npu' in sys.modules)\n"
        "print('ASCEND_HOME_PATH' in os.environ, 'HCCL_SO_PATH' in os.environ)\n"
        "print(torch.ones(2).sum().item())\n"
    )
    done = python(program, **(faulty if broken.startswith("a fault") else bare))
    assert done.stdout.splitlines() == ["False None False", "False False", "2.0"], done.stderr
