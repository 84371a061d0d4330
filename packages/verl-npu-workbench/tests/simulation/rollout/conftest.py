"""A small text model, and engines for it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from verl_npu_workbench.simulation.rollout.engine import Engine


@pytest.fixture(scope="session")
def config() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )


@pytest.fixture
def weights(config: Any) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    named = AutoModelForCausalLM.from_config(config).named_parameters()
    return {name: value.detach() for name, value in named}


@pytest.fixture
def engine(npu: ModuleType, config: Any) -> Engine:
    from verl_npu_workbench.simulation.rollout.engine import Engine

    return Engine(config, "float32", pad_token_id=0)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model that the quickstart trains, with its tokenizer."""
    pytest.importorskip("transformers")
    from harness.model import generate

    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    generate(folder, 0)
    return folder
