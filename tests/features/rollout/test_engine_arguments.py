"""The user's arguments reach the engine; arguments that it does not know end the job before its first process."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verl_npu.errors import JobSettingError
from verl_npu.features.rollout import give_engine_the_users_arguments, rules
from verl_npu.registry.source.tree import SourceTree

omegaconf = pytest.importorskip("omegaconf")

SPMD = "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd"
OWN = {"dtype": "bfloat16", "enable_prefix_caching": True, "compilation_config": {"level": 0}}


def settings(mode: str = "sync", kwargs: object = None, **engine: Any) -> Any:
    return omegaconf.OmegaConf.create(
        {"name": "vllm", "mode": mode, "enforce_eager": True, "engine_kwargs": {"vllm": kwargs}, **engine}
    )


def refuse_unknown_arguments(config: Any) -> None:
    rules.check(config, ("rollout.engine_arguments", "rollout.unread_arguments"))


def job(*args: Any, **kwargs: Any) -> Any:
    return omegaconf.OmegaConf.create({"actor_rollout_ref": {"rollout": settings(*args, **kwargs)}})


# Arguments that the engine gets.


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Return the arguments with which upstream's module made engines."""
    engines: list[dict[str, object]] = []
    module = ModuleType(SPMD)
    module.LLM = lambda **given: engines.append(given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, SPMD, module)
    return engines


def build(config: Any) -> None:
    """Pass upstream's own arguments and then engine_kwargs, as upstream does."""

    def original(engine: object, model_path: str, config: Any, **kwargs: object) -> None:
        given = omegaconf.OmegaConf.to_container(config.engine_kwargs.vllm or omegaconf.OmegaConf.create())
        sys.modules[SPMD].LLM(**OWN, **given)  # type: ignore[attr-defined]

    give_engine_the_users_arguments(original, object(), "model", config)


def test_an_argument_that_upstream_gives_too_is_the_users(built: list[dict[str, object]]) -> None:
    build(settings(kwargs={"enable_prefix_caching": False, "dtype": None, "max_logprobs": 3}))
    assert built == [{**OWN, "enable_prefix_caching": False, "max_logprobs": 3}]


def test_mappings_are_merged_and_never_replaced(built: list[dict[str, object]]) -> None:
    asked = {"compilation_config": {"use_inductor": False}, "additional_config": {"refresh": True}}
    build(settings(kwargs=asked, cudagraph_capture_sizes=[1, 8], enforce_eager=False))
    assert built[0]["compilation_config"] == {"level": 0, "use_inductor": False, "cudagraph_capture_sizes": [1, 8]}
    assert built[0]["additional_config"] == {"refresh": True}
    assert all(type(value) is not omegaconf.DictConfig for value in built[0].values())


def test_graph_sizes_of_the_user_win_over_those_of_the_rollout(built: list[dict[str, object]]) -> None:
    asked = {"compilation_config": {"cudagraph_capture_sizes": [4]}}
    build(settings(kwargs=asked, cudagraph_capture_sizes=[1, 8], enforce_eager=False))
    assert built[0]["compilation_config"] == {"level": 0, "cudagraph_capture_sizes": [4]}


def test_graph_sizes_that_are_no_list_reach_the_engine(built: list[dict[str, object]]) -> None:
    build(settings(cudagraph_capture_sizes=8, enforce_eager=False))
    assert built[0]["compilation_config"] == {"level": 0, "cudagraph_capture_sizes": 8}


def test_an_engine_with_graphs_of_which_nobody_named_the_sizes_captures_few(built: list[dict[str, object]]) -> None:
    build(settings(enforce_eager=False))
    sizes = [8, 16, 32, 64, 128, 192, 256, 384]
    assert built[0]["compilation_config"] == {"level": 0, "cudagraph_capture_sizes": sizes}


def test_sizes_that_vllm_reckons_for_the_user_stay_its_own(built: list[dict[str, object]]) -> None:
    build(settings(kwargs={"cuda_graph_sizes": [64]}, enforce_eager=False))
    assert built[0]["compilation_config"] == {"level": 0}


def test_an_eager_engine_gets_no_graph_sizes(built: list[dict[str, object]]) -> None:
    build(settings(cudagraph_capture_sizes=[1, 8], enforce_eager=True))
    assert built == [OWN]


def test_settings_of_the_rollout_that_upstream_does_not_hand_over_arrive(built: list[dict[str, object]]) -> None:
    build(settings(max_num_seqs=64, enable_expert_parallel=True))
    assert built == [{**OWN, "max_num_seqs": 64, "enable_expert_parallel": True}]


