"""Registers the translations of this distribution. Modules that print translated text import this module."""

from __future__ import annotations

from pathlib import Path

from verl_npu.language import add_catalogue

DOMAIN = "verl_npu_workbench"
LOCALE = Path(__file__).resolve().parent / "locale"

add_catalogue(DOMAIN, str(LOCALE))
