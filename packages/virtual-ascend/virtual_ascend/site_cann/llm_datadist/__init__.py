"""The names of CANN's package that transfers KV caches between NPUs, so that programs that import this package run.

The classes that would transfer a cache raise NotImplementedError.

Names and numbers: github.com/hicann/hixl, src/python/llm_datadist; for the numbers of DataType, ge::DataType.
"""

from __future__ import annotations

from enum import Enum, IntEnum

__all__ = [
    "BlocksCacheKey",
    "CacheDesc",
    "CacheKey",
    "DataType",
    "LLMConfig",
    "LLMDataDist",
    "LLMException",
    "LLMRole",
    "RegisterMemStatus",
]


class LLMRole(Enum):
    """The role of a process in serving a request."""

    PROMPT = 1
    DECODER = 2
    MIX = 3


class DataType(IntEnum):
    """The dtype of a cache."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_STRING = 13
    DT_BF16 = 27


class RegisterMemStatus(Enum):
    """The state of a link that transfers KV caches."""

    OK = 0
    PREPARING = 1
    FAILED = 2


class LLMException(RuntimeError):
    """The exception that CANN's package raises if it cannot transfer a cache. virtual-ascend never raises it."""


class _Unwritten:
    """The base of the package's classes that cannot be instantiated with virtual-ascend."""

    def __init__(self, *_args: object, **_options: object) -> None:
        name = f"llm_datadist.{type(self).__name__}"
        raise NotImplementedError(f"{name} is not implemented by the virtual Ascend (VIRTUAL_ASCEND is set)")


class LLMDataDist(_Unwritten):
    """A link that transfers KV caches between clusters of NPUs."""


class LLMConfig(_Unwritten):
    """The settings of a link that transfers KV caches."""


class CacheDesc(_Unwritten):
    """The shape and dtype of a cache."""


class CacheKey(_Unwritten):
    """The key of a cache."""


class BlocksCacheKey(_Unwritten):
    """The key of a cache that is divided into blocks."""
