"""Has the plugin find the translations of this distribution's texts. To be imported by whatever prints them."""

from __future__ import annotations

from pathlib import Path

from verl_npu.language import add_catalogue

DOMAIN = "verl_npu_workbench"
LOCALE = Path(__file__).resolve().parent / "locale"

add_catalogue(DOMAIN, str(LOCALE))
