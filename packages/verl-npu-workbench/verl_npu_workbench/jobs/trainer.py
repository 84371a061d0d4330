"""Finds the trainer among the programs that a launch script calls: its module, its overrides, and how it is
started."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_npu.errors import SourceError
from verl_npu.language import gettext as _

from ..secrecy.variables import restored
from .capture import FEWEST_OVERRIDES, OVERRIDE, Call, Capture, tree_of

_TORCHRUN_FLAGS = ("--standalone", "--no-python", "--no_python", "-m", "--module", "--run-path", "--run_path")
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
_LARGEST_YAML = 1 << 18
"""The most characters of a YAML file that is parsed. Upstream's files have about a thousand. Parsing a million takes
nine seconds."""
_PYTHON = re.compile(r"\b(python[\d.]*|torchrun)\b")

_CLUSTER_VARIABLES = re.compile(
    r"HCCL_|.*_SOCKET|LD_|MASTER_|RAY_ADDRESS$|ASCEND_RT_VISIBLE_DEVICES$|ASCEND_VISIBLE_DEVICES$|CUDA_VISIBLE_DEVICES$"
    r"|.*_proxy$|.*_PROXY$|HF_ENDPOINT$|PYTHONPATH$|BASH_ENV$|PATH$|HOME$|GLOO_|WANDB_|SWANLAB_"
)
"""Variables of a script that refer to interfaces, addresses, libraries, or devices of the cluster that it is written
for."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """One training program that a script starts."""

    module: str
    """The module's name, or the path of the program's file relative to `folder`."""
    overrides: tuple[str, ...]
    options: tuple[str, ...]
    """The other arguments on the command line: Hydra's own options, such as --config-name=…"""
    ranks: int
    """The number of processes that torchrun starts on each node. It is 0 if Ray starts the workers."""
    folder: Path
    """The trainer's working directory."""
    exports: Mapping[str, str]
    """The variables that the script or Ray's runtime environment sets for the trainer."""
    nodes: int = 1
    """The number of nodes that torchrun uses. If the script gives a range, this is its upper end."""
    counted: bool = True
    """Whether the script gives the numbers of processes and nodes. If it does not, torchrun counts the machine's
    devices."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """The user's own variables that reach the trainer with unchanged values."""
    recipes: Path | None = None
    """The clone of verl-recipe that contains the script and the trainer. None if the trainer is elsewhere."""
    shell_files: tuple[Path, ...] = ()
    """The script, and the shell files that it sources or starts."""

    @property
    def name(self) -> str:
        """The last part of the module name or the file path, without the `.py` extension."""
        return re.split(r"[./]", self.module.removesuffix(".py"))[-1]

    @property
    def trains(self) -> bool:
        """Return whether the program trains. Programs that only generate or evaluate also compose a trainer's
        configuration, but they do not validate it."""
        return re.search(r"generat|eval|infer|serv", self.name) is None

    def option(self, name: str) -> str:
        """Return the value of one of Hydra's command-line options, or an empty string if the option is not given."""
        words = list(self.options)
        for index, word in enumerate(words):
            if word == name and index + 1 < len(words):
                return words[index + 1]
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return ""


def is_of_cluster(variable: str) -> bool:
    """Return whether an environment variable refers to a resource of the script's original cluster, such as a network
    interface, an address, or a library."""
    return bool(_CLUSTER_VARIABLES.match(variable))


def trainer_of(captured: Capture) -> Trainer:
    """Return the trainer that a script starts.

    Raises:
        SourceError: the script starts no trainer, or more than one.
    """
    started = [trainer for call in captured.calls if (trainer := _called_trainer(call, captured))]
    # A command with few overrides counts only if no other command can be the trainer.
    found = [each for each in started if len(each.overrides) >= FEWEST_OVERRIDES] or list(filter(_is_short, started))
    different = list(dict.fromkeys(_name(trainer) for trainer in found))
    if len(different) > 1:
        raise SourceError(
            subject=str(captured.script),
            expected=_("one trainer"),
            found=f"{len(different)}: {'; '.join(different)[:400]}",
            fix=_("give the command of one of these trainers after `verl-npu rehearse --`"),
        )
    if not found:
        called = list(dict.fromkeys(" ".join([call.program, *call.arguments[:3]]) for call in captured.calls))
        said = captured.ended.output.decode(errors="replace").strip().splitlines()
        raise SourceError(
            subject=str(captured.script),
            expected=_("a script that starts a trainer with Hydra's key=value settings"),
            found=(
                _("a script that runs only {called}").format(called=_("; ").join(called)[:300])
                if called
                else _("a script that runs no program")
            )
            + (
                _(" and exits with status {status}").format(status=captured.ended.status)
                if captured.ended.status
                else ""
            )
            + (_("; the last line of its output is: {said}").format(said=said[-1][:200]) if said else ""),
            fix=_("add the script's arguments after --, or specify the trainer's own command"),
        )
    return replace(found[0], recipes=_recipes(found[0].module, captured), shell_files=captured.read)


