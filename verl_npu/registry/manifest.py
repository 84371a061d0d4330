"""Manifests: what one process really did, as JSON, one file for each process."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import SourceError

__all__ = ["read_manifests", "write_manifest"]

SCHEMA = 1


def write_manifest(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write a manifest into `folder`, whole or not at all, and return its path.

    `content` has `host` and `pid`, which make the file's name: a process that writes again replaces its own file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{content['host']}-{content['pid']}.json"
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump({"schema": SCHEMA, **content}, stream, indent=2)
            stream.write("\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read_manifests(folder: Path) -> list[dict[str, Any]]:
    """All manifests in `folder`, by file name. Raises SourceError for one that cannot be read."""
    manifests = []
    for path in sorted(folder.glob("[!.]*.json")):
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise SourceError(
                subject=str(path), expected="a manifest", found=str(error), fix="delete it and run the job again"
            ) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise SourceError(
                subject=str(path),
                expected=f"a manifest of schema {SCHEMA}",
                found="something else",
                fix="give the folder that the job wrote its manifests to",
            )
        manifests.append(content)
    return manifests
