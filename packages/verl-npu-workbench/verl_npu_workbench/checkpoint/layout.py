"""What a folder with a checkpoint of verl's holds, told by its files, and whether each of them is there and whole."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO

from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

from .pickles import metadata

_SHARD = re.compile(r"model_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt")
_STEP = re.compile(r"global_step_(?P<step>\d+)")
_LATEST = "latest_checkpointed_iteration.txt"
_CONFIG = "fsdp_config.json"
_EXPECTED = _(
    "a folder with model_world_size_N_rank_R.pt (FSDP) or dist_ckpt (Megatron), "
    "such as CHECKPOINTS/global_step_N/actor"
)


class Backend(Enum):
    """What saved a checkpoint."""

    FSDP = "FSDP"
    FSDP2 = "FSDP2"
    MEGATRON = "Megatron"


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint of one model."""

    folder: Path
    backend: Backend
    shards: tuple[Path, ...]
    """With FSDP one file for each rank, in their order, those that are missing included; with Megatron the folder
    that its files are in."""
    huggingface: Path
    """Where upstream puts the model's configuration and the tokenizer."""

    @property
    def is_whole(self) -> bool:
        """Whether the job saved the whole model too, as save_contents with hf_model and use_mbridge=True do."""
        return any(self.huggingface.glob("*.safetensors"))


def find(path: Path) -> Layout:
    """Return the checkpoint in `path`: a model's folder, a step's, or that of all steps, whose latest is taken.

    Raises:
        CheckpointError: there is none, or it is of no kind that can be merged.
    """
    if not path.is_dir():
        raise _refusal(path, _("a file") if path.exists() else _("no such folder"))
    folder = _model(_step(path))
    if any(_SHARD.fullmatch(each.name) for each in folder.iterdir()) or (folder / _CONFIG).is_file():
        return _fsdp(folder)
    # The second is where verl puts it from July 2026 on, beside the optimizer's.
    for base in (folder, folder / "model"):
        if (base / "dist_ckpt" / ".metadata").exists() or any((base / "dist_ckpt").glob("*.distcp")):
            return Layout(folder, Backend.MEGATRON, (base / "dist_ckpt",), _with_config(base / "huggingface"))
    for base in (folder, folder / "model"):
        if any((base / "huggingface").glob("*.safetensors")):
            raise CheckpointError(
                subject=str(folder),
                expected=_EXPECTED,
                found=_("no shards, and a model that is whole already in {base}").format(base=base / "huggingface"),
                fix=_("use that folder: there is nothing to merge"),
            )
    raise _refusal(folder, _(", ").join(sorted(each.name for each in folder.iterdir())[:8]) or _("an empty folder"))


def _step(path: Path) -> Path:
    steps = {int(found["step"]): each for each in path.iterdir() if (found := _STEP.fullmatch(each.name))}
    if not steps:
        return path
    latest = path / _LATEST
    written = latest.read_text(encoding="utf-8", errors="replace").strip() if latest.is_file() else ""
    # A step that is not in that file was being saved when the job ended.
    step = int(written) if written.isdecimal() else max(steps)
    if step not in steps:
        raise CheckpointError(
            subject=str(latest),
            expected=_("one of the steps {str}").format(str=_(", ").join(map(str, sorted(steps)))),
            found=str(step),
            fix=_("give the folder of a step"),
        )
    return steps[step]


def _model(folder: Path) -> Path:
    # PPO's critic lies beside the actor; it is merged if its own folder is given.
    return folder / "actor" if (folder / "actor").is_dir() else folder


def _fsdp(folder: Path) -> Layout:
    world, version = _config(folder / _CONFIG)
    names = [f"model_world_size_{world}_rank_{rank}.pt" for rank in range(world)]
    backend = Backend.FSDP2 if version == 2 else Backend.FSDP
    return Layout(folder, backend, tuple(folder / name for name in names), _with_config(folder / "huggingface"))


