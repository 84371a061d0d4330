"""A job: a trainer with its whole configuration, as Hydra composes it from the revision's files and the overrides."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from verl_npu import progress
from verl_npu.errors import JobSettingError
from verl_npu.language import gettext as _

from ..processes import own_python
from ..sandbox import Limits, ask, check_possible, is_private
from ..secrecy.variables import allowed
from . import composing
from .capture import fresh_home
from .confined import sandbox_of
from .settings import Settings
from .trainer import Trainer

_LIMITS = Limits(120.0, memory=4 << 30, file=256 << 20)
_LARGEST_SOURCE = 4 << 20
_COMPOSING = Path("/composing.py")
_FOLLOWS_ALL = re.compile(rb"OmegaConf\.(resolve\(config\)|to_container\((self\.)?config, resolve=True\))")
_OF_THE_ENVIRONMENT = re.compile(r"\boc\.env:\s*(\w+)")
_MOST_FILES = 1000
_CONFIGURATIONS = Path("verl", "trainer", "config")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a trainer's configuration comes from."""

    source: Path
    """The file of the trainer."""
    folder: Path
    name: str
    moved: str = ""
    """The folder that the script names, if it is not here and this tree's own is taken instead."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer with its settings."""

    trainer: Trainer
    tree: Path
    """The source tree that it is started in."""
    entry: Entry
    settings: Settings
    """With interpolations followed."""
    interpolations: Mapping[str, str]
    """Those settings that refer to others, as they are written."""
    dangling: Mapping[str, str]
    """Of those, the ones that refer to what is not there."""
    config: Mapping[str, object]
    """All of it section by section, with interpolations as they are written: OmegaConf makes a configuration of it."""


def entry_of(trainer: Trainer, tree: Path) -> Entry:
    """Find the configuration that a trainer's `@hydra.main` and its command line name.

    Raises:
        JobSettingError: the trainer is not in the tree nor installed, or has no configuration of Hydra's.
    """
    source = _source(trainer, tree)
    path, name = _decorated(source)
    given = trainer.option("--config-path") or trainer.option("-cp") or trainer.option("--config-dir")
    name = trainer.option("--config-name") or trainer.option("-cn") or name
    folder = (source.parent / (given or path or ".")).resolve()
    if folder.is_dir():
        return Entry(source, folder, name.removesuffix(".yaml"))
    own = tree / _CONFIGURATIONS
    if given and (own / f"{name.removesuffix('.yaml')}.yaml").is_file():
        return Entry(source, own, name.removesuffix(".yaml"), moved=given)
    raise JobSettingError(
        subject=_("the configuration of {module}").format(module=trainer.module),
        expected=_("a folder with its YAML files"),
        found=_("no folder {folder}").format(folder=folder),
        fix=_("check --config-path, which is relative to the folder of the trainer's own file"),
    )


def compose(trainer: Trainer, tree: Path, unconfined: bool = False) -> Job:
    """Compose the settings that a trainer would get, in a sandbox: Hydra runs plugins of the tree.

    Args:
        unconfined: without a sandbox, as the user asks for.

    Raises:
        JobSettingError: Hydra refuses an override, or cannot be asked.
        SandboxError: there can be no sandbox here.
    """
    entry = entry_of(trainer, tree)
    check_possible(unconfined)
    with progress.step(_("composing the settings of {module}").format(module=trainer.module)):
        answer = _answer(trainer, tree, entry, unconfined)
    if "error" in answer:
        raise JobSettingError(
            subject=_("the overrides of {module}").format(module=trainer.module),
            expected=_("overrides that Hydra takes"),
            found=" ".join(str(answer["error"]).split())[:400],
            fix=_(
                "compare the key with the revision's own configuration: a key that is not there takes a + in front, "
                "and one that was moved has another place now"
            ),
        )
    parts = ("values", "interpolations", "dangling", "config")
    values, interpolations, dangling, config = (answer.get(part) for part in parts)
    texts = _is_of_texts(interpolations) and _is_of_texts(dangling)
    if not (isinstance(values, dict) and isinstance(config, dict) and texts):
        raise _not_composed(trainer, _("an answer of another form"))
    return Job(
        trainer=trainer,
        tree=tree,
        entry=entry,
        settings=Settings(values),
        interpolations=cast("Mapping[str, str]", interpolations),
        dangling=cast("Mapping[str, str]", dangling),
        config=config,
    )


def follows_all(job: Job) -> bool:
    """Return whether a trainer follows all its interpolations before its first step, as its file says."""
    return _FOLLOWS_ALL.search(job.entry.source.read_bytes()) is not None


def _is_of_texts(read: object) -> bool:
    return isinstance(read, dict) and all(isinstance(value, str) for value in read.values())


