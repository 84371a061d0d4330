"""A job: a trainer with the configuration that Hydra composes from verl's files and the trainer's overrides."""

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
_RESOLVES_ALL = re.compile(rb"OmegaConf\.(resolve\(config\)|to_container\((self\.)?config, resolve=True\))")
_ENVIRONMENT_REFERENCE = re.compile(r"\boc\.env:\s*(\w+)")
_IMPORTS_VERL = re.compile(rb"^\s*(?:from|import)\s+verl\b", re.MULTILINE)
_MOST_FILES = 1000
_CONFIGURATIONS = Path("verl", "trainer", "config")


@dataclass(frozen=True, slots=True)
class Entry:
    """The trainer's file, and the folder and the name of its configuration."""

    source: Path
    """The trainer's own file."""
    folder: Path
    """The folder of the configuration's YAML files."""
    name: str
    """The name of the main YAML file, without its ending."""
    moved: str = ""
    """The configuration folder that the script names but that does not exist. The tree's own folder is used in its
    place. Empty if the script's folder is used."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trainer with its settings."""

    trainer: Trainer
    tree: Path
    """The source tree that the trainer starts in."""
    entry: Entry
    settings: Settings
    """The settings with interpolations resolved."""
    interpolations: Mapping[str, str]
    """The settings that refer to other settings, in their unresolved form."""
    dangling: Mapping[str, str]
    """The interpolations that refer to missing settings."""
    config: Mapping[str, object]
    """The whole configuration as nested sections, for OmegaConf. Interpolations are unresolved."""


def entry_of(trainer: Trainer, tree: Path) -> Entry:
    """Return the source of a trainer's configuration, as its `@hydra.main` and its command line specify it.

    Raises:
        JobSettingError: the trainer is neither in the tree nor installed, or has no Hydra configuration.
    """
    source = _source(trainer, tree)
    path, name = _hydra_main_arguments(source)
    given = trainer.option("--config-path") or trainer.option("-cp") or trainer.option("--config-dir")
    name = trainer.option("--config-name") or trainer.option("-cn") or name
    folder = (source.parent / (given or path or ".")).resolve()
    if trainer.recipes is not None and folder.is_relative_to(tree / "recipe"):
        folder = trainer.recipes / folder.relative_to(tree / "recipe")
    if folder.is_dir():
        return Entry(source, folder, name.removesuffix(".yaml"))
    own = tree / _CONFIGURATIONS
    if given and (own / f"{name.removesuffix('.yaml')}.yaml").is_file():
        return Entry(source, own, name.removesuffix(".yaml"), moved=given)
    raise JobSettingError(
        subject=_("the configuration of {module}").format(module=trainer.module),
        found=_("the folder {folder} does not exist").format(folder=folder),
        fix=_("correct --config-path. The path is relative to the folder that contains the trainer's main file"),
    )


def compose(trainer: Trainer, tree: Path, unconfined: bool = False) -> Job:
    """Compose a trainer's settings with Hydra. This happens in a sandbox, because Hydra runs plugins from the tree.

    Args:
        unconfined: compose without a sandbox, because the user requested it.

    Raises:
        JobSettingError: Hydra rejects an override or cannot run.
        SandboxError: a sandbox cannot be created on this machine.
    """
    entry = entry_of(trainer, tree)
    check_possible(unconfined)
    with progress.step(_("composing the settings of {module}").format(module=trainer.module)):
        answer = _answer(trainer, tree, entry, unconfined)
    said = " ".join(str(answer.get("error")).split())[:400]
    if name := answer.get("lacking"):
        missing = _("no package {name}, which hydra.searchpath names").format(name=name)
        raise _not_composed(trainer, f"{missing}: {said}")
    if "error" in answer:
        raise JobSettingError(
            subject=_("the overrides of {module}").format(module=trainer.module),
            expected=_("valid Hydra overrides"),
            found=said,
            fix=_(
                "look the key up in the configuration of this version of verl: put + in front of a key that the "
                "configuration does not have, and use the new name of a key that was moved"
            ),
        )
    parts = ("values", "interpolations", "dangling", "config")
    values, interpolations, dangling, config = (answer.get(part) for part in parts)
    texts = _maps_strings(interpolations) and _maps_strings(dangling)
    if not (isinstance(values, dict) and isinstance(config, dict) and texts):
        raise _not_composed(trainer, _("an answer with unexpected types"))
    return Job(
        trainer=trainer,
        tree=tree,
        entry=entry,
        settings=Settings(values),
        interpolations=cast("Mapping[str, str]", interpolations),
        dangling=cast("Mapping[str, str]", dangling),
        config=config,
    )