def _config(path: Path) -> tuple[int, int]:
    """Return the number of ranks, and FSDP's version."""
    expected = _("the JSON that verl saves with FSDP's shards, with world_size and FSDP_version")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        world, version = int(content["world_size"]), int(content["FSDP_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = _("no such file") if isinstance(error, FileNotFoundError) else repr(error)
        raise CheckpointError(
            subject=str(path), expected=expected, found=found, fix=_("copy it from where rank 0 saved the checkpoint")
        ) from error
    if world < 1:
        raise CheckpointError(
            subject=str(path), expected=expected, found=f"world_size {world}", fix=_("copy it again from rank 0")
        )
    return world, version


def _with_config(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            subject=str(folder / "config.json"),
            expected=_("the model's configuration, which rank 0 saves beside the shards"),
            found=_("no such file"),
            fix=_("copy the folder huggingface from where rank 0 saved the checkpoint"),
        )
    return folder


def _refusal(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        subject=str(path),
        expected=_EXPECTED,
        found=found,
        fix=_("give a folder below the job's trainer.default_local_dir"),
    )


_ARCHIVE = b"PK"


def check(layout: Layout) -> None:
    """Read all of a checkpoint's files.

    torch.save writes a zip archive, with its table of contents at the end and a checksum of each entry. The metadata
    of torch.distributed.checkpoint, which Megatron saves by, says what is where in which file.

    Raises:
        CheckpointError: a file is missing, cut short or damaged; it names the first such file, and counts the rest.
    """
    faults = _of_megatron(layout.shards[0]) if layout.backend is Backend.MEGATRON else _of_fsdp(layout.shards)
    if faults:
        path, found = faults[0]
        more = (
            _(", and {count} more of {folder} are missing or damaged").format(
                count=len(faults) - 1, folder=layout.folder.name
            )
            if faults[1:]
            else ""
        )
        raise CheckpointError(
            subject=str(path),
            expected=_("a whole shard of the checkpoint"),
            found=found + more,
            fix=_("copy it again from the machine that saved it (each machine saves its own ranks' shards)"),
        )


def _of_fsdp(shards: tuple[Path, ...]) -> list[tuple[Path, str]]:
    return [(path, fault) for path in shards if (fault := _archive(path))]


def _archive(path: Path) -> str:
    """Return what is wrong with a file of torch.save's; empty if nothing is."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            fault = _in_archive(stream)
    except FileNotFoundError:
        return _("no such file")
    except OSError as error:
        return str(error)
    return _("{size} bytes that are {fault}").format(size=size, fault=fault) if fault else ""


def _in_archive(stream: IO[bytes]) -> str:
    try:
        with zipfile.ZipFile(stream) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        return _("no whole archive ({error}): it was cut short or damaged").format(error=error)
    return _("an archive with a wrong checksum of {damaged}").format(damaged=damaged) if damaged else ""


def _of_megatron(folder: Path) -> list[tuple[Path, str]]:
    try:
        table = metadata(folder).storage_data or {}
    except FileNotFoundError:
        return [(folder / ".metadata", _("no such file"))]
    parts: dict[str, list[tuple[int, int]]] = {}
    for place in table.values():
        parts.setdefault(place.relative_path, []).append((place.offset, place.length))
    return [(folder / name, fault) for name in sorted(parts) if (fault := _parts(folder / name, parts[name]))]


def _parts(path: Path, parts: list[tuple[int, int]]) -> str:
    """Return what is wrong with a file that holds these parts; each tensor is an archive of torch.save's in it."""
    end = max(offset + length for offset, length in parts)
    try:
        size = path.stat().st_size
        if size < end:
            return _("{size} of {end} bytes: it was cut short").format(size=size, end=end)
        with path.open("rb") as stream:
            for offset, length in sorted(parts):
                stream.seek(offset)
                content = stream.read(length)
                if content.startswith(_ARCHIVE) and (fault := _in_archive(io.BytesIO(content))):
                    return _("at byte {offset} {fault}").format(offset=offset, fault=fault)
    except FileNotFoundError:
        return _("no such file")
    except OSError as error:
        return str(error)
    return ""
