"""Runs a launch script in a sandbox in which stand-ins replace the programs, and returns the recorded calls."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_npu import progress
from verl_npu.ascend.variables import VIRTUAL_CACHE
from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

from ..processes import captured
from ..sandbox import Ended, Limits, Pipe, Sandbox, check_possible, device_cache, importable, run
from ..secrecy.variables import allowed, words_of
from . import stand_in
from .stand_in import ADDRESS

STANDINS = (
    *("python", "python3", *(f"python3.{minor}" for minor in range(8, 15))),
    *("torchrun", "accelerate", "deepspeed", "ray", "vllm"),
    *("pip", "pip3", "uv", "conda", "apt", "apt-get", "yum", "git", "curl", "wget", "ssh", "scp"),
    *("pkill", "killall", "fuser", "sleep", "docker", "systemctl", "sudo", "nohup"),
    *("ifconfig", "ip", "hostname", "npu-smi", "nvidia-smi", "huggingface-cli", "hf", "modelscope"),
)
"""The programs that are replaced by a stand-in. The stand-in records each call."""
_LIMITS = Limits(60.0, memory=4 << 30, file=256 << 20)
# Each bash sources this before the script, so that the shell files that run are recorded, and sourcing a file that is
# only on the cluster does not end the script. The script may have reset PATH.
_PRELUDE = r"""
ulimit() { builtin ulimit "$@" 2>/dev/null || true; }
source() {
  if [ -e "$1" ]; then "%s/verl-npu-read" "$1" || :; builtin source "$@"; else "%s/verl-npu-missing" "$1"; fi
}
.() { if [ -e "$1" ]; then "%s/verl-npu-read" "$1" || :; builtin . "$@"; else "%s/verl-npu-missing" "$1"; fi; }
if [ -f "$0" ]; then "%s/verl-npu-read" "$0" || :; fi
"""
_MISSING, _READ = "verl-npu-missing", "verl-npu-read"
_MOST_CALLS = 10_000
"""The most calls that are kept. No launch script makes more."""
_MOST_TEXT = 4 << 20
"""The largest size of a script in bytes."""
_REQUIRED = re.compile(r"^\w*PIP(?:_INSTALL)?=(pip install .*\S)", re.MULTILINE)
OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.@/]*=.*|~[A-Za-z_].*", re.DOTALL)
"""One of Hydra's overrides on a command line."""
FEWEST_OVERRIDES = 3
"""The smallest number of overrides by which a trainer is recognized. Converters and download tools have options, too,
but fewer overrides."""
_SHELL_VARIABLES = re.compile(r"PATH$|PWD$|OLDPWD$|SHLVL$|_$|LD_|PYTHON|VIRTUAL_ENV|CONDA|BASH|STAND_IN_")
"""Variables that describe the caller's own shell and Python. They are meaningless in the sandbox."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The folders that are prepared for a script."""

    programs: Path
    """The folder with the stand-ins."""
    state: Path
    """The folder in which the stand-ins remember earlier calls."""
    home: Path


def fresh_home() -> Path:
    """Return an empty folder that replaces the home folder in a sandbox. The folder is mounted at the path of the
    user's home folder, so that paths in the script stay valid."""
    return Path.home().absolute()


_SANDBOX_PLACES = _Places(Path("/stand-ins"), Path("/stand-in-state"), fresh_home())


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program by the script."""

    program: str
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    """All environment variables of the call. `Capture.exports` returns only those that the script set."""
    runtime: str = ""
    """If the call is `ray job submit` with a runtime environment file, the text of that file. Otherwise empty."""

    def has(self, name: str, value: str) -> bool:
        """Return whether the program was called with this value of this variable."""
        return self.environment.get(name) == value


@dataclass(frozen=True, slots=True)
class Capture:
    """The result of running a script."""

    script: Path
    tree: Path
    calls: tuple[Call, ...]
    missing: tuple[str, ...]
    """Files that the script sources but that do not exist on this machine."""
    read: tuple[Path, ...]
    """The script, and the shell files that it sources or starts, or would if they existed."""
    ended: Ended
    before: Mapping[str, str]
    """The variables that the script was started with."""
    head: str = ""
    """The head node's address in the script, if the sandbox's own address replaced it. Otherwise empty."""

    def exports(self, call: Call) -> dict[str, str]:
        """Return the variables that the script had exported when it made this call."""
        shell = ("PWD", "OLDPWD", "SHLVL", "_")
        return {
            name: value
            for name, value in sorted(call.environment.items())
            if self.before.get(name) != value and name not in shell
        }

    def inherited(self, call: Call) -> dict[str, str]:
        """Return the user's environment variables that the script passed to this call unchanged."""
        own = _environment({}, _SANDBOX_PLACES)
        return {name: value for name, value in self.before.items() if name not in own and call.has(name, value)}


