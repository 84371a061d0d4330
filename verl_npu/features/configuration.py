"""The part of OmegaConf's DictConfig that the features use. DictConfig is the type of a job's configuration."""

from __future__ import annotations

from typing import Any, Protocol


class Section(Protocol):
    """A section of the configuration. Its keys can be read as attributes, too; the user sets their values."""

    def get(self, key: str, default: object = None) -> Any: ...
    def __contains__(self, key: object) -> bool: ...
    def __getattr__(self, key: str) -> Any: ...
    def __setattr__(self, key: str, value: object) -> None: ...
