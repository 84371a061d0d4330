"""Overrides are read as a user types them and from scripts as they are; some cannot be judged."""

from __future__ import annotations

import pytest

from verl_npu.errors import CommandError
from verl_npu.features.megatron.contract import NEWEST, Contract, recorded_as
from verl_npu.features.megatron.request import Engine, Request, effective, not_judged, requests
from verl_npu.features.megatron.rules import in_words, problems

from .conftest import REVISIONS

ACTOR = "actor_rollout_ref.actor.megatron"
OVERRIDE = f"+{ACTOR}.override_transformer_config"


@pytest.fixture
def contract() -> Contract:
    """Return one contract: how a request is read is no matter of the revision."""
    return recorded_as(NEWEST)


def only(text: str) -> Request:
    (request,) = requests(text)
    return request


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("false", False),
        ("null", None),
        ("2", 2),
        ("0.5", 0.5),
        ("[1,2]", [1, 2]),
        ("[[1,2],[3]]", [[1, 2], [3]]),
        ("'\"2\"'", "2"),
        ("full", "full"),
    ],
)
def test_a_value_is_read_as_hydra_reads_it(text: str, value: object) -> None:
    assert only(f"key={text}").overrides == {"key": value}


def test_a_line_that_is_a_comment_has_no_overrides() -> None:
    request = only(f"python3 -m verl \\\n  {OVERRIDE}.a=1\n  # don't: {OVERRIDE}.b=2\n")
    assert request.overrides == {"a": 1}


def test_a_script_may_end_in_a_continued_line() -> None:
    assert only(f"python3 -m verl \\\n  {OVERRIDE}.a=1 \\").overrides == {"a": 1}


@pytest.mark.parametrize("text", ["a='b", "trainer.nnodes=1"])
def test_what_is_no_override_of_megatrons_is_one_clear_error(text: str) -> None:
    with pytest.raises(CommandError, match="expected 'key=value …', or a Hydra command line"):
        requests(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("$TP", "is a shell variable"),
        ("${TP}", "is a shell variable"),
        ("${TP:-2}", "is a shell variable"),
        ("[1,$N]", "is a shell variable"),
        ('"$TP"', "is a shell variable"),
        ("$((2*TP))", "is computed by the shell"),
        ("`nproc`", "is computed by the shell"),
        (f"${{{ACTOR}.context_parallel_size}}", "is a reference to another setting"),
    ],
)
def test_a_value_that_is_yet_to_be_computed_is_named_and_not_judged(contract: Contract, text: str, kind: str) -> None:
    request = only(f"{ACTOR}.context_parallel_size={text} {OVERRIDE}.context_parallel_size=2")
    ((name, value),) = not_judged(request, contract).items()
    assert (name, value.kind) == ("megatron.context_parallel_size", kind)
    assert list(problems(request, contract)) == []


def test_a_size_that_is_yet_to_be_computed_is_filled_in_as_it_is_written() -> None:
    assert str(effective(only(f"{ACTOR}.context_parallel_size=$CP"))["context_parallel_size"]) == "$CP"


def test_flash_attention_is_filled_in_as_the_opposite_of_an_unknown_value() -> None:
    settings = effective(only(f"{OVERRIDE}.use_flash_attn_npu_batch_invariant=$BI"))
    assert str(settings["use_flash_attn"]) == "not $BI"


def test_a_dollar_sign_alone_is_a_value(contract: Contract) -> None:
    assert not_judged(only("key=a$"), contract) == {}