def _recipes(module: str, captured: Capture) -> Path | None:
    """Return the clone of verl-recipe that contains a script and the module that it starts. None if verl's source tree
    has the module, or if the script is not in such a clone."""
    top, *parts = module.split(".")
    clone, file = tree_of(captured.script), Path(*parts).with_suffix(".py") if parts else Path()
    apart = top == "recipe" and not (captured.tree / top / file).is_file()
    return clone if apart and (clone / file).is_file() else None


def trainer_of_command(words: Sequence[str], folder: Path, exports: Mapping[str, str]) -> Trainer:
    """Return the trainer that the user's command line starts.

    Raises:
        SourceError: the command does not start a trainer.
    """
    trainer = _started(list(words), folder, exports)
    if trainer is None:
        raise SourceError(
            subject=" ".join(words)[:200] or _("the command"),
            expected=_("a command such as python3 -m verl.trainer.main_ppo key=value …"),
            found=_("a command that starts neither a module nor a file with key=value settings"),
            fix=_("copy the command from your script and replace its shell variables with their values"),
        )
    return trainer


def with_secrets(trainer: Trainer, environ: Mapping[str, str]) -> Trainer:
    """Return a copy of a trainer with the secrets that were withheld from its script in the sandbox. Use the copy to
    start the trainer outside a sandbox."""
    return replace(
        trainer,
        overrides=tuple(restored(word, environ) for word in trainer.overrides),
        options=tuple(restored(word, environ) for word in trainer.options),
        exports={name: restored(value, environ) for name, value in trainer.exports.items()},
    )


def runtime_environment(captured: Capture) -> dict[str, str] | None:
    """Return the variables of the runtime environment that a script passes to Ray when it submits its job, or None if
    the script submits no job."""
    for call in captured.calls:
        if call.program == "ray" and call.arguments[:2] == ("job", "submit"):
            return _submitted(list(call.arguments[2:]), call.runtime)[0]
    return None


def _name(trainer: Trainer) -> str:
    return " ".join([trainer.module, *trainer.options, *trainer.overrides])


def _called_trainer(call: Call, captured: Capture) -> Trainer | None:
    words = [call.program, *call.arguments]
    exports = captured.exports(call)
    if words[:3] == ["ray", "job", "submit"]:
        variables, words = _submitted(words[3:], call.runtime)
        exports = {**exports, **variables}
    trainer = _started(words, call.folder, exports)
    return trainer and replace(trainer, inherited=captured.inherited(call))


def _is_short(trainer: Trainer) -> bool:
    """Return whether a command line contains overrides or the name of a configuration, and otherwise only Hydra's own
    options."""
    hydras = all(word.startswith(("--config-", "-cn", "-cp")) or not word.startswith("-") for word in trainer.options)
    chosen = trainer.overrides or trainer.option("--config-name") or trainer.option("-cn")
    return hydras and bool(chosen) and all(map(OVERRIDE.fullmatch, trainer.overrides))


def _started(words: list[str], folder: Path, exports: Mapping[str, str]) -> Trainer | None:
    """Return the trainer that a command starts. The command runs `python` or `torchrun`, or is a shell line."""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        name, _unused, value = words.pop(0).partition("=")
        exports = {**exports, name: value}
    if words[:1] in (["bash"], ["sh"]) and words[1:2] == ["-c"] and len(words) > 2:
        return _started(_command_in_line(words[2]), folder, exports)
    if words[:2] == ["uv", "run"]:
        words = list(itertools.dropwhile(lambda word: not re.fullmatch(r"python[\d.]*|torchrun", word), words))
    if not words:
        return None
    program, rest = Path(words[0]).name, words[1:]
    ranks, nodes, counted = 0, 1, True
    if program == "torchrun":
        ranks, nodes, counted, rest = _torchrun(rest)
    elif not re.fullmatch(r"python[\d.]*", program):
        return None
    else:
        while rest[:1] and rest[0] in ("-u", "-B", "-O", "-s", "-I"):
            rest = rest[1:]
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _TORCHRUN:
            ranks, nodes, counted, rest = _torchrun(rest[2:])
    if rest[:1] == ["-m"]:
        rest = rest[1:]
    if not rest or rest[0].startswith("-"):
        return None
    module, *others = rest
    options, overrides = _split(others)
    return Trainer(module, tuple(overrides), tuple(options), ranks, folder, dict(exports), nodes, counted)