def test_upstreams_default_of_a_setting_that_never_arrived_stays_away(built: list[dict[str, object]]) -> None:
    build(settings(max_num_seqs=1024, enable_expert_parallel=False))
    assert built == [OWN]


def test_the_users_configuration_and_upstreams_module_stay_as_they_are(built: list[dict[str, object]]) -> None:
    config = settings(kwargs={"enable_prefix_caching": False})
    before = sys.modules[SPMD].LLM  # type: ignore[attr-defined]
    build(config)
    assert config == settings(kwargs={"enable_prefix_caching": False})
    assert sys.modules[SPMD].LLM is before  # type: ignore[attr-defined]


# Arguments that the engine does not know.

ENGINE = """
class EngineArgs:
    model: str
    max_num_seqs: int
    enable_prefix_caching: bool
    def add_cli_args(parser):
        parser.add_argument("--max-logprobs")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "vllm/engine/arg_utils.py": ENGINE,
        "vllm/entrypoints/openai/cli_args.py": "class FrontendArgs:\n    tool_call_parser: str",
        "verl/workers/rollout/vllm_rollout/vllm_async_server.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tree = SourceTree.at(tmp_path, ("vllm", "verl"))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)
    return tmp_path


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "key", ["enable_prefix_caching", "max-logprobs", "max_logprob", "no_enable_prefix_caching", "tool_call_parser"]
)
def test_what_vllms_source_mentions_passes(key: str) -> None:
    refuse_unknown_arguments(job(kwargs={key: 1}))


@pytest.mark.usefixtures("site")
def test_what_it_does_not_mention_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(JobSettingError, match=r"found max_logbrobs, which .* did you mean max_logprobs\?"):
        refuse_unknown_arguments(job(kwargs={"max_logbrobs": 1}))


@pytest.mark.usefixtures("site")
def test_expert_parallelism_of_the_rollout_counts() -> None:
    with pytest.raises(JobSettingError, match="found enable_expert_parallel, which"):
        refuse_unknown_arguments(job(enable_expert_parallel=True))


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("value", [None, False])
def test_what_upstream_leaves_out_of_the_command_line_passes(value: object) -> None:
    refuse_unknown_arguments(job(kwargs={"disable_mm_preprocessor_cache": value}))


@pytest.mark.parametrize("module", ["vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py"])
def test_a_vllm_that_keeps_its_arguments_elsewhere_is_not_judged(site: Path, module: str) -> None:
    (site / module).unlink()
    refuse_unknown_arguments(job(kwargs={"anything": 1}))


@pytest.mark.usefixtures("site")
def test_another_engine_is_left() -> None:
    refuse_unknown_arguments(job(kwargs={"anything": 1}, name="sglang"))


# A server that reads none of them.


SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"


def test_arguments_that_the_server_does_not_read_are_said(site: Path, said: list[str]) -> None:
    (site / SERVER).write_text("config.rollout")
    refuse_unknown_arguments(job("async", {"tool_call_parser": "hermes"}, max_num_seqs=7))
    (line,) = said
    assert line.startswith(
        "actor_rollout_ref.rollout.engine_kwargs.vllm: with rollout.mode=async, the installed verl's "
    )
    assert "so max_num_seqs, tool_call_parser have no effect; use rollout.mode=sync" in line


@pytest.mark.parametrize(("mode", "server"), [("sync", "config.rollout"), ("async", "config.engine_kwargs")])
def test_nothing_is_said_where_they_are_read(mode: str, server: str, site: Path, said: list[str]) -> None:
    (site / SERVER).write_text(server)
    refuse_unknown_arguments(job(mode, {"tool_call_parser": "hermes"}))
    assert said == []


# A server that joins a list into one word.

LIST_AS_ONE_WORD = """
for k, v in args.items():
    if isinstance(v, bool):
        words.append(f"--{k}")
    else:
        words += [f"--{k}", str(v)]
