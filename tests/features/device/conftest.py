from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def config() -> Callable[..., Any]:
    """Makes a job's configuration as Hydra composes it, with `trainer.device` and what the user wrote."""
    omegaconf = pytest.importorskip("omegaconf")

    def make(device: str | None, *overrides: str) -> Any:
        trainer = {} if device is None else {"trainer": {"device": device}}
        return omegaconf.OmegaConf.create({**trainer, "hydra": {"overrides": {"task": list(overrides)}}})

    return make
