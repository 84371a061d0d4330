"""What a launch script would start, found out by running it in a sandbox with stand-ins for all that it starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_npu import progress
from verl_npu.ascend.variables import VIRTUAL_CACHE
from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

from ..sandbox import Ended, Limits, Pipe, Sandbox, check_possible, device_cache, importable, run
from ..secrecy.variables import allowed, words_of
from . import stand_in

STANDINS = (
    *("python", "python3", *(f"python3.{minor}" for minor in range(8, 15))),
    *("torchrun", "accelerate", "deepspeed", "ray", "vllm"),
    *("pip", "pip3", "uv", "conda", "apt", "apt-get", "yum", "git", "curl", "wget", "ssh", "scp"),
    *("pkill", "killall", "fuser", "sleep", "docker", "systemctl", "sudo", "nohup"),
    *("ifconfig", "ip", "hostname", "npu-smi", "nvidia-smi", "huggingface-cli", "hf", "modelscope"),
)
"""Programs that a script does not get: it gets a stand-in that notes the call."""
_LIMITS = Limits(60.0, memory=4 << 30, file=256 << 20)
# Sourced by each bash before the script: a file that is only on the cluster is noted, and not an error.
_PRELUDE = r"""
ulimit() { builtin ulimit "$@" 2>/dev/null || true; }
source() { if [ -e "$1" ]; then builtin source "$@"; else verl-npu-missing "$1"; fi; }
.() { if [ -e "$1" ]; then builtin . "$@"; else verl-npu-missing "$1"; fi; }
"""
_MISSING = "verl-npu-missing"
_MOST_CALLS = 10_000
"""What is kept of the calls: a script that writes more there is no launch script."""
_MOST_TEXT = 4 << 20
"""Bytes of a script."""
_OF_THE_SHELL = re.compile(r"PATH$|PWD$|OLDPWD$|SHLVL$|_$|LD_|PYTHON|VIRTUAL_ENV|CONDA|BASH|STAND_IN_")
"""Variables that say where the caller's own programs are: they mean nothing in a sandbox."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a script finds what it gets."""

    programs: Path
    """The stand-ins."""
    state: Path
    """What they remember."""
    home: Path


def fresh_home() -> Path:
    """Return the home that there is in a sandbox: an empty folder, where the user's own is, so that what a script
    names below it is what it would read."""
    return Path.home().absolute()


_INSIDE = _Places(Path("/stand-ins"), Path("/stand-in-state"), fresh_home())


@dataclass(frozen=True, slots=True)
class Call:
    """A program that the script called, with what it would have got."""

    program: str
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    """All variables; `Capture.exports` has those that the script set."""
    runtime: str = ""
    """The text of the file with a runtime environment that `ray job submit` was given."""

    def has(self, name: str, value: str) -> bool:
        """Return whether it got this variable with this value."""
        return self.environment.get(name) == value


@dataclass(frozen=True, slots=True)
class Capture:
    """What came of running a script."""

    script: Path
    tree: Path
    calls: tuple[Call, ...]
    missing: tuple[str, ...]
    """Files that the script sources and that are not here."""
    ended: Ended
    before: Mapping[str, str]
    """The variables that the script was started with."""

    def exports(self, call: Call) -> dict[str, str]:
        """Return what the script had exported when it made this call."""
        shell = ("PWD", "OLDPWD", "SHLVL", "_")
        return {
            name: value
            for name, value in sorted(call.environment.items())
            if self.before.get(name) != value and name not in shell
        }

    def inherited(self, call: Call) -> dict[str, str]:
        """Return what this call got of the variables that the user has set, as the user has set them."""
        own = _environment({}, _INSIDE)
        return {name: value for name, value in self.before.items() if name not in own and call.has(name, value)}


def tree_of(script: Path) -> Path:
    """Return the root of the source tree that a script belongs to: the nearest folder above with a package `verl` or a
    `.git`, else the script's own folder."""
    for folder in script.resolve().parents:
        if (folder / "verl" / "__init__.py").is_file() or (folder / ".git").exists():
            return folder
    return script.resolve().parent


def capture(
    script: Path,
    tree: Path,
    arguments: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    unconfined: bool = False,
) -> Capture:
    """Run `script` in a sandbox, from the root of `tree`, and return what it called; nothing of it is really started.

    Args:
        given: variables that the user sets for it, of which it gets what `allowed` lets pass.
        unconfined: without a sandbox, as the user asks for: the stand-ins are on its PATH, and nothing else is kept
            from it.

    Raises:
        SourceError: the script cannot be read, has a syntax error, or did not end in time.
        SandboxError: there can be no sandbox here.
    """
    check_text(script)
    check_possible(unconfined)
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as made, Pipe() as pipe:
        folder = Path(made)
        inside, root = script.resolve(), tree.resolve()
        places = _Places(folder / "stand-ins", folder / "state", folder / "home") if unconfined else _INSIDE
        programs = _stand_ins(folder / "stand-ins", places)
        texts = [*arguments, *(path.read_text(errors="replace") for path in _with_its_own(inside))]
        named = words_of(texts, root, inside.parent)
        before = _environment(allowed(given or {}, named), places)
        if unconfined:
            places.state.mkdir()
            places.home.mkdir()
        with progress.step(_("running {script} with stand-ins for what it starts").format(script=script)):
            ended = run(
                None if unconfined else _sandbox(inside, root, programs, places),
                ["bash", str(inside), *arguments],
                root,
                {**before, **_plumbing(pipe.writer, places)},
                _LIMITS,
                folder / "log",
                keep=(pipe.writer,),
            )
    data = pipe.data.replace(_quoted(places.home), _quoted(fresh_home()))
    calls, missing = _calls(data)
    result = Capture(inside, root, calls, missing, ended, before)
    if ended.limit:
        raise SourceError(
            subject=str(script),
            expected=_("a script that ends, as nothing that it starts is really run"),
            found=_("{limit}; its last call was {shown}").format(limit=ended.limit, shown=_shown(calls)),
            fix=_(
                "it computes for longer itself, or waits for something that only the cluster has: give the trainer's "
                "own command instead: verl-npu rehearse -- python3 -m verl.trainer.main_ppo key=value …"
            ),
        )
    return result


