from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def config() -> Callable[..., Any]:
    """Return a function that composes a job's configuration like Hydra, from `trainer.device` and overrides."""
    omegaconf = pytest.importorskip("omegaconf")

    def make(device: str | None, *overrides: str) -> Any:
        trainer = {} if device is None else {"trainer": {"device": device}}
        return omegaconf.OmegaConf.create({**trainer, "hydra": {"overrides": {"task": list(overrides)}}})

    return make
