"""Forks programs off a process that has imported torch, instead of starting each program from nothing.

`import torch` takes seconds of CPU time, and a test suite may start hundreds of programs. Call `install` in a
conftest; from then on, `virtual_ascend.testing.run` and `start_ranks` fork.
"""

from __future__ import annotations

import array
import ast
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from . import STARTERS, end_with_parent, environment

_EARLY = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "MALLOC_", "ATEN_")
"""Prefixes of variables that are read as Python starts or as torch is imported: too early for a forked program."""
_LATE = ("PYTHONPATH", "TORCHINDUCTOR_")
"""Prefixes of variables that a forked program can change nevertheless. torch sets TORCHINDUCTOR_CACHE_DIR in a process
that compiles."""
_SERVE = "exec(__import__('virtual_ascend.testing.fork_server', fromlist=['serve']).serve({descriptor}, {modules!r}))"
_HEADER = 8
"""Bytes of the length that precedes a request."""


class ForkServer:
    """A process that has imported torch and some modules, and forks programs."""

    def __init__(self, *modules: str, python: str = sys.executable, **changes: str | None) -> None:
        self.starter = os.getpid()
        self.early = _early(environment())
        self.environment = environment(**changes)
        self._connection, theirs = socket.socketpair()
        with theirs:
            # It exits when the connection is closed. The system's signal at a parent's death would come when the
            # thread ends that started it.
            self.process = subprocess.Popen(
                [python, "-c", _SERVE.format(descriptor=theirs.fileno(), modules=modules)],
                env=self.environment,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def start(self, code: str, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Fork a program, with its output in pipes."""
        return _Program(self._connection, code, arguments, env)

    def close(self) -> None:
        """End the fork server if this process started it. In a fork of this process, do nothing."""
        if os.getpid() == self.starter:
            # A process that was forked off this one may hold the connection, too.
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()
            self.process.wait()


_current: list[ForkServer] = []


def install() -> None:
    """From now on, fork the programs that `run` and `start_ranks` start, unless a program needs a new interpreter."""
    STARTERS.append(start)


def start(code: str, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str] | None:
    """Fork a program, with its output in pipes. Return None if the program needs a new interpreter, because it does
    something before it imports torch, or changes variables that are read when Python starts or torch is imported."""
    if not _imports_torch_first(code) or _early(env) != _fork_server().early:
        return None
    return _fork_server().start(code, arguments, env)


def _imports_torch_first(code: str) -> bool:
    """Return whether a program imports torch before it does anything but import."""
    for statement in ast.parse(code).body:
        match statement:
            case ast.Import(names=names):
                modules = [each.name for each in names]
            case ast.ImportFrom(module=module):
                modules = [module or ""]
            case _:
                return False
        if any(each.partition(".")[0] == "torch" for each in modules):
            return True
    return False


class _Program(subprocess.Popen[str]):
    """A forked program. The fork server reports the program's id and exit status."""

    def __init__(self, server: socket.socket, code: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self._server = server
        self._code = code
        super().__init__(
            ["-c", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _execute_child(self, args: Any, _executable: Any, *rest: Any) -> None:
        # Popen passes these by position: preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        # and the child's and the parent's descriptors of stdin, stdout, and stderr.
        env, stdin, stdout, stderr = rest[4], rest[8], rest[11], rest[13]
        self._status, theirs = socket.socketpair()
        descriptors = array.array("i", [theirs.fileno(), stdin, stdout, stderr])
        self._server.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        for descriptor in (theirs.detach(), stdin, stdout, stderr):
            os.close(descriptor)
        request = json.dumps([args, self._code, dict(env), os.getcwd()]).encode()
        self._status.sendall(len(request).to_bytes(_HEADER, "big") + request)
        self._child_created = True
        self.pid = int(self._line())

    def _line(self) -> bytes:
        """Return the next line from the fork server, or an empty line if the fork server was killed."""
        line = b""
        while not line.endswith(b"\n") and (byte := self._status.recv(1)):
            line += byte
        return line

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not select.select([self._status], [], [], 0 if flags else None)[0]:
            return 0, 0
        status = int(self._line() or signal.SIGKILL)
        self._status.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined] # a method of Popen that has no stub
        return self.returncode


def _fork_server() -> ForkServer:
    """Return this process's fork server. It is started at the first call, and again if it died."""
    if not _current or _current[0].starter != os.getpid() or _current[0].process.poll() is not None:
        # A program loads its device itself, because the device depends on the program's variables.
        _current[:] = [ForkServer(PYTHONPATH=None, VIRTUAL_ASCEND=None, TORCH_DEVICE_BACKEND_AUTOLOAD="0")]
    return _current[0]


def _early(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a forked program could not change."""
    return {name: value for name, value in env.items() if name.startswith(_EARLY) and not name.startswith(_LATE)}


def serve(descriptor: int, modules: Sequence[str]) -> str:
    """Import torch and some modules, and fork a process for each request. Return only in the forks, with the source
    code to run."""
    import torch

    for module in modules:
        importlib.import_module(module)
    loaded = torch._is_device_backend_autoload_enabled()
    gc.freeze()  # else a program that ends copies all of this process's memory
    requests = socket.socket(fileno=descriptor)
    running: dict[int, tuple[int, socket.socket]] = {}  # a descriptor that is readable when the program has ended
    while True:
        ready, _, _ = select.select([requests, *running], [], [])
        for ended in running.keys() & {*ready}:
            child_id, client = running.pop(ended)
            os.close(ended)
            with client, contextlib.suppress(OSError):  # nobody may wait any more
                client.sendall(b"%d\n" % os.waitpid(child_id, 0)[1])
        if requests not in ready:
            continue
        received, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(4 * array.array("i").itemsize))
        if not received:
            os._exit(0)
        connection, *pipes = array.array("i", ancillary[0][2])
        client = socket.socket(fileno=connection)
        with client.makefile("rb") as stream:
            size = int.from_bytes(stream.read(_HEADER), "big")
            request = json.loads(stream.read(size))
        if child_id := os.fork():
            running[os.pidfd_open(child_id)] = child_id, client
            client.sendall(b"%d\n" % child_id)
            for pipe in pipes:
                os.close(pipe)
            continue
        for each in (requests, client, *(other for _, other in running.values())):
            each.close()
        for ended in running:
            os.close(ended)
        code = _become(request, pipes)
        if not loaded:
            _load_devices()
        return code


def _become(request: Sequence[Any], pipes: Sequence[int]) -> str:
    """Set up what a new process of Python would have, and return the program's code."""
    argv, code, env, folder = request
    end_with_parent()
    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv
    sys.path[1:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    return str(code)


def _load_devices() -> None:
    """Load the devices that the variables name, as virtual_ascend.pth does when Python starts, and then torch."""
    import torch
    from virtual_ascend_entry import start as load

    for name in [name for name in sys.modules if name.partition(".")[0] == "virtual_ascend"]:
        del sys.modules[name]
    load()
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
