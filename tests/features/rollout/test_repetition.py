from __future__ import annotations

import pytest

from verl_npu.features.rollout.patches import prevent_double_repetition_in_hf_rollout

omegaconf = pytest.importorskip("omegaconf")


def test_the_engine_gets_one_and_the_trainers_configuration_stays() -> None:
    config = omegaconf.OmegaConf.create({"n": 8, "temperature": 0.5})
    seen = []
    prevent_double_repetition_in_hf_rollout(
        lambda self, module, config: seen.append((self, module, config)), "self", "module", config
    )
    (engine, module, given) = seen[0]
    assert (engine, module, dict(given)) == ("self", "module", {"n": 1, "temperature": 0.5})
    assert config.n == 8
