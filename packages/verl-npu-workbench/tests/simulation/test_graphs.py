"""A vLLM engine is refused before it starts if nobody has compared the graphs that it would capture; others start."""

from __future__ import annotations

from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from verl_npu_workbench.simulation.graphs import TRIED, check_eager, note_weights, refuse_graphs

from verl_npu.errors import JobSettingError
from verl_npu.features.weight_sync.engines.captured import moved


def settings(mode: str | None, device: str = "npu", additional: dict[str, Any] | None = None) -> Any:
    kind = None if mode is None else SimpleNamespace(name=mode)
    return SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        compilation_config=SimpleNamespace(cudagraph_mode=kind),
        additional_config=additional,
    )


@pytest.fixture(params=[*TRIED, "0.18.0", None])
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Install a release of vllm-ascend, as pip sees it."""

    def version(name: str) -> str:
        if request.param is None:
            raise metadata.PackageNotFoundError(name)
        return str(request.param)

    monkeypatch.setattr(metadata, "version", version)
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "FULL"])
def test_an_engine_with_graphs_that_were_not_compared_is_refused_in_one_line(mode: str, release: str | None) -> None:
    if mode in TRIED.get(release or "", ()):
        return check_eager(settings(mode))
    with pytest.raises(JobSettingError) as caught:
        check_eager(settings(mode))
    said = str(caught.value)
    of = f"with vllm-ascend {release or 'of an unknown release'}"
    assert f"found enforce_eager=False, which gives cudagraph_mode {mode}, {of}; set enforce_eager=True" in said
    assert "\n" not in said
    return None


def test_the_refusal_names_what_was_compared() -> None:
    with pytest.raises(JobSettingError) as caught:
        check_eager(settings("FULL"))
    for release, modes in TRIED.items():
        assert f"vllm-ascend {release} with cudagraph_mode {' or '.join(modes)}" in str(caught.value)


def test_torchair_is_refused_whatever_the_mode() -> None:
    with pytest.raises(JobSettingError, match=r"found torchair_graph_config\.enabled in additional_config"):
        check_eager(settings("NONE", additional={"torchair_graph_config": {"enabled": True}}))


@pytest.mark.parametrize(
    "eager",
    [
        settings("NONE"),
        settings(None),
        settings("NONE", additional={"torchair_graph_config": {"enabled": False}, "refresh": True}),
        settings("PIECEWISE", device="cpu"),
    ],
)
def test_an_engine_without_graphs_or_of_another_device_is_not(eager: Any) -> None:
    check_eager(eager)


def test_vllm_asks_when_it_chooses_an_executor() -> None:
    class Executor:
        @staticmethod
        def get_class(vllm_config: object) -> str:
            return "chosen"

    module = ModuleType("vllm.v1.executor.abstract")
    module.Executor = Executor  # type: ignore[attr-defined]
    refuse_graphs(module)
    assert Executor.get_class(settings("NONE")) == "chosen"
    with pytest.raises(JobSettingError):
        Executor.get_class(settings("FULL"))


def test_vllm_ascend_notes_where_its_weights_lie_when_it_has_captured_its_graphs() -> None:
    torch = pytest.importorskip("torch")
    from verl_npu.features.weight_sync.engines.captured import remembered
    from verl_npu.features.weight_sync.engines.layout import layouts_of

    class NPUModelRunner:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(2, 2)

        def capture_model(self) -> str:
            self.model.weight = torch.nn.Parameter(torch.ones(2, 2))
            return "captured"

    module = ModuleType("vllm_ascend.worker.model_runner_v1")
    module.NPUModelRunner = NPUModelRunner  # type: ignore[attr-defined]
    note_weights(module)
    runner = NPUModelRunner()
    assert runner.capture_model() == "captured"
    runner.model.bias = torch.nn.Parameter(torch.ones(2))
    layouts = layouts_of(runner.model)
    assert list(moved(remembered(runner.model, layouts), layouts)) == ["bias"]
