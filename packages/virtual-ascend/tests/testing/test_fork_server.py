"""Programs that are forked off a process with torch behave as in a process of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from virtual_ascend.testing import fork_server, pythonpath_and
from virtual_ascend.testing.fixtures import Run
from virtual_ascend.testing.fork_server import ForkServer


def test_a_forked_program_has_its_own_variables_folders_and_device(
    python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("NAME = 'mine'\n")
    monkeypatch.chdir(tmp_path)
    done = python(
        """
        import os, sys, torch
        import mine
        print(mine.NAME, os.environ["MINE"], os.getcwd(), sys.argv, __name__, torch.npu.device_count())
        """,
        PYTHONPATH=str(tmp_path),
        MINE="1",
        VIRTUAL_ASCEND="3",
    )
    assert done.args == ["-c"]
    assert done.stdout == f"mine 1 {tmp_path} ['-c'] __main__ 3\n", done.stderr


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import torch, sys; print('said', file=sys.stderr); sys.exit(3)", 3, "said"),
        ("import torch; 1 / 0", 1, "ZeroDivisionError"),
        ("import torch, os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_its_exit_status_and_its_errors_arrive(python: Run, program: str, status: int, said: str) -> None:
    done = python(program)
    assert (done.args, done.returncode, done.stdout) == (["-c"], status, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("program", "variables"),
    [
        ("print('torch')", {}),
        ("import os; os.environ['VIRTUAL_ASCEND'] = '1'; import torch", {}),
        ("import torch", {"PYTHONWARNINGS": "ignore"}),
        ("import torch", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    ],
)
def test_a_program_with_an_earlier_start_gets_a_new_process(
    python: Run, program: str, variables: dict[str, str]
) -> None:
    assert python(program, **variables).args[0] == sys.executable


def test_a_process_that_compiled_still_forks(python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert python("import torch").args == ["-c"]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    done = python("import torch, torch._inductor.config; print(__import__('os').environ['TORCHINDUCTOR_CACHE_DIR'])")
    assert (done.args, done.stdout) == (["-c"], f"{tmp_path}\n")


def test_a_fork_server_that_died_is_replaced(python: Run) -> None:
    assert python("import torch; print('before')").stdout == "before\n"
    (server,) = fork_server._current
    server.process.kill()
    server.process.wait()
    assert python("import torch; print('after')").stdout == "after\n"


def test_a_fork_server_with_modules_has_imported_them_and_its_device() -> None:
    code = "import sys, torch; print('wave' in sys.modules, 'torch_npu' in sys.modules, torch.npu.device_count())"
    with closing(ForkServer("wave", VIRTUAL_ASCEND="3")) as server:
        done = server.start(code, (), server.environment)
        assert done.communicate() == ("True True 3\n", "")


def test_a_process_that_a_module_started_may_end(tmp_path: Path) -> None:
    (tmp_path / "starting.py").write_text("import subprocess\nstarted = subprocess.Popen(['sleep', '600'])\n")
    code = "import torch, os, time, starting; os.kill(starting.started.pid, 9); time.sleep(0.5)"
    server = ForkServer("starting", PYTHONPATH=pythonpath_and(tmp_path))
    with closing(server), server.start(code, (), server.environment) as program:
        assert program.wait() == 0


def test_programs_that_end_do_not_cut_a_request_short() -> None:
    code = f"import torch; print('done')  # {'x' * 4_000_000}"
    with closing(ForkServer()) as server:
        server.start("import torch", (), server.environment).communicate()
        stopped = threading.Event()

        def signal_ends() -> None:
            while not stopped.is_set():
                os.kill(server.process.pid, signal.SIGCHLD)

        thread = threading.Thread(target=signal_ends)
        thread.start()
        try:
            assert server.start(code, (), server.environment).communicate() == ("done\n", "")
        finally:
            stopped.set()
            thread.join()


def test_a_variable_that_was_set_since_the_fork_server_started_gets_a_new_process(
    python: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python("import torch").args == ["-c"]
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert python("import torch").args[0] == sys.executable
