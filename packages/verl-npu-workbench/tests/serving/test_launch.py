"""With what a server is started, and what is refused before it is."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from verl_npu_workbench.serving.launch import Engine, Launch, check, engine

from verl_npu.errors import ServingError

Install = Callable[[str], None]


def launch(model: Path | str = "m", kind: Engine = Engine.CPU, **more: object) -> Launch:
    given: dict[str, object] = {
        "model": str(model),
        "engine": kind,
        "host": "127.0.0.1",
        "port": 0,
        "name": "small",
        "tensor_parallel": 1,
        "dtype": "auto",
        "max_model_len": None,
        "more": (),
    }
    return Launch(**given | more)  # type: ignore[arg-type]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without torch_npu, vLLM and virtual NPUs, whatever this one has."""
    found = importlib.util.find_spec
    hidden = ("torch_npu", "vllm", "vllm_ascend")

    def find_spec(name: str, package: str | None = None) -> object:
        spec = found(name, package)
        return None if name in hidden and spec and str(tmp_path) not in str(spec.origin) else spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    # An earlier test may have loaded virtual NPUs into this process: what is loaded is found before any path is read.
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.delenv("VIRTUAL_ASCEND", raising=False)


@pytest.mark.parametrize("release", ["0.11.0", "0.18.0"])
@pytest.mark.parametrize("kind", list(Engine))
def test_graphs_are_switched_off_on_virtual_npus_alone_where_nobody_has_compared_them(
    kind: Engine, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: release)
    off = kind is Engine.VIRTUAL and release == "0.18.0"
    assert ("--enforce-eager" in launch(kind=kind).command()) is off


def test_vllms_own_options_come_last_and_win() -> None:
    assert launch(max_model_len=64, more=("--max-model-len", "128")).command()[-4:] == [
        "--max-model-len",
        "64",
        "--max-model-len",
        "128",
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:0"),
        ("0.0.0.0", "http://127.0.0.1:0"),
        ("::1", "http://[::1]:0"),
        ("node1", "http://node1:0"),
    ],
)
def test_where_it_answers(host: str, url: str) -> None:
    assert launch(host=host).url == url


@pytest.mark.usefixtures("bare")
def test_the_engine_is_told_by_what_is_installed(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServingError, match=r"vLLM on the CPU: expected the package vllm in .*, found none"):
        engine()
    install("vllm")
    assert engine() is Engine.CPU
    install("torch_npu")
    with pytest.raises(ServingError, match=r"vllm-ascend on NPUs: expected the package vllm-ascend"):
        engine()
    install("vllm_ascend")
    assert engine() is Engine.NPU
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    assert engine() is Engine.VIRTUAL


@pytest.mark.usefixtures("bare")
def test_vllm_ascend_is_kept_from_claiming_a_machine_without_npus(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert "VLLM_PLUGINS" not in launch().environment()
    install("vllm_ascend")
    assert launch().environment()["VLLM_PLUGINS"] == "verl_npu"
    assert "VLLM_PLUGINS" not in launch(kind=Engine.NPU).environment()
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert launch().environment()["VLLM_PLUGINS"] == "mine"


def test_a_checkpoint_is_to_be_merged_first(tmp_path: Path) -> None:
    (tmp_path / "actor").mkdir()
    (tmp_path / "actor" / "model_world_size_1_rank_0.pt").touch()
    with pytest.raises(ServingError, match=r"found a checkpoint; verl-npu merge"):
        check(launch(tmp_path))


def test_ranks_that_do_not_divide_the_heads_are_refused(model: Path) -> None:
    check(launch(model, tensor_parallel=2))
    with pytest.raises(
        ServingError, match=r"--tensor-parallel-size 3: expected a divisor of the model's 4 .* 1, 2, 4"
    ):
        check(launch(model, tensor_parallel=3))


def test_a_port_that_is_taken_is_refused(model: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServingError, match=rf"127\.0\.0\.1:{port}: expected a port that is free, found Address"):
            check(launch(model, port=port))


def test_it_is_this_pythons_vllm() -> None:
    assert launch().command()[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
