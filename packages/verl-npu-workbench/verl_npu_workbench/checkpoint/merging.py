"""A checkpoint merged by upstream's merger into a folder that is there only once it was read back."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_npu import progress
from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

from ..processes import own_python
from . import fsdp, megatron
from .layout import Backend, Layout, check
from .reading_back import Compared, compare

_MERGER = "model_merger"
_SCORE = "score."
"""What transformers calls the head of a model for token classification, which verl makes value models of."""
_MEGATRON = ("megatron", "megatron-core")
_TAIL = 3


@dataclass(frozen=True, slots=True)
class Merged:
    """A model that was merged and read back."""

    layout: Layout
    target: Path
    compared: Compared
    is_value_model: bool = False
    """Whether it scores tokens, as PPO's critic: verl has its config.json name a language model all the same."""


def merge(layout: Layout, target: Path, options: tuple[str, ...], say: Callable[[str], None]) -> Merged:
    """Merge a checkpoint into `target`, which must not exist; `options` go to upstream's merger as they are.

    Upstream writes into a folder beside the target, which is renamed when all of it was read back.

    Raises:
        CheckpointError: a shard or a package is missing, upstream's merger failed, or its model is not what the
            shards hold. Nothing is left behind.
    """
    if target.exists():
        raise CheckpointError(
            subject=str(target),
            expected=_("a folder that does not exist yet"),
            found=_("one that does"),
            fix=_("name another"),
        )
    _need(layout)

    @contextmanager
    def saying(what: str) -> Iterator[None]:
        say(what)
        with progress.step(what):
            yield

    with saying(
        _("{backend} checkpoint in {folder}: reading its files").format(
            backend=layout.backend.value, folder=layout.folder
        )
    ):
        check(layout)
        expected = _expected(layout)
    with _beside(target) as folder:
        with saying(_("merging {count} tensors with verl's {merger}").format(count=len(expected), merger=_MERGER)):
            _upstream(layout, folder, options)
        with saying(_("reading the merged model back")):
            compared = compare(folder, expected)
        folder.rename(target)
    return Merged(layout, target, compared, any(name.startswith(_SCORE) for name in expected))


def _expected(layout: Layout) -> Mapping[str, Callable[[], Any]]:
    return megatron.whole_tensors(layout) if layout.backend is Backend.MEGATRON else fsdp.whole_tensors(layout)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        outer = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise CheckpointError(
            subject=str(target), expected=_("a folder that can be made"), found=str(error), fix=_("name another")
        ) from error
    try:
        # mkdtemp's own folder is closed to others; the model is to have the permissions of any other folder.
        inner = outer / target.name
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def _need(layout: Layout) -> None:
    if importlib.util.find_spec("verl") is None or importlib.util.find_spec(f"verl.{_MERGER}") is None:
        raise CheckpointError(
            subject="verl-npu merge",
            expected=_("a verl that has verl.{merger}").format(merger=_MERGER),
            found=_("none here"),
            fix=_("install the verl that trained (all pins have it)"),
        )
    needed = [("safetensors", "safetensors")]
    if layout.backend is Backend.MEGATRON:
        needed.append(_MEGATRON)
    instead = (
        _(", or use the whole model in {huggingface}").format(huggingface=layout.huggingface)
        if layout.is_whole
        else ""
    )
    for module, package in needed:
        if importlib.util.find_spec(module) is None:
            raise CheckpointError(
                subject=_("a checkpoint of {backend}").format(backend=layout.backend.value),
                expected=_("the package {package}").format(package=package),
                found=_("none"),
                fix=f"pip install {package}, in the version that trained (see verl-npu setup --pin PIN){instead}",
            )


def _upstream(layout: Layout, folder: Path, options: tuple[str, ...]) -> None:
    backend = "megatron" if layout.backend is Backend.MEGATRON else "fsdp"
    command = own_python("-m", "verl_npu_workbench.checkpoint.upstream", "merge", "--backend", backend)
    command += ["--local_dir", str(layout.folder), "--target_dir", str(folder), *options]
    done = subprocess.run(
        command, env=_environment(layout), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()][-_TAIL:]
        raise CheckpointError(
            subject=_("verl's {merger}").format(merger=_MERGER),
            expected=_("it to merge the checkpoint"),
            found=_("status {returncode}: {lines}").format(returncode=done.returncode, lines=" / ".join(lines)),
            fix=_("to see all it says: {command}").format(command=" ".join(command)),
        )


def _environment(layout: Layout) -> dict[str, str]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    if layout.backend is Backend.MEGATRON and not megatron.has_accelerator():
        # Upstream's merger makes a Megatron model, which wants a device and its collectives.
        environment.setdefault("VIRTUAL_ASCEND", "1")
    return environment
