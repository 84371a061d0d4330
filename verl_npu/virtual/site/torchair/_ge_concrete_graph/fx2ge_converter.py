"""Registering converters from FX nodes to the graph engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["declare_supported", "register_fx_node_ge_converter"]

Converter = TypeVar("Converter", bound=Callable[..., Any])


def register_fx_node_ge_converter(operator: Any) -> Callable[[Converter], Converter]:
    """Take the decorated converter of `operator` as it is: no graph is ever built here."""
    return _unchanged


def declare_supported(supports: Any, **options: Any) -> Callable[[Converter], Converter]:
    """Take the decorated converter as it is."""
    return _unchanged


def _unchanged(converter: Converter) -> Converter:
    return converter