def uses_verl(job: Job) -> bool:
    """Return whether a trainer is verl's own, or imports verl."""
    return job.trainer.module.startswith("verl.") or _IMPORTS_VERL.search(job.entry.source.read_bytes()) is not None


def follows_all(job: Job) -> bool:
    """Return whether a trainer's source resolves all interpolations before the first step."""
    return _RESOLVES_ALL.search(job.entry.source.read_bytes()) is not None


def _maps_strings(read: object) -> bool:
    return isinstance(read, dict) and all(isinstance(value, str) for value in read.values())


def _answer(trainer: Trainer, tree: Path, entry: Entry, unconfined: bool) -> Mapping[str, object]:
    """Run the program `composing` and return its answer."""
    request = {"tree": str(tree), "folder": str(entry.folder), "name": entry.name, "overrides": trainer.overrides}
    program, sandbox, environment = Path(composing.__file__), None, dict(os.environ)
    if not unconfined:
        sandbox = sandbox_of(trainer, tree, _configurations(entry, tree))
        sandbox = dataclasses.replace(sandbox, files={_COMPOSING: program})
        read = _variables_read(trainer, entry, tree)
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
            expected=_("a configuration that Hydra can compose within the limits of time and memory"),
            found=ended.limit,
            fix=_("look for a YAML file whose anchors expand without end"),
        )
    if ended.status != 0:
        raise _not_composed(trainer, (said or [f"status {ended.status}"])[-1][:300])
    if answer.wrong:
        raise _not_composed(trainer, _("{wrong} as the answer").format(wrong=answer.wrong))
    return answer.content


def _variables_read(trainer: Trainer, entry: Entry, tree: Path) -> set[str]:
    """Return the environment variables that a configuration reads."""
    shown = entry.folder.is_relative_to(tree) or not is_private(entry.folder)
    files = itertools.islice(entry.folder.rglob("*.yaml"), _MOST_FILES) if shown else ()
    texts = [*trainer.overrides, *(path.read_text(errors="replace") for path in files if path.is_file())]
    return {name for text in texts for name in _ENVIRONMENT_REFERENCE.findall(text)}


def _configurations(entry: Entry, tree: Path) -> list[Path]:
    """Return the configuration's folder as a list. The list is empty if the folder is in the tree, does not have the
    configuration, or is private."""
    elsewhere = not entry.folder.is_relative_to(tree) and not is_private(entry.folder)
    return [entry.folder] if elsewhere and (entry.folder / f"{entry.name}.yaml").is_file() else []


def _not_composed(trainer: Trainer, found: str) -> JobSettingError:
    return JobSettingError(
        subject=_("the configuration of {module}").format(module=trainer.module),
        expected=_("a configuration that Hydra can compose"),
        found=found,
        fix=_("in {prefix}, install hydra-core and the other packages that your verl version requires").format(
            prefix=sys.prefix
        ),
    )


def _source(trainer: Trainer, tree: Path) -> Path:
    """Return the trainer's source file, from the tree or from the installed package."""
    module = trainer.module
    if module.endswith(".py") or "/" in module:
        found = trainer.folder / module
        if found.is_file():
            return found
    else:
        below = tree.joinpath(*module.split("."))
        if trainer.recipes is not None:
            below = trainer.recipes.joinpath(*module.split(".")[1:])
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
        found=_("the trainer is neither in {tree} nor installed").format(tree=tree),
        fix=_("pass --source PATH, the verl checkout that the script is started in"),
    )


def _hydra_main_arguments(source: Path) -> tuple[str, str]:
    """Return the config_path and config_name of `@hydra.main`, read from the source."""
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
            found=_("a file that Python cannot parse ({error})").format(error=error),
            fix=_("use python3 or torchrun only to start Python files, and use bash to start shell scripts"),
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
        found=_("the file has no function with @hydra.main"),
        fix=_("choose a trainer that Hydra configures, such as one of verl's own"),
    )
