from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from verl_npu.errors import RolloutError

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]


def test_a_copy_has_the_same_source_and_is_made_once() -> None:
    from transformers import Qwen2ForCausalLM
    from verl_npu_workbench.simulation.rollout.model import own_class

    own = own_class(Qwen2ForCausalLM)
    assert own is own_class(Qwen2ForCausalLM) is own_class(own)
    assert not issubclass(own, Qwen2ForCausalLM)
    assert own.__init__.__code__.co_filename == sys.modules[Qwen2ForCausalLM.__module__].__file__


def test_a_part_from_another_model_gets_its_own_copy_too(config: Any) -> None:
    import torch
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from verl_npu_workbench.simulation.rollout.model import own_class, own_modules

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Qwen2RMSNorm(2))
    own_modules(model)
    assert [type(part) for part in model] == [torch.nn.Linear, own_class(Qwen2RMSNorm)]


def test_a_class_that_is_in_no_source_is_named() -> None:
    from transformers.models.qwen2 import modeling_qwen2
    from verl_npu_workbench.simulation.rollout.model import own_class

    made = type("MadeUp", (), {"__module__": modeling_qwen2.__name__})
    with pytest.raises(RolloutError, match="the class MadeUp"):
        own_class(made)


@pytest.fixture
def remote(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    package = tmp_path / "transformers_modules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling_remote.py").write_text("from torch import nn\nclass Part(nn.Module):\n    number = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)
    import transformers_modules.modeling_remote as module

    return module


def test_a_models_own_files_are_copied_as_well(remote: Any) -> None:
    import torch
    from verl_npu_workbench.simulation.rollout.model import own_modules

    model = torch.nn.Sequential(remote.Part())
    own_modules(model)
    remote.Part.number = 2
    assert model[0].number == 1