def _answer(trainer: Trainer, tree: Path, entry: Entry, unconfined: bool) -> Mapping[str, object]:
    """What `composing` writes, as a program of its own."""
    request = {"tree": str(tree), "folder": str(entry.folder), "name": entry.name, "overrides": trainer.overrides}
    program, sandbox, environment = Path(composing.__file__), None, dict(os.environ)
    if not unconfined:
        sandbox = sandbox_of(trainer, tree, _configurations(entry, tree))
        sandbox = dataclasses.replace(sandbox, files={_COMPOSING: program})
        read = _read_of_the_environment(trainer, entry, tree)
        exported = {name: value for name, value in trainer.exports.items() if name in read}
        environment = {**allowed(environment, read), **exported, "HOME": str(fresh_home())}
        program = _COMPOSING
    with tempfile.TemporaryDirectory(prefix="verl-npu-") as made:
        log = Path(made, "log")
        ended, answer = ask(sandbox, own_python(str(program)), tree, environment, _LIMITS, log, request)
        said = ended.output.decode(errors="replace").strip().splitlines()
    if ended.limit:
        raise JobSettingError(
            subject=_("the configuration of {module}").format(module=trainer.module),
            expected=_("Hydra to compose it in seconds"),
            found=ended.limit,
            fix=_("look for a YAML file whose anchors grow without end"),
        )
    if ended.status != 0:
        raise _not_composed(trainer, (said or [f"status {ended.status}"])[-1][:300])
    if answer.wrong:
        raise _not_composed(trainer, _("{wrong} for an answer").format(wrong=answer.wrong))
    return answer.content


def _read_of_the_environment(trainer: Trainer, entry: Entry, tree: Path) -> set[str]:
    """The variables that a configuration asks for."""
    shown = entry.folder.is_relative_to(tree) or not is_private(entry.folder)
    files = itertools.islice(entry.folder.rglob("*.yaml"), _MOST_FILES) if shown else ()
    texts = [*trainer.overrides, *(path.read_text(errors="replace") for path in files if path.is_file())]
    return {name for text in texts for name in _OF_THE_ENVIRONMENT.findall(text)}


def _configurations(entry: Entry, tree: Path) -> list[Path]:
    """The folder of the configuration if it lies elsewhere: a script may name any, and one that has it is shown."""
    elsewhere = not entry.folder.is_relative_to(tree) and not is_private(entry.folder)
    return [entry.folder] if elsewhere and (entry.folder / f"{entry.name}.yaml").is_file() else []


def _not_composed(trainer: Trainer, found: str) -> JobSettingError:
    return JobSettingError(
        subject=_("the configuration of {module}").format(module=trainer.module),
        expected=_("Hydra to compose it"),
        found=found,
        fix=_("install the packages of your verl into {prefix}, hydra-core among them").format(prefix=sys.prefix),
    )


def _source(trainer: Trainer, tree: Path) -> Path:
    """The trainer's file: of the tree, or installed."""
    module = trainer.module
    if module.endswith(".py") or "/" in module:
        found = trainer.folder / module
        if found.is_file():
            return found
    else:
        below = tree.joinpath(*module.split("."))
        for path in (below.with_suffix(".py"), below / "__main__.py"):
            if path.is_file():
                return path
        top = module.partition(".")[0]
        spec = importlib.util.find_spec(top) if top else None
        for place in (spec.submodule_search_locations or ()) if spec else ():
            path = Path(place).joinpath(*module.split(".")[1:]).with_suffix(".py")
            if path.is_file():
                return path
    raise JobSettingError(
        subject=_("the trainer {module}").format(module=module),
        expected=_("it in {tree}, or installed").format(tree=tree),
        found=_("neither"),
        fix=_("give the source tree that the script belongs to: --verl PATH"),
    )


def _decorated(source: Path) -> tuple[str, str]:
    """The config_path and config_name of `@hydra.main`, read from the source."""
    try:
        with source.open("rb") as file:
            text = file.read(_LARGEST_SOURCE + 1)
        if len(text) > _LARGEST_SOURCE:
            raise ValueError(_("more than {largest_source} MiB").format(largest_source=_LARGEST_SOURCE >> 20))
        parsed = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise JobSettingError(
            subject=_("the trainer {source}").format(source=source),
            expected=_("a Python file"),
            found=_("{error} as Python reads it").format(error=error),
            fix=_("start a trainer with python3 or torchrun, and shell scripts with bash"),
        ) from error
    for node in ast.walk(parsed):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "hydra.main":
                given = {word.arg: word.value for word in decorator.keywords if word.arg}
                found = [given.get("config_path"), given.get("config_name")]
                path, name = (str(n.value) if isinstance(n, ast.Constant) and n.value else "" for n in found)
                return path, name
    raise JobSettingError(
        subject=_("the trainer {source}").format(source=source),
        expected=_("a function with @hydra.main"),
        found=_("none"),
        fix=_("only trainers that are configured with Hydra can be rehearsed; all of verl's are"),
    )