def tree_of(script: Path) -> Path:
    """Return the root of a script's source tree.

    The root is the nearest folder above the script that has a package `verl` or a `.git`. If there is none, it is the
    script's own folder.
    """
    for folder in script.resolve().parents:
        if (folder / "verl" / "__init__.py").is_file() or (folder / ".git").exists():
            return folder
    return script.resolve().parent


def required_verl(script: Path) -> list[str]:
    """Return the commands that install the revision of verl in the recipe's REQUIRED_VERL.txt, or an empty list if the
    script belongs to no recipe with this file."""
    for folder in script.resolve().parents[:2]:
        file = folder / "REQUIRED_VERL.txt"
        if file.is_file():
            return _REQUIRED.findall(file.read_text(errors="replace"))
    return []


def capture(
    script: Path,
    tree: Path,
    arguments: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    unconfined: bool = False,
) -> Capture:
    """Run `script` in a sandbox, from the root of `tree`, and return its calls. Stand-ins replace all programs that it
    calls.

    If the script only joins a Ray cluster that another node starts, the script runs a second time, as if on that node,
    because the trainer starts there.

    Args:
        given: variables that the user sets for the script. The script gets only those that `allowed` permits.
        unconfined: run without a sandbox, because the user requested it. The stand-ins are on the script's PATH, but
            nothing prevents the script from reaching everything else.

    Raises:
        SourceError: the script cannot be read, has a syntax error, or did not end in time.
        SandboxError: a sandbox cannot be created on this machine.
    """
    check_text(script)
    check_possible(unconfined)
    result = _run(script, tree, arguments, given or {}, unconfined)
    head = "" if unconfined else _joined(result.calls)
    if head and (edited := _with_own_address(script.read_text(errors="replace"), head)):
        result = replace(_run(script, tree, arguments, given or {}, unconfined, edited), head=head)
    if result.ended.limit:
        raise SourceError(
            subject=str(script),
            expected=_("a script that ends quickly, because stand-ins replace the programs that it starts"),
            found=_("{limit}; the last program that the script called was {shown}").format(
                limit=result.ended.limit, shown=_shown(result.calls)
            ),
            fix=_(
                "the script computes for too long, or waits for something that exists only on the cluster, so "
                "specify the trainer's own command instead (verl-npu rehearse -- python3 -m "
                "verl.trainer.main_ppo key=value …)"
            ),
        )
    return result


def _run(
    script: Path, tree: Path, arguments: Sequence[str], given: Mapping[str, str], unconfined: bool, edited: str = ""
) -> Capture:
    """Run a script once. In a sandbox, the text `edited` can replace the script's own text."""
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as made, Pipe() as pipe:
        folder = Path(made)
        inside, root = script.resolve(), tree.resolve()
        places = _Places(folder / "stand-ins", folder / "state", folder / "home") if unconfined else _SANDBOX_PLACES
        programs = _stand_ins(folder / "stand-ins", places)
        texts = [*arguments, *(path.read_text(errors="replace") for path in _script_files(inside))]
        named = words_of(texts, root, inside.parent)
        before = _environment(allowed(given, named), places)
        if edited:
            (folder / "edited").write_text(edited)
        if unconfined:
            places.state.mkdir()
            places.home.mkdir()
        with progress.step(_("running {script} with stand-ins for its programs").format(script=script)):
            ended = run(
                None
                if unconfined
                else _sandbox(inside, root, programs, places, folder / "edited" if edited else inside),
                ["bash", str(inside), *arguments],
                root,
                {**before, **_plumbing(pipe.writer, places)},
                _LIMITS,
                folder / "log",
                keep=(pipe.writer,),
            )
    data = pipe.data.replace(_quoted(places.home), _quoted(fresh_home()))
    return Capture(inside, root, *_calls(data), ended, before)


def _joined(calls: Sequence[Call]) -> str:
    """Return the address of the head node whose Ray cluster the script joins, or an empty string if the script joins
    no cluster, starts its own cluster, or starts a trainer anyway."""
    started = [call.arguments for call in calls if call.program == "ray" and call.arguments[:1] == ("start",)]
    if any("--head" in words for words in started) or any(map(_may_train, calls)):
        return ""
    words = [word for each in started for word in each]
    values = [word.partition("=")[2] for word in words if word.startswith("--address=")]
    values += [value for word, value in itertools.pairwise(words) if word == "--address"]
    return values[0].rpartition(":")[0] if values else ""


def _may_train(call: Call) -> bool:
    """Return whether a call has arguments like a trainer's: settings, or the name of a configuration."""
    named = any(word.startswith(("--config-name", "-cn")) for word in call.arguments)
    return named or len(list(filter(OVERRIDE.fullmatch, call.arguments))) >= FEWEST_OVERRIDES


def _with_own_address(text: str, head: str) -> str:
    """Replace the head node's address in a script's variables by the address that the stand-ins of ifconfig and ip
    print. Return the changed text, or an empty string if no variable has the head node's address."""
    edited, count = re.subn(
        rf"""^(\s*(?:export\s+)?\w+=)(["']?){re.escape(head)}\2(?=[\s;&]|$)""",
        rf"\g<1>{ADDRESS}",
        text,
        flags=re.MULTILINE,
    )
    return edited if count else ""


