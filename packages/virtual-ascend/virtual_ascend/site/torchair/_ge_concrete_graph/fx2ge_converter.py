"""Registration of converters from FX nodes to the graph engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["declare_supported", "register_fx_node_ge_converter"]

Converter = TypeVar("Converter", bound=Callable[..., object])


def register_fx_node_ge_converter(operator: object) -> Callable[[Converter], Converter]:
    """Return a decorator that leaves the converter of `operator` unchanged, because no graph is ever built."""
    return _unchanged


def declare_supported(supports: object, **options: object) -> Callable[[Converter], Converter]:
    """Return a decorator that leaves the converter unchanged."""
    return _unchanged


def _unchanged(converter: Converter) -> Converter:
    return converter