@pytest.mark.parametrize(
    "text",
    [
        f"{OVERRIDE}.use_fused_rotary_pos_emb=True {OVERRIDE}.position_embedding_type=$PE",
        f"{OVERRIDE}.use_ascend_mc2=True {ACTOR}.tensor_model_parallel_size=$TP",
        f"{OVERRIDE}.swap_optimizer=True {ACTOR}.use_distributed_optimizer=$DO",
        f"{OVERRIDE}.use_flash_attn=$FA",
        f"{OVERRIDE}.moe_grouped_gemm=$GG",
        f"{OVERRIDE}.swap_optimizer=True {OVERRIDE}.reuse_fp32_param=$RP",
    ],
)
def test_a_combination_that_depends_on_an_unknown_value_is_not_refused(contract: Contract, text: str) -> None:
    assert list(problems(only(text), contract)) == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_flash_attention_is_not_judged_if_it_may_be_replaced(revision: str) -> None:
    # Most revisions refuse the key because they do not know it.
    contract = recorded_as(revision)
    request = only(f"{OVERRIDE}.use_flash_attn_npu_batch_invariant=$BI")
    assert not [problem for problem in problems(request, contract) if problem.subject.startswith("use_flash_attn=")]


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        ("moe_token_dispatcher_type=allgather", "moe_token_dispatcher_type=allgather"),
        ("moe_grouped_gemm=yes", "moe_grouped_gemm='yes'"),
        ("bogus=1", "bogus=1"),
        ("moe_fb_overlap=True moe_grouped_gemm=False", "moe_fb_overlap=True"),
    ],
)
def test_what_does_not_depend_on_an_unknown_value_is_still_refused(
    contract: Contract, overrides: str, refused: str
) -> None:
    text = " ".join(f"{OVERRIDE}.{word}" for word in overrides.split())
    request = only(f"{ACTOR}.context_parallel_size=$CP {OVERRIDE}.swap_optimizer=$SO {text}")
    assert refused in [problem.subject for problem in problems(request, contract)]


def test_a_size_that_is_no_number_is_refused(contract: Contract) -> None:
    (problem,) = problems(only(f"{ACTOR}.context_parallel_size=two"), contract)
    assert in_words(problem).startswith(
        "(megatron.context_parallel_size=two): expected a whole number; found the text 'two'"
    )


LLM = "actor_rollout_ref.actor.mindspeed"


def test_mindspeed_llm_is_asked_through_a_section_of_its_own(contract: Contract) -> None:
    request = only(f"{LLM}.tensor_model_parallel_size=4 +{LLM}.mcore_kwargs.recompute_method=uniform")
    assert request.engine is Engine.MINDSPEED_LLM
    assert request.section["tensor_model_parallel_size"] == 4
    # Upstream's mindspeed.yaml gives the other overrides in any case.
    assert (request.overrides["recompute_method"], request.overrides["seq_length"]) == ("uniform", 10240)


def test_what_only_mindspeed_llm_may_know_is_not_judged(contract: Contract) -> None:
    request = only(f"{LLM}.mcore_kwargs.spec='[mindspeed_llm.spec, layer_spec]' +{LLM}.mcore_kwargs.of_its_own=True")
    assert "of_its_own" in not_judged(request, contract)
    assert list(problems(request, contract)) == []


def test_nothing_of_mindspeed_llm_is_refused_for_what_was_shown_with_another_engine(contract: Contract) -> None:
    (problem,) = problems(
        only(f"{LLM}.mcore_kwargs.use_flash_attn=False {LLM}.mcore_kwargs.seq_length=null"), contract
    )
    assert (problem.subject, problem.refused) == ("use_flash_attn=False", False)


def test_the_name_that_upstreams_documents_give_the_overrides_of_mindspeed_llm_is_refused(contract: Contract) -> None:
    (problem,) = problems(only(f"+{LLM}.llm_kwargs.moe_grouped_gemm=True"), contract)
    assert (problem.refused, problem.fix) == (True, "write mindspeed.mcore_kwargs instead")


def test_overrides_that_mindspeed_llm_does_not_read_are_said(contract: Contract) -> None:
    (problem,) = problems(only(f"+{LLM}.override_transformer_config.moe_grouped_gemm=True"), contract)
    assert problem.subject == "(mindspeed.override_transformer_config.moe_grouped_gemm)"
    assert not problem.refused


def test_the_references_overrides_are_the_actors_until_one_of_its_own_is_given() -> None:
    text = f"{OVERRIDE}.moe_grouped_gemm=True a.ref.megatron.tensor_model_parallel_size=2"
    actor, ref = requests(text.replace("a.ref", "actor_rollout_ref.ref"))
    assert ref.overrides == actor.overrides == {"moe_grouped_gemm": True}
    other = "+actor_rollout_ref.ref.megatron.override_transformer_config.hidden_dropout=0.1"
    assert requests(f"{text} {other}")[-1].overrides == {"hidden_dropout": 0.1}