def _sandbox(script: Path, tree: Path, programs: Path, places: _Places) -> Sandbox:
    cache = device_cache()
    return Sandbox(
        read_only=(*importable(tree), *([cache] if cache.is_dir() else []), *_with_its_own(script)),
        tree=tree,
        folders=(places.home, places.state),
        files={places.programs: programs},
    )


def _with_its_own(script: Path) -> list[Path]:
    """A script, and the shell files beside it and in folders beside it, which it may source; no link leads out."""
    beside = [*script.parent.glob("*.sh"), *script.parent.glob("*/*.sh")]
    own = [path for path in beside if path.is_file() and path.resolve().is_relative_to(script.parent)]
    return [script, *(path for path in own if path != script)]


def check_text(script: Path) -> None:
    """Raise SourceError if a script cannot be read, or bash cannot parse it; nothing of it is run."""
    if not script.is_file():
        raise SourceError(
            subject=str(script), expected=_("a launch script"), found=_("no such file"), fix=_("check the path")
        )
    if (size := script.stat().st_size) > _MOST_TEXT:
        raise SourceError(
            subject=str(script),
            expected=_("a launch script, of {most_text} MiB at most").format(most_text=_MOST_TEXT >> 20),
            found=_("{size} MiB").format(size=size >> 20),
            fix=_("check the path"),
        )
    # bash's own parser: nothing is executed by -n.
    bash = shutil.which("bash") or "/bin/bash"
    parsed = subprocess.run(
        [bash, "-n", str(script.resolve())], capture_output=True, text=True, errors="replace", check=False
    )
    if parsed.returncode != 0:
        first = (parsed.stderr.strip().splitlines() or ["bash cannot parse it"])[0]
        raise SourceError(
            subject=str(script),
            expected=_("a shell script that bash can parse"),
            found=re.sub(r"^\S*?: (?=line)", "", first),
            fix=_("fix that line; `bash -n` shows the same"),
        )


def _stand_ins(folder: Path, places: _Places) -> Path:
    folder.mkdir()
    program = folder / "stand_in.py"
    program.write_bytes(Path(stand_in.__file__).read_bytes())
    for name in (*STANDINS, _MISSING):
        # A shell line and not a link: the interpreter is told to look at nothing of the environment.
        start = f'exec -a {name} "$STAND_IN_PYTHON" -I -S {places.programs}/stand_in.py {name} "$@"'
        (folder / name).write_text(f"#!/bin/bash -p\n{start}\n")
        (folder / name).chmod(0o755)
    (folder / "prelude").write_text(_PRELUDE)
    return folder


def _environment(given: Mapping[str, str], places: _Places) -> dict[str, str]:
    """The variables that a script starts with: what the user gave, and those of a fresh login."""
    plain = {
        "HOME": str(places.home),
        "USER": os.environ.get("USER", "root"),
        "PATH": f"{places.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        VIRTUAL_CACHE: str(device_cache()),
        "TERM": "dumb",
        "BASH_ENV": f"{places.programs}/prelude",
    }
    kept = {name: value for name, value in given.items() if not _OF_THE_SHELL.match(name)}
    return {**kept, **plain}


def _plumbing(descriptor: int, places: _Places) -> dict[str, str]:
    return {
        "STAND_IN_CALLS": str(descriptor),
        "STAND_IN_PYTHON": sys.executable,
        "STAND_IN_STATE": str(places.state),
        # What a script asks Python is answered as on NPUs, if the device is compiled already.
        "STAND_IN_NPUS": "2" if device_cache().is_dir() else "0",
    }


def _quoted(path: Path) -> bytes:
    return json.dumps(str(path))[1:-1].encode()


def _calls(data: bytes) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    calls: list[Call] = []
    missing: list[str] = []
    for line in data.split(b"\n", _MOST_CALLS)[:_MOST_CALLS]:
        try:
            call = _call(json.loads(line))
        except (ValueError, RecursionError):
            continue  # what a killed stand-in left half written, or what the script itself wrote there
        if call.program == _MISSING:
            missing += call.arguments[:1]
        else:
            calls.append(call)
    return tuple(calls), tuple(dict.fromkeys(missing))


def _call(read: object) -> Call:
    """Raises ValueError if it is no call."""
    if not isinstance(read, dict):
        raise ValueError(read)
    program, arguments, folder, variables = map(read.get, ("program", "arguments", "folder", "environment"))
    if not isinstance(arguments, list) or not isinstance(variables, dict):
        raise ValueError(read)
    runtime = read.get("runtime", "")
    if not all(isinstance(word, str) for word in (program, folder, runtime, *arguments, *variables.values())):
        raise ValueError(read)
    return Call(str(program), tuple(arguments), Path(str(folder)), variables, str(runtime))


def _shown(calls: Sequence[Call]) -> str:
    if not calls:
        return _("none of a program that is known here")
    return " ".join([calls[-1].program, *calls[-1].arguments])[:120]
