"""What a program in a sandbox hands back: bytes through a pipe, and JSON that is not too large or too deep."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from verl_npu.language import gettext as _

_MOST_BYTES = 1 << 26
_DEEPEST = 64


class Pipe:
    """Takes what a program writes, and keeps so much of it."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._chunks: list[bytes] = []
        self._left = _MOST_BYTES
        self._thread = threading.Thread(target=self._collect)

    def __enter__(self) -> Pipe:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.writer)
        self._thread.join()

    @property
    def data(self) -> bytes:
        """What was written, up to its limit; read when it is closed."""
        return b"".join(self._chunks)

    @property
    def whole(self) -> bool:
        """Whether that is all."""
        return self._left > 0

    def _collect(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                # What comes after that is read all the same, or the program would wait.
                if self._left > 0:
                    self._chunks.append(chunk)
                    self._left -= len(chunk)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program answered."""

    content: Mapping[str, object]
    """An object of JSON; empty if it answered none."""
    wrong: str = ""
    """What is wrong with the answer, in words; empty if nothing is."""

    @classmethod
    def of(cls, pipe: Pipe) -> Answer:
        if not pipe.whole:
            return cls({}, _("more than {most_bytes} MiB").format(most_bytes=_MOST_BYTES >> 20))
        return cls.read(pipe.data)

    @classmethod
    def read(cls, data: bytes) -> Answer:
        """Read what somebody else has written."""
        if not data.strip():
            return cls({}, "nothing")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return cls({}, _("what is no JSON"))
        if not isinstance(content, dict):
            return cls({}, _("JSON that is no object"))
        if _is_deep(content):
            return cls({}, _("JSON that is nested more than {deepest} deep").format(deepest=_DEEPEST))
        return cls(content)


def _is_deep(content: object) -> bool:
    level = [content]
    for _unused in range(_DEEPEST):
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = inner
    return bool(level)
