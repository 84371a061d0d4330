"""The part of OmegaConf's DictConfig, a job's configuration, that the features use."""

from __future__ import annotations

from typing import Any, Protocol


class Section(Protocol):
    """A section of the configuration. Its keys are attributes as well, and the user sets their values."""

    def get(self, key: str, default: object = None) -> Any: ...
    def __contains__(self, key: object) -> bool: ...
    def __getattr__(self, key: str) -> Any: ...
    def __setattr__(self, key: str, value: object) -> None: ...