def _sandbox(script: Path, tree: Path, programs: Path, places: _Places, text: Path) -> Sandbox:
    cache = device_cache()
    return Sandbox(
        read_only=(*importable(tree), *([cache] if cache.is_dir() else []), *_script_files(script)),
        tree=tree,
        folders=(places.home, places.state),
        files={places.programs: programs, script: text},
    )


def _script_files(script: Path) -> list[Path]:
    """Return the script and the shell files that it may source: those in its folder and one level below. Links to
    files outside these folders are left out."""
    beside = [*script.parent.glob("*.sh"), *script.parent.glob("*/*.sh")]
    own = [path for path in beside if path.is_file() and path.resolve().is_relative_to(script.parent)]
    return [script, *(path for path in own if path != script)]


def check_text(script: Path) -> None:
    """Raise SourceError if a script cannot be read or bash cannot parse it. The script does not run."""
    if not script.is_file():
        raise SourceError(
            subject=str(script), expected=_("a launch script"), found=_("no such file"), fix=_("check the path")
        )
    if (size := script.stat().st_size) > _MOST_TEXT:
        raise SourceError(
            subject=str(script),
            expected=_("a launch script of at most {most_text} MiB").format(most_text=_MOST_TEXT >> 20),
            found=_("{size} MiB").format(size=size >> 20),
            fix=_("check the path"),
        )
    # With -n, bash parses the script and executes nothing.
    bash = shutil.which("bash") or "/bin/bash"
    parsed = captured([bash, "-n", str(script.resolve())])
    if parsed.returncode != 0:
        first = (parsed.stderr.strip().splitlines() or ["bash cannot parse it"])[0]
        raise SourceError(
            subject=str(script),
            expected=_("a shell script that bash can parse"),
            found=re.sub(r"^\S*?: (?=line)", "", first),
            fix=_("correct this line, and check the script with `bash -n`"),
        )


def _stand_ins(folder: Path, places: _Places) -> Path:
    folder.mkdir()
    program = folder / "stand_in.py"
    program.write_bytes(Path(stand_in.__file__).read_bytes())
    for name in (*STANDINS, _MISSING, _READ):
        # This is a shell line instead of a link, because the interpreter must ignore the environment (-I -S).
        start = f'exec -a {name} "$STAND_IN_PYTHON" -I -S {places.programs}/stand_in.py {name} "$@"'
        (folder / name).write_text(f"#!/bin/bash -p\n{start}\n")
        (folder / name).chmod(0o755)
    (folder / "prelude").write_text(_PRELUDE.replace("%s", str(places.programs)))
    return folder


def _environment(given: Mapping[str, str], places: _Places) -> dict[str, str]:
    """Return the variables that a script starts with: the user's own, and those that a fresh login would set."""
    plain = {
        "HOME": str(places.home),
        "USER": os.environ.get("USER", "root"),
        "PATH": f"{places.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        VIRTUAL_CACHE: str(device_cache()),
        "TERM": "dumb",
        "BASH_ENV": f"{places.programs}/prelude",
    }
    kept = {name: value for name, value in given.items() if not _SHELL_VARIABLES.match(name)}
    return {**kept, **plain}


def _plumbing(descriptor: int, places: _Places) -> dict[str, str]:
    return {
        "STAND_IN_CALLS": str(descriptor),
        "STAND_IN_PYTHON": sys.executable,
        "STAND_IN_STATE": str(places.state),
        # Python answers the script's queries as on a machine with NPUs, if the virtual device is compiled already.
        "STAND_IN_NPUS": "2" if device_cache().is_dir() else "0",
    }


def _quoted(path: Path) -> bytes:
    return json.dumps(str(path))[1:-1].encode()


def _calls(data: bytes) -> tuple[tuple[Call, ...], tuple[str, ...], tuple[Path, ...]]:
    calls: list[Call] = []
    missing: list[str] = []
    read: list[Path] = []
    for line in data.split(b"\n", _MOST_CALLS)[:_MOST_CALLS]:
        try:
            call = _call(json.loads(line))
        except (ValueError, RecursionError):
            continue  # a killed stand-in left half a line, or the script itself wrote there
        if call.program not in (_MISSING, _READ):
            calls.append(call)
            continue
        read += [call.folder / name for name in call.arguments[:1]]
        if call.program == _MISSING:
            missing += call.arguments[:1]
    return tuple(calls), tuple(dict.fromkeys(missing)), tuple(dict.fromkeys(read))


def _call(read: object) -> Call:
    """Return a recorded call. Raise ValueError if the record is malformed."""
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
        return _("not recorded")
    return " ".join([calls[-1].program, *calls[-1].arguments])[:120]