def _command_in_line(line: str) -> list[str]:
    """Return the words of the trainer's command in a shell line, which may begin with other commands such as `cd`."""
    try:
        lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";&|\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
        words = list(lexer)
    except ValueError:
        return []  # bash could not parse the line, either
    commands: list[list[str]] = [[]]
    for word in itertools.takewhile(lambda word: not word.startswith("#"), words):
        if word and not word.strip(";&|\n"):
            commands.append([])
        else:
            commands[-1].append(word)
    return next((command for command in commands if _PYTHON.search(" ".join(command[:6]))), commands[0])


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Hydra's own options from overrides. An option and its value may be separate words."""
    options: list[str] = []
    overrides: list[str] = []
    takes_value = False
    for word in words:
        if takes_value or word.startswith("-"):
            takes_value = not takes_value and word in ("--config-path", "-cp", "--config-name", "-cn", "--config-dir")
            options.append(word)
        elif word.strip():
            overrides.append(word)  # Hydra judges whether it is valid
    return options, overrides


def _torchrun(words: list[str]) -> tuple[int, int, bool, list[str]]:
    """Return four things: the processes per node, the nodes, whether both numbers are given, and the words that follow
    torchrun's own options."""
    ranks, nodes, counted, is_module = 1, 1, True, False
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-m", "--module"):
            is_module = True
            continue
        if name in _TORCHRUN_FLAGS:
            continue
        if not equals and words:
            value = words.pop(0)
        if name.replace("_", "-") == "--nproc-per-node":
            ranks = int(value) if value.isdigit() else 1
            counted &= value.isdigit()
        if name == "--nnodes":
            most = value.rpartition(":")[2]
            nodes = int(most) if most.isdigit() else 1
            counted &= most.isdigit()
    return ranks, nodes, counted, ["-m", *words] if is_module else words


def _submitted(words: list[str], runtime: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables in a runtime environment's text, and the command of the submitted job."""
    variables: dict[str, str] = {}
    while words and words[0] != "--":
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--no-wait", "--verbose"):
            continue
        if name.startswith("-") and not equals and words:
            value = words.pop(0)
        if name == "--runtime-env":
            variables = _runtime_env(value, runtime)
        elif not name.startswith("-"):
            return variables, [word, *words]
    return variables, words[1:]


def _runtime_env(path: str, text: str) -> dict[str, str]:
    """Return the `env_vars` in the YAML text of a runtime environment. Return nothing if PyYAML is not installed.

    Only scalars are constructed, because anchors in a file from somebody else can expand endlessly.
    """
    if importlib.util.find_spec("yaml") is None:
        return {}
    import yaml

    try:
        if len(text) > _LARGEST_YAML:
            raise ValueError(_("more than {largest_yaml} KiB").format(largest_yaml=_LARGEST_YAML >> 10))
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        variables = dict(_pairs(root)).get("env_vars")
        make = yaml.constructor.SafeConstructor()
        scalars = [(name, value) for name, value in _pairs(variables) if isinstance(value, yaml.ScalarNode)]
        return {name: str(make.construct_object(value)) for name, value in scalars}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SourceError(
            subject=_("the runtime environment {path}").format(path=path),
            expected="YAML",
            found=(str(error).splitlines() or [type(error).__name__])[0],
            fix=_("correct the file that is passed to `ray job submit --runtime-env`"),
        ) from error


def _pairs(node: object) -> Iterator[tuple[str, object]]:
    """Yield the keys and value nodes of a YAML mapping, each mapping once. The entries of merged mappings come
    first."""
    import yaml

    waiting, seen = [node], set[int]()
    merged: list[tuple[str, object]] = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, yaml.SequenceNode):
            waiting += each.value
        if not isinstance(each, yaml.MappingNode) or id(each) in seen:
            continue
        seen.add(id(each))
        for key, value in each.value:
            if key.tag == "tag:yaml.org,2002:merge":
                waiting.append(value)
            elif isinstance(key, yaml.ScalarNode):
                merged.append((key.value, value))
    # The mapping's own keys come last and win.
    yield from reversed(merged)