"""
LIST_AS_WORDS = LIST_AS_ONE_WORD.replace("    else:", "    elif isinstance(v, list):\n        words += v\n    else:")
SIZES = [({"cudagraph_capture_sizes": [8, 64]}, ""), ({"kwargs": {"cuda_graph_sizes": [8]}}, "engine_kwargs.vllm.")]


def refuse_lists(mode: str = "async", kwargs: object = None, **engine: Any) -> None:
    rules.check(job(mode, kwargs, **engine), ("rollout.sizes_in_one_word",))


@pytest.mark.parametrize(("asked", "where"), SIZES)
def test_sizes_are_refused_where_they_would_be_one_word(site: Path, asked: dict[str, Any], where: str) -> None:
    (site / SERVER).write_text(LIST_AS_ONE_WORD)
    with pytest.raises(JobSettingError, match=rf"rollout\.{where}cud.*the list \[8.*, and vLLM exits"):
        refuse_lists(**asked)


def test_the_fix_is_a_setting_that_hydra_reads_as_the_json_that_vllm_wants(site: Path) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (site / SERVER).write_text(LIST_AS_ONE_WORD)
    with pytest.raises(JobSettingError) as refused:
        refuse_lists(cudagraph_capture_sizes=[8, 64])
    (word,) = shlex.split(str(refused.value.fix).partition("as JSON: ")[2])
    override = OverridesParser.create().parse_override(word)
    assert override.key_or_group == "actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config"
    assert json.loads(str(override.value())) == {"cudagraph_capture_sizes": [8, 64]}


@pytest.mark.parametrize("asked", [asked for asked, _ in SIZES])
def test_sizes_are_not_refused_where_each_is_a_word(site: Path, asked: dict[str, Any]) -> None:
    (site / SERVER).write_text(LIST_AS_WORDS)
    refuse_lists(**asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "sync", "cudagraph_capture_sizes": [8]},
        {"name": "sglang", "cudagraph_capture_sizes": [8]},
        {"agent": {"custom_async_server": {"path": "pkg://mine"}}, "cudagraph_capture_sizes": [8]},
        {"cudagraph_capture_sizes": None},
        {"cudagraph_capture_sizes": []},
        {"kwargs": {"compilation_config": {"cudagraph_capture_sizes": [8]}}},
    ],
)
def test_what_that_server_does_not_turn_into_words_passes(site: Path, asked: dict[str, Any]) -> None:
    (site / SERVER).write_text(LIST_AS_ONE_WORD)
    refuse_lists(**asked)


# Upstream's own releases.

Source = Callable[[str, str], Path]


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("release", "unknown"),
    [
        ("0.7.3", {"enable_expert_parallel", "data_parallel_size", "mm_processor_cache_gb"}),
        ("0.9.1", {"mm_processor_cache_gb"}),
        ("0.11.0", set[str]()),
        ("0.13.0", {"disable_mm_preprocessor_cache"}),
        ("0.23.0", {"disable_mm_preprocessor_cache"}),
    ],
)
def test_what_verls_scripts_ask_of_releases_of_vllm(
    release: str, unknown: set[str], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = SourceTree.at(source("vllm", f"v{release}"), ("vllm",))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)
    always = {
        "compilation_config",
        "additional_config",
        "max_model_len",
        "tool_call_parser",
        "enable_auto_tool_choice",
    }
    new = {"enable_expert_parallel", "data_parallel_size", "mm_processor_cache_gb", "disable_mm_preprocessor_cache"}
    refuse_unknown_arguments(job(kwargs=dict.fromkeys((always | new) - unknown, True)))
    for key in unknown:
        with pytest.raises(JobSettingError, match=f"found {key}, "):
            refuse_unknown_arguments(job(kwargs={key: True}))


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("pin", "read"), [("796871d7", False), ("v0.6.1", True), ("ccd7d934", True), ("v0.9.1", True)]
)
def test_which_servers_of_upstreams_read_them(
    pin: str, read: bool, source: Source, site: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm = SourceTree.at(site, ("vllm",))
    whole = vllm.with_packages(SourceTree.at(source("verl", pin), ("verl",)))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: whole)
    refuse_unknown_arguments(job("async", {"tool_call_parser": "hermes"}))
    assert bool(said) is not read


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("pin", "refused"),
    [
        ("796871d7", False),
        ("v0.6.1", True),
        ("ccd7d934", True),
        ("v0.7.0", True),
        ("v0.7.1", False),
        ("v0.8.0", False),
        ("v0.9.0", False),
        ("v0.9.1", False),
        ("1dda039b", False),
    ],
)
def test_which_servers_of_upstreams_make_one_word_of_a_list(pin: str, refused: bool, source: Source) -> None:
    tree = SourceTree.at(source("verl", pin), ("verl",))
    assert bool(list(rules.sizes_in_one_word(job("async", cudagraph_capture_sizes=[8, 64]), tree))) is refused
