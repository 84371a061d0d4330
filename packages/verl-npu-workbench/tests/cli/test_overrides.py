from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from verl_npu.cli import main
from verl_npu.pins import pins

REVISION = ("--revision", "2.3.0_core_r0.12.1")
COMMAND = """python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer \\
    data.train_files=x.parquet \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.use_ascend_mc2=True \\
    critic.megatron.tensor_model_parallel_size=2 \\
    {critic}"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["lint", *arguments])
    return result.exit_code, result.output


def test_the_list_has_the_exact_overrides_and_says_what_is_missing() -> None:
    status, output = run("--list-overrides", "--json", *REVISION)
    rows = {row["name"]: row for row in json.loads(output)["features"]}
    assert status == 0
    assert rows["flash attention"]["overrides"] == [
        "+actor_rollout_ref.actor.megatron.override_transformer_config.use_flash_attn=True"
    ]
    assert [name for name, row in rows.items() if not row["here"]] == ["checkpoint acceleration"]
    assert rows["checkpoint acceleration"]["missing"] == ["ckpt_acceleration"]


def test_the_list_for_people_names_each_override() -> None:
    status, output = run("--list-overrides", *REVISION)
    assert status == 0
    assert output.startswith("MindSpeed 2.3.0_core_r0.12.1 (as recorded), Megatron 0.12.1")
    assert "+actor_rollout_ref.actor.megatron.override_transformer_config.use_fused_rotary_pos_emb=True" in output


def test_good_overrides_are_shown_as_mindspeed_gets_them() -> None:
    status, output = run("--overrides", "recompute_granularity=selective", *REVISION)
    assert status == 0
    assert "in order; MindSpeed gets recompute_granularity=selective, use_flash_attn=True" in output


def test_a_bad_override_is_refused_with_status_1() -> None:
    status, output = run("--overrides", "use_flash_atn=True", *REVISION)
    assert status == 1
    assert "write use_flash_attn or" in output


def test_a_whole_command_line_is_judged_worker_by_worker() -> None:
    text = COMMAND.format(critic="+critic.megatron.override_transformer_config.use_fused_rotary_pos_emb=True")
    status, output = run("--overrides", text, "--json", *REVISION)
    workers = {worker["worker"]: worker for worker in json.loads(output)["workers"]}
    assert status == 1
    assert workers["actor_rollout_ref.actor"]["problems"] == []
    assert workers["actor_rollout_ref.actor"]["effective"]["tensor_model_parallel_size"] == 2
    assert workers["critic"]["problems"][0]["override"] == "use_fused_rotary_pos_emb=True"
    assert workers["critic"]["problems"][0]["refused"]


def test_workers_that_cannot_share_a_process_are_noted() -> None:
    status, output = run("--overrides", COMMAND.format(critic=""), *REVISION)
    assert status == 0
    assert "note: actor_rollout_ref.actor and critic differ in " in output


def test_a_shell_variable_is_not_judged_and_that_is_said() -> None:
    text = COMMAND.format(critic="critic.megatron.context_parallel_size=${CP}")
    status, output = run("--overrides", text, *REVISION)
    assert status == 0
    assert "critic: in order, as far as it can be judged; MindSpeed gets use_flash_attn=True, " in output
    assert "critic: not judged: megatron.context_parallel_size=${CP} is a shell variable\n" in output
    assert "note: to have the rest judged, too, write values instead of variables" in output


def test_what_is_not_judged_is_in_the_json() -> None:
    status, output = run("--overrides", "hidden_dropout=$P", "--json", *REVISION)
    (worker,) = json.loads(output)["workers"]
    assert status == 0
    assert (worker["not_judged"], worker["effective"]["hidden_dropout"]) == ({"hidden_dropout": "$P"}, "$P")


def test_workers_are_not_said_to_differ_in_an_unknown_value() -> None:
    text = "a.megatron.override_transformer_config.moe_grouped_gemm=$X b.megatron.context_parallel_size=1"
    status, output = run("--overrides", text, *REVISION)
    assert status == 0
    assert "cannot share" not in output


@pytest.mark.parametrize("text", ["bogus=\x1b[31mred", "\x1b]0;title\x07=1 a=1", "hidden_dropout=[red]x"])
def test_the_users_text_does_not_steer_the_terminal(text: str) -> None:
    _, output = run("--overrides", text, *REVISION)
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "[red]" in output or "\\x1b" in output


def scripts_for_npus(pin: str) -> dict[Path, str]:
    """Return the scripts of a pin that are for NPUs and set a value of Megatron's or MindSpeed-LLM's."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS") or "none") / f"verl-{pin}"
    if not folder.is_dir():
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {folder.name}/")
    texts = {path: path.read_text() for path in folder.rglob("*.sh")}
    sections, npus = re.compile(r"\.(megatron|mindspeed)\."), re.compile(r"(?<![a-z])npu|hccl|mindspeed|ascend", re.I)
    return {path: text for path, text in texts.items() if sections.search(text) and npus.search(text)}


