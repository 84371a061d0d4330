"""The folder of a model of full size without weights: configuration and a tokenizer. Made in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import environment
from ..errors import PlanError
from .job import Picture
from .published import PUBLISHED, published

__all__ = ["Model", "folder_of", "model_of"]


@dataclass(frozen=True, slots=True)
class Model:
    """What a plan knows of a model before it runs."""

    folder: Path
    source: str
    """Where its sizes come from, for the report."""
    parameters: int
    cache: int
    """Bytes of the key-value cache for one token, in bfloat16, on all NPUs of an engine together."""
    key_heads: int
    heads: int
    layers: int
    active: int
    """Parameters that take part for one token: of a mixture of experts, those that are chosen."""
    experts: int
    """Parameters of all experts."""
    picture: Picture | None = None
    """What it makes of a picture; None if it takes none."""


def model_of(path: str, given: Path | None, folder: Path) -> Model:
    """Make the folder of the model that a script names by `path`, or of the config.json that the user gives.

    Raises:
        PlanError: neither tells the model's sizes, or transformers does not take them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, source = _config(path, given)
    (folder / "asked.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.making", str(folder)],
        env=os.environ | {environment.VIRTUAL.name: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise PlanError(
            subject=f"the model {source}",
            expected="a configuration that the installed transformers takes",
            found=(done.stderr.strip().splitlines() or ["no output"])[-1][:300],
            fix="give the config.json of the model, with its model_type: --model-config PATH",
        )
    told = json.loads(done.stdout.splitlines()[-1])
    _take_tokenizer(folder_of(path, given), folder)
    picture = told.pop("picture")
    return Model(folder, source, **told, picture=Picture(**picture) if picture else None)


def folder_of(path: str, given: Path | None) -> Path:
    """Return where a model's own files are: beside the config.json that the user gives, or where the script says."""
    own = given if given is not None else Path(path).expanduser()
    return own if own.is_dir() else own.parent


def _config(path: str, given: Path | None) -> tuple[dict[str, object], str]:
    place = given if given is not None else Path(path).expanduser()
    file = place / "config.json" if place.is_dir() else place
    if file.is_file():
        try:
            read = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise PlanError(
                subject=str(file),
                expected="a model's config.json",
                found=str(error),
                fix="give another with --model-config",
            ) from error
        if not isinstance(read, dict) or "model_type" not in read:
            raise PlanError(
                subject=str(file),
                expected="a model's config.json with its model_type",
                found="none",
                fix="give another with --model-config",
            )
        return read, str(file)
    if given is not None:
        raise PlanError(
            subject=f"--model-config {given}",
            expected="a config.json, or a folder with one",
            found="none",
            fix="give the file of the model that the script trains",
        )
    known = published(path)
    if known is None:
        raise PlanError(
            subject=f"the model {path!r}",
            expected="a folder with its config.json, or one of " + ", ".join(each.name for each in PUBLISHED),
            found="neither",
            fix="give its config.json: --model-config PATH",
        )
    return {"model_type": known.kind, **known.settings}, f"{known.name}, as it is published"


def _take_tokenizer(place: Path, folder: Path) -> None:
    """Prefer the model's own tokenizer to the one that was made, if it is there."""
    if (place / "tokenizer_config.json").is_file():
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"):
            if (place / name).is_file():
                shutil.copy(place / name, folder / name)
