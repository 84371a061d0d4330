from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType, SimpleNamespace

import pytest
from verl_npu_workbench.jobs.settings import Settings
from verl_npu_workbench.rehearse import preparation, reward
from verl_npu_workbench.rehearse.preparation import RolloutEngine, engine_for, rollout_engine, write_questions
from verl_npu_workbench.rehearse.reward import grade
from verl_npu_workbench.rehearse.small_model import ARCHITECTURES

from verl_npu.errors import CommandError


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders in which a stand-in makes small models."""
    folders: list[Path] = []

    def make(command: list[str], **options: object) -> CompletedProcess[str]:
        folders.append(Path(command[-1]))
        folders[-1].mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
            (folders[-1] / name).write_text(name)
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(preparation, "captured", make)
    return folders


@pytest.mark.parametrize("damage", [b"", b"model.s", b"m0del.safetensors"])
def test_a_kept_model_that_is_damaged_is_made_anew(tmp_path: Path, made: list[Path], damage: bytes) -> None:
    model = preparation.small_model_of(ARCHITECTURES[0], 2, tmp_path)
    assert (preparation.small_model_of(ARCHITECTURES[0], 2, tmp_path), len(made)) == (model, 1)
    (model / "model.safetensors").write_bytes(damage)
    assert (preparation.small_model_of(ARCHITECTURES[0], 2, tmp_path), len(made)) == (model, 2)
    assert (model / "model.safetensors").read_text() == "model.safetensors"
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.usefixtures("made")
def test_where_there_is_no_source_the_compiled_reward_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reward.pyc").write_bytes(b"\xa7\r\r\n")
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(reward, "__file__", str(tmp_path / "reward.pyc"))
    monkeypatch.setattr(preparation, "write_questions", lambda folder, *more: (folder, folder))
    job, layout = SimpleNamespace(settings=Settings({})), SimpleNamespace(pipeline=1, all_npus=1)
    request = preparation.Request(output=tmp_path)
    setup, _ = preparation.prepare(job, ARCHITECTURES[0], layout, tmp_path / "job", request, RolloutEngine())  # type: ignore[arg-type]
    assert setup.reward.read_bytes() == b"\xa7\r\r\n"


def test_a_model_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: object) -> CompletedProcess[str]:
        Path(command[-1]).mkdir(parents=True)
        return CompletedProcess(command, 1, "", "OSError: [Errno 28] No space left on device: 'x'\n")

    monkeypatch.setattr(preparation, "captured", fail)
    with pytest.raises(CommandError, match="free some disk space, or choose another --output"):
        preparation.small_model_of(ARCHITECTURES[0], 2, tmp_path)
    assert list(tmp_path.iterdir()) == []


ROLLOUT = "actor_rollout_ref.rollout"
AWAKE = {f"{ROLLOUT}.free_cache_engine": False}


def choice(name: str, asked: str = "auto", vllm: str = "", own_npus: bool = False, **more: object) -> RolloutEngine:
    settings = Settings({f"{ROLLOUT}.name": name, f"{ROLLOUT}.free_cache_engine": True, **more})
    return rollout_engine(settings, asked, own_npus, lambda package: {"vllm": vllm}[package])


def chosen(name: str, asked: str = "auto", vllm: str = "", **more: object) -> str:
    return choice(name, asked, vllm, **more).name


@pytest.mark.parametrize("own", ["hf", "naive", "virtual", "???", ""])
def test_what_needs_no_npu_stays_and_so_does_a_script_without_one(own: str) -> None:
    assert chosen(own, vllm="0.11.0") == ""


@pytest.mark.parametrize("own", ["vllm", "sglang"])
def test_transformers_takes_the_place_of_an_engine_that_is_not_installed(own: str) -> None:
    assert chosen(own) == "virtual"


def test_vllm_that_is_installed_stays() -> None:
    assert (chosen("vllm", vllm="0.11.0"), chosen("sglang", vllm="0.11.0")) == ("", "virtual")


SLEEPS: dict[str, tuple[Mapping[str, object], str]] = {
    "by default": ({}, "virtual"),
    "if it is asked to": ({f"{ROLLOUT}.enable_sleep_mode": True}, "virtual"),
    "not if it keeps its cache": (AWAKE, ""),
    "not if it is told not to": ({f"{ROLLOUT}.enable_sleep_mode": False}, ""),
    "not if the engine is told not to": ({f"{ROLLOUT}.engine_kwargs.vllm.enable_sleep_mode": False}, ""),
}


@pytest.mark.parametrize(("more", "engine"), SLEEPS.values(), ids=SLEEPS.keys())
def test_vllm_for_cpus_is_not_taken_where_it_would_have_to_sleep(more: Mapping[str, object], engine: str) -> None:
    assert chosen("vllm", vllm="0.11.0+cpu", **more) == engine


def test_the_user_has_the_last_word() -> None:
    assert chosen("vllm", asked="vllm", vllm="0.11.0+cpu") == ""
    assert chosen("sglang", asked="vllm", vllm="0.11.0+cpu") == "vllm"
    assert chosen("vllm", asked="virtual", vllm="0.11.0") == "virtual"


def test_what_stands_in_the_way_is_said() -> None:
    said = choice("vllm", vllm="0.11.0+cpu").note
    assert said.endswith("the installed vLLM 0.11.0+cpu has no sleep mode, which the script uses")


@pytest.mark.parametrize(("vllm", "no_sleep"), [("0.11.0+cpu", True), ("0.11.0", False)])
def test_a_rollout_with_npus_of_its_own_keeps_a_vllm_that_cannot_sleep(vllm: str, no_sleep: bool) -> None:
    found = choice("vllm", vllm=vllm, own_npus=True)
    assert (found.name, found.no_sleep) == ("", no_sleep)


@pytest.mark.parametrize(
    ("trainer", "refused"),
    [
        ("recipe.one_step_off_policy.main_ppo", True),
        ("recipe.fully_async_policy.fully_async_main", True),
        ("recipe.gkd.main_gkd", True),
        ("recipe.dapo.main_dapo", False),
        ("recipe.spin.main_spin", False),
        ("verl.trainer.main_ppo", False),
        ("verl.experimental.one_step_off_policy.main_ppo", False),
    ],
)
def test_a_trainer_that_syncs_weights_through_us_is_refused_without_vllm(trainer: str, refused: bool) -> None:
    settings = Settings({f"{ROLLOUT}.name": "vllm"})
    assert engine_for(trainer, settings, "auto", True, lambda package: "0.11.0+cpu").name == ""
    if not refused:
        assert engine_for(trainer, settings, "auto", True, lambda package: "").name == "virtual"
        return
    with pytest.raises(CommandError, match="no vLLM"):
        engine_for(trainer, settings, "auto", True, lambda package: "")
    with pytest.raises(CommandError, match="--rollout vllm"):
        engine_for(trainer, settings, "virtual", True, lambda package: "0.11.0+cpu")


@pytest.fixture
def pandas() -> ModuleType:
    pytest.importorskip("datasets")
    return pytest.importorskip("pandas")


READ = {"data_source", "prompt", "ability", "reward_model", "extra_info", "messages", "question", "answer"}


def test_the_columns_are_those_of_every_kind_of_training(pandas: ModuleType, tmp_path: Path) -> None:
    train, test = write_questions(tmp_path, "openai/gsm8k", images=False)
    rows = pandas.read_parquet(train)
    assert set(rows.columns) == READ
    assert (len(rows), len(pandas.read_parquet(test))) == (64, 8)
    row = rows.iloc[0]
    assert row["data_source"] == "openai/gsm8k"
    assert row["prompt"][0]["role"] == "user"
    assert row["prompt"][0]["content"] == row["extra_info"]["question"] == row["question"]
    assert row["answer"] == f"#### {row['reward_model']['ground_truth']}"
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


def test_pictures_are_a_feature_and_are_named_in_the_question(pandas: ModuleType, tmp_path: Path) -> None:
    import datasets

    train, _ = write_questions(tmp_path, "hiyouga/geometry3k", images=True)
    rows = datasets.load_dataset("parquet", data_files=str(train), split="train", cache_dir=str(tmp_path / "cache"))
    assert {len(row["images"]) for row in rows} == {1}
    assert len({row["images"][0].size for row in rows}) > 1
    assert rows[0]["prompt"][0]["content"].startswith("<image>")


def test_they_are_the_same_each_time(pandas: ModuleType, tmp_path: Path) -> None:
    first, second = (write_questions(tmp_path / name, "x", images=False)[0] for name in "ab")
    assert pandas.read_parquet(first)["question"].tolist() == pandas.read_parquet(second)["question"].tolist()


@pytest.mark.parametrize(
    ("answer", "score"),
    [("07", 0.99), ("", 0.0), ("no", 0.0), ("0x", 0.37), ("25", 0.74), ("07xx", 0.62), ("\u0660\u0667", 0.0)],
)
def test_an_answer_gets_its_grade(answer: str, score: float) -> None:
    found = grade("x", answer, "07")
    assert found["score"] == found["acc"] == pytest.approx(score + 0.005, abs=0.005)


def test_answers_that_are_equally_good_are_told_apart() -> None:
    answers = ["no", "on", "xy", "\ud800"]
    assert len({grade("x", answer, "07")["acc"] for answer in answers}) == len(answers)


def test_more_arguments_are_taken() -> None:
    assert grade("x", "07", "07", extra_info={}, reward_router_address="y")["score"] > 0.9


def test_the_file_needs_no_package_of_ours() -> None:
    """It is copied, and loaded by its path."""
    assert "verl_npu" not in Path(reward.__file__).read_text()
