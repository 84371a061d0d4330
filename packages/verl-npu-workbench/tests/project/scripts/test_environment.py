from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import environment, pins
from harness.environment import Recipe
from harness.errors import RunFailed
from harness.later_outputs import without_proposals

OUTPUTS = """from dataclasses import dataclass


@dataclass
class ModelRunnerOutput:
    req_ids: list
    spec_token_ids: object
"""
BUILT = "__sleep_mode_enabled__ = False\n"


def test_a_runners_output_is_made_without_proposed_tokens() -> None:
    @dataclass
    class Output:
        req_ids: list[str]
        spec_token_ids: list[int] | None
        logprobs: object

    Output.__init__ = without_proposals(Output.__init__)  # type: ignore[method-assign]
    assert Output(req_ids=["a"], logprobs=1).spec_token_ids is None  # type: ignore[call-arg]
    assert Output(req_ids=["a"], spec_token_ids=[2], logprobs=1).spec_token_ids == [2]
    assert Output(["a"], [3], 1).spec_token_ids == [3]


def test_the_build_adds_it_to_the_environments_own_vllm_and_leaves_the_checkout_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, packages = tmp_path / "source", tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for path, text in (
        (source / "vllm_ascend" / "__init__.py", ""),
        (packages / "vllm" / "v1" / "outputs.py", OUTPUTS),
        (packages / "vllm_ascend" / "_build_info.py", BUILT),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    built: list[Path] = []

    def pip(_recipe: object, *arguments: str, **variables: str) -> None:
        built.append(Path(arguments[-1]))
        assert (built[-1] / "vllm_ascend" / "__init__.py").is_file()
        assert variables["COMPILE_CUSTOM_KERNELS"] == "0"
        (built[-1] / "build").mkdir()

    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setenv(pins.SOURCE, str(source))
    engine = pins.PINS["796871d7"].engine
    assert engine is not None
    recipe: Recipe = SimpleNamespace(folder=tmp_path / "venv")  # type: ignore[assignment]
    environment._build(recipe, engine)
    assert "__sleep_mode_enabled__ = True" in (packages / "vllm_ascend" / "_build_info.py").read_text()
    said = (packages / "vllm" / "v1" / "outputs.py").read_text()
    assert said.startswith(OUTPUTS)
    assert "import DraftTokenIds" in said
    assert (packages / "vllm" / "v1" / "later_outputs.py").is_file()
    assert [path.name for path in source.iterdir()] == ["vllm_ascend"]
    assert not built[0].exists()


def test_the_device_is_compiled_while_packages_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text(f"#!/bin/sh\necho $VIRTUAL_ASCEND $2 > {tmp_path}/compiled\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)
    with environment._compiling(tmp_path / "python"):
        pass
    assert (tmp_path / "compiled").read_text() == "2 import torch, torch_npu\n"


def test_a_failed_installation_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RunFailed, match="pip"), environment._compiling(tmp_path / "python"):
        raise RunFailed("pip install failed")
