"""Real checkpoints merged, and a real vLLM served and evaluated: on virtual NPUs, SIMULATED.

The second needs VERL_NPU_VLLM_ASCEND, as tests/e2e/test_vllm_ascend.py does. What it is compared with is computed by
transformers, which shares neither engine nor server.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from testing.processes import gone
from verl_npu_workbench.processes import descendants
from verl_npu_workbench.rehearse.reward import grade
from verl_npu_workbench.serving.server import PATIENCE
from virtual_ascend.testing import free_port

from . import serving
from .conftest import PROJECT, Smoke

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
for needed in ("openai", "pandas", "pyarrow", "scipy"):
    pytest.importorskip(needed)

COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from verl_npu.cli import main; main(prog_name='verl-npu')"
)
ROUNDS, TOKENS = 16, 16
Evaluate = Callable[..., Sequence[str]]


def call(python: str, *words: str) -> list[str]:
    return [python, "-c", COMMAND, *words]


def without_npus() -> dict[str, str]:
    """This process's environment on a machine that has none."""
    found = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ASCEND"}
    return found | {"PYTHONPATH": str(PROJECT)}


@pytest.mark.parametrize(
    ("job", "strategy", "role"),
    [("grpo", "fsdp", "actor"), ("grpo", "fsdp2", "actor"), ("ppo", "fsdp", "critic")],
    ids=["fsdp", "fsdp2", "a value model"],
)
def test_a_merged_checkpoint_is_the_model_that_the_job_saved(
    smoke: Smoke, tmp_path: Path, job: str, strategy: str, role: str
) -> None:
    settings = [f"actor_rollout_ref.{part}.strategy={strategy}" for part in ("actor", "ref")]
    settings += [f"critic.strategy={strategy}", "critic.checkpoint.save_contents=[model,hf_model]"]
    done = smoke(steps=1, settings=settings, job=job)
    assert done.returncode == 0, done.stdout + done.stderr
    (checkpoint,) = tmp_path.glob(f"*/checkpoints/global_step_1/{role}")
    target = tmp_path / "merged"
    said = subprocess.run(
        call(sys.executable, "merge", str(checkpoint), "--target", str(target), "--json"),
        env=without_npus(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["backend"] == {"fsdp": "FSDP", "fsdp2": "FSDP2"}[strategy]
    merged = safetensors.load_file(target / "model.safetensors")
    saved = safetensors.load_file(checkpoint / "huggingface" / "model.safetensors")
    assert set(merged) == set(saved)
    assert ("score.weight" in saved) == (role == "critic")
    assert [name for name in saved if not torch.equal(merged[name], saved[name].bfloat16())] == []
    assert json.loads(said.stdout)["value_model"] == (role == "critic")
    loader = transformers.AutoModelForTokenClassification if role == "critic" else transformers.AutoModelForCausalLM
    _, loaded = loader.from_pretrained(target, output_loading_info=True)
    assert not any(loaded.values()), loaded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's model and data."""
    from harness import dataset, model

    made = tmp_path_factory.mktemp("served")
    model.generate(made / "model", seed=0)
    dataset.generate(made / "data", seed=0)
    return made


def serve(python: str, folder: Path, port: int) -> subprocess.Popen[str]:
    """Start `verl-npu serve` on virtual NPUs; it answers."""
    words = ["serve", str(folder / "model"), "--port", str(port), "--max-model-len", "128", "--limit", "500"]
    process = subprocess.Popen(
        call(python, *words, "--", "--max-num-seqs", "32", "--num-gpu-blocks-override", "64"),
        env=serving.environment(serving.engine_of(python)) | {"PYTHONPATH": str(PROJECT)},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    if "SIMULATED" not in lines[0] or not lines[1].startswith("serving "):
        process.kill()
        pytest.fail("".join([*lines, *process.communicate()[0]]))
    return process


@pytest.fixture(scope="module")
def url(python: str, folder: Path) -> Iterator[str]:
    """The endpoint of `verl-npu serve`, which ends by Ctrl-C."""
    port = free_port()
    process = serve(python, folder, port)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "ended, with all that it had started\n")


@pytest.fixture
def words(url: str, folder: Path, tmp_path: Path) -> list[str]:
    """The evaluation of the served model."""
    reward = PROJECT / "scripts" / "harness" / "reward.py"
    given = ["--url", url, "--rounds", str(ROUNDS), "--max-tokens", str(TOKENS), "--reward", str(reward)]
    data = folder / "data" / "test.parquet"
    return ["evaluate", str(data), *given, "--reward-name", "grade", "--output", str(tmp_path / "out")]


def sampled(folder: Path) -> list[float]:
    """Return the scores of answers that transformers draws, as many for each prompt as there are rounds."""
    import pandas

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    torch.manual_seed(1)
    scores = []
    for _, row in pandas.read_parquet(folder / "data" / "test.parquet").iterrows():
        prompt = tokenizer.apply_chat_template(
            list(row["prompt"]), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        drawn: Any = model.generate(
            **prompt, do_sample=True, top_k=0, max_new_tokens=TOKENS, num_return_sequences=ROUNDS
        )
        for tokens in drawn[:, prompt["input_ids"].shape[1] :]:
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            scores.append(grade(row["data_source"], text, row["reward_model"]["ground_truth"])["score"])
    return scores


def test_a_killed_evaluation_goes_on_and_agrees_with_transformers(
    words: list[str], folder: Path, tmp_path: Path
) -> None:
    answers = tmp_path / "out" / "answers.jsonl"
    with subprocess.Popen(call(sys.executable, *words), env=without_npus(), stderr=subprocess.DEVNULL) as process:
        while not answers.is_file() or len(answers.read_bytes().splitlines()) < 100:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    kept = answers.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    said = subprocess.run(
        call(sys.executable, *words, "--json"), env=without_npus(), capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert answers.read_bytes().startswith(kept)
    total = json.loads(said.stdout)["evaluation"]["total"]
    assert total["answers"] == ROUNDS * total["prompts"] == len(answers.read_bytes().splitlines())
    scores = sampled(folder)
    ours = [json.loads(line)["score"] for line in answers.read_text().splitlines()]
    error = math.hypot(*(statistics.stdev(each) / math.sqrt(len(each)) for each in (ours, scores)))
    assert abs(total["mean"] - statistics.mean(scores)) < 4 * error


def test_a_server_whose_command_is_killed_ends_with_all_its_engines(python: str, folder: Path) -> None:
    process = serve(python, folder, free_port())
    started = descendants(process.pid)
    process.kill()
    process.communicate()
    assert len(started) >= 3, "a guardian, the server, and its engine"
    assert [pid for pid in started if not gone(pid, within=PATIENCE + 15)] == []