@pytest.mark.upstream
@pytest.mark.parametrize("pin", [pin.name for pin in pins().values() if pin.commit])
def test_no_script_of_upstreams_is_refused_or_ends_in_a_traceback(pin: str) -> None:
    """Needs VERL_NPU_UPSTREAMS, a folder with `verl-<pin>/`."""
    scripts = scripts_for_npus(pin)
    assert scripts
    # Each is judged with the MindSpeed that the documents of the pin or the recipe name. Status 0: everything was
    # read, and nothing is refused.
    answers = {path: run("--pin", pin, "--overrides", text) for path, text in scripts.items()}
    assert {path.name: output for path, (status, output) in answers.items() if status} == {}


def test_what_only_some_revisions_refuse_is_a_warning_if_none_is_chosen_and_none_is_installed() -> None:
    status, output = run("--overrides", "use_fused_rotary_pos_emb=True")
    assert status == 0
    assert "all recorded revisions were used; choose one revision with --pin or --revision" in output
    assert "the overrides: warning: use_fused_rotary_pos_emb=True: expected position_embedding_type=rope" in output
    assert "this applies to MindSpeed 2.2.0_core_r0.12.1" in output


def test_a_pin_stands_for_the_mindspeed_that_its_documents_name() -> None:
    _, output = run("--pin", "v0.7.1", "--overrides", "hidden_dropout=0.1")
    assert output.startswith("MindSpeed 2.3.0_core_r0.12.1 (as recorded)")


def test_a_recipe_may_name_another_mindspeed_than_its_pin() -> None:
    text = "python3 -m recipe.r1_ascend.main_ppo a.megatron.override_transformer_config.hidden_dropout=0.1"
    _, output = run("--pin", "ccd7d934", "--overrides", text)
    assert output.startswith("MindSpeed f6688 (as recorded)")


def test_a_script_for_mindspeed_llm_is_judged() -> None:
    text = "python3 -m verl model_engine=mindspeed +a.actor.mindspeed.mcore_kwargs.of_its_own=True"
    status, output = run("--pin", "v0.8.0", "--overrides", text)
    assert status == 0
    assert "a.actor: not judged: of_its_own=True may be an argument of MindSpeed-LLM" in output


def test_a_mindspeed_that_was_never_run_saves_no_override_from_refusal() -> None:
    status, output = run("--overrides", "use_flash_atn=True")
    assert (status, "the overrides: refused: use_flash_atn=True" in output) == (1, True)


@pytest.mark.parametrize(
    ("pin", "own", "expected"),
    [
        ("v0.8.0", "", 1),
        ("v0.9.0", "", 0),
        ("1dda039b", "", 0),
        ("v0.9.0", " a.actor.megatron.vanilla_mbridge=True", 1),
    ],
)
def test_megatron_bridge_is_the_default_from_0_9_0_on(pin: str, own: str, expected: int) -> None:
    text = f"a.actor.megatron.override_transformer_config.use_ascend_gdn=True{own}"
    status, output = run("--pin", pin, "--overrides", text)
    assert (status, "use_ascend_gdn" in output) == (expected, True)


def test_a_pin_and_a_revision_are_not_asked_for_together() -> None:
    status, output = run("--pin", "v0.7.1", *REVISION, "--overrides", "a=1")
    assert status == 2
    assert "--revision and --pin exclude each other" in output


@pytest.mark.parametrize("text", ["", "nothing = of Megatron's", "trainer.nnodes=1", "a='b"])
def test_a_text_that_is_no_override_is_one_clear_error(text: str) -> None:
    status, output = run("--overrides", text, *REVISION)
    assert status == 2
    assert "Hydra command line with <worker>.megatron.override_transformer_config.key=value" in output


@pytest.mark.parametrize("arguments", [(), ("--list-overrides", "--overrides", "a=1")])
def test_one_of_list_and_check_is_asked_for(arguments: tuple[str, ...]) -> None:
    status, output = run(*arguments)
    assert status == 2
    assert "give one of SCRIPT, --overrides WHAT, and --list-overrides" in output


def test_an_unknown_revision_is_answered_with_the_known_ones() -> None:
    status, output = run("--list-overrides", "--revision", "9")
    assert status == 2
    assert "f2b0977e" in output


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; from verl_npu.cli import main\n"
        "try: main(['lint', '--overrides', 'use_flash_attn=False'])\n"
        "except SystemExit as end: print(end.code)\n"
        "print([name for name in ('torch', 'torch_npu', 'megatron', 'mindspeed', 'verl') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-2:] == ["1", "[]"]


def test_a_script_is_read_by_its_path(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(COMMAND.format(critic=""))
    assert run("--overrides", str(script), *REVISION) == run("--overrides", script.read_text(), *REVISION)


def test_a_script_without_megatron_is_named(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("export HCCL_BUFFSIZE=200\npython3 -m verl.trainer.main_ppo data.train_batch_size=8\n")
    status, output = run("--overrides", str(script))
    assert status == 2
    said = "expected a script with Megatron overrides; found no Megatron override"
    assert f"verl-npu: --overrides {script}: {said}" in output


def test_a_path_that_is_not_there_is_one_clear_error() -> None:
    status, output = run("--overrides", "no/such/run.sh")
    assert status == 2
    assert "no/such/run.sh: expected an override (key=value) or an existing file" in " ".join(output.split())
