"""The response of a sandboxed program: bytes from a pipe that are parsed as JSON of limited size and depth."""

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
    """Reads a program's output from a pipe, and keeps it up to a size limit."""

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
        """The program's output, up to the size limit. Read this property only after the pipe is closed."""
        return b"".join(self._chunks)

    @property
    def whole(self) -> bool:
        """Whether the output is complete."""
        return self._left > 0

    def _collect(self) -> None:
        with open(self._reader, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                # Read beyond the limit too, or the program would block.
                if self._left > 0:
                    self._chunks.append(chunk)
                    self._left -= len(chunk)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a sandboxed program: the parsed JSON, or the reason why it is invalid."""

    content: Mapping[str, object]
    """A JSON object. Empty if the response is invalid."""
    wrong: str = ""
    """The reason why the response is invalid. Empty if the response is valid."""

    @classmethod
    def of(cls, pipe: Pipe) -> Answer:
        if not pipe.whole:
            return cls({}, _("more than {most_bytes} MiB").format(most_bytes=_MOST_BYTES >> 20))
        return cls.read(pipe.data)

    @classmethod
    def read(cls, data: bytes) -> Answer:
        """Parse an untrusted response."""
        if not data.strip():
            return cls({}, "nothing")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            return cls({}, _("text that is not JSON"))
        if not isinstance(content, dict):
            return cls({}, _("JSON that is not an object"))
        if _is_deep(content):
            return cls({}, _("JSON with more than {deepest} levels").format(deepest=_DEEPEST))
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
