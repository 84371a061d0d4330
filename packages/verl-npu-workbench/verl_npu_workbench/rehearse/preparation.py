"""Prepares a rehearsal: a small model and its checkpoint, data, a reward function, and a rollout engine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from verl_npu.ascend.variables import VIRTUAL_NPUS
from verl_npu.errors import CommandError
from verl_npu.features import load
from verl_npu.language import gettext as _

from ..jobs.job import Job
from ..jobs.keys import ENGINE, PATH, TRAIN_FILES, may_sleep
from ..jobs.settings import Settings
from ..kernels.toolchain import Soc
from ..processes import captured, own_python
from . import reward, small_model
from .layout import Layout
from .rules import Setup
from .small_model import ARCHITECTURES, LAYERS, Architecture, architecture_of
from .training import convert, prepare_device, written

PROMPT, RESPONSE = 64, 16
_PICTURE_TOKENS = 64
_MODELS = (PATH, "model.partial_pretrain", "model.path")
ENGINES = ("auto", "vllm", "virtual")
_NO_ENGINES = ("", "???", "hf", "naive", "virtual")
"""Engine names that are not replaced. The name ??? is a mistake in the script, and the rehearsal should show the
mistake."""
_SIDES = (32, 64, 96)
_QUESTIONS = ("What is {first} + {second}?", "{first} + {second} is?", "What is the sum of {first} and {second}?")
"""Forms of the generated questions. They have several lengths, because equal lengths would hide errors in the handling
of lengths."""


@dataclass(frozen=True, slots=True)
class Request:
    """A user's options for a rehearsal."""

    output: Path
    steps: int = 2
    npus: int | None = None
    engine: str = "auto"
    architecture: str = ""
    seconds: float = 900.0
    without: tuple[str, ...] = ()
    """The names of the rules that are not applied."""
    unconfined: bool = False
    """Whether to run code from the source tree without a sandbox."""
    kernels: Soc | None = None
    """The NPU to compile the job's Triton kernels for; None to compile none."""


def prepare(
    job: Job, architecture: Architecture, layout: Layout, folder: Path, request: Request, engine: RolloutEngine
) -> tuple[Setup, list[str]]:
    """Create the model, the data, a reward function, and, if the script uses one, a checkpoint. Return them together
    with notes for the user."""
    settings, images = job.settings, architecture.takes_images
    model = small_model_of(architecture, LAYERS * layout.pipeline, request.output / "models")
    train_file, test_file = write_questions(folder / "data", _data_source(settings), images)
    notes = [engine.note] if engine.note else []
    checkpoint = None
    if any(settings.truth(key) for key in settings.ending("use_dist_checkpointing")):
        prepare_device(layout.all_npus)
        failure = convert(job, model, folder, layout.all_npus, request.unconfined)
        checkpoint = None if failure else written(folder) / "mcore"
        if failure:
            notes.append(
                _("could not convert the small model to a distributed checkpoint: {failure}").format(failure=failure)
            )
    # verl loads the reward by its path, so copy the file; an installation without sources has only the compiled one.
    graded = Path(shutil.copy(reward.__file__, folder))
    setup = Setup(
        folder=written(folder),
        model=model,
        train=train_file,
        test=test_file,
        checkpoint=checkpoint,
        reward=graded,
        layout=layout,
        steps=request.steps,
        prompt=PROMPT + (_PICTURE_TOKENS if images else 0),
        response=RESPONSE,
        engine=engine.name,
        no_sleep=engine.no_sleep,
    )
    return setup, notes


def chosen_architecture(settings: Settings, asked: str) -> Architecture:
    """Return the architecture that the user specified or, by default, the architecture that is named in the model's
    path. Raises CommandError if no architecture is found."""
    if asked:
        for each in ARCHITECTURES:
            if each.name == asked:
                return each
        raise CommandError(
            subject="--architecture",
            expected=_("one of ") + _(", ").join(each.name for each in ARCHITECTURES),
            found=repr(asked),
            fix=_("specify the model_type from the model's config.json"),
        )
    path = next((settings.text(key) for key in _MODELS if settings.text(key)), "")
    return architecture_of(path)


def _data_source(settings: Settings) -> str:
    path = settings.text(TRAIN_FILES).lower()
    for part, source in (("geo3k", "hiyouga/geometry3k"), ("dapo", "math_dapo"), ("math", "lighteval/MATH")):
        if part in path:
            return source
    return "openai/gsm8k"


def small_model_of(architecture: Architecture, layers: int, folder: Path) -> Path:
    """Create the small model, or return the existing model for this architecture, this number of layers, and this
    transformers version."""
    try:
        transformers = version("transformers")
    except PackageNotFoundError as error:
        raise CommandError(
            subject=_("this environment"),
            found=_("the package {package} is not installed").format(package="transformers"),
            fix=_("run verl-npu with the Python interpreter of the environment that verl is installed in"),
        ) from error
    # A new version of the generator must not use older models.
    made_by = hashlib.sha256(small_model.source()).hexdigest()[:8]
    name = f"{architecture.name}-{layers}-{transformers}-{made_by}"
    target = (folder / name).resolve()
    if _is_whole(target):
        return target
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        done = captured(
            own_python("-m", small_model.__name__, architecture.name, str(layers), str(made)),
            # Like the run itself. With virtual NPUs, any build of torchvision can be imported.
            env=os.environ | {VIRTUAL_NPUS: "1"},
        )
        if done.returncode != 0:
            found = (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
            is_full = os.strerror(errno.ENOSPC) in found
            raise CommandError(
                subject=_("a small model of the architecture {architecture}").format(architecture=architecture.name),
                expected=_("a model that transformers {transformers} can create").format(transformers=transformers),
                found=found,
                fix=_("free some disk space, or choose another --output")
                if is_full
                else _(
                    "install the transformers version that your version of verl requires, or rehearse with "
                    "--architecture"
                ),
            )
        (made / _SUMS).write_text(json.dumps(_sums(made)))
        # Another process may have been faster, with the same model.
        if not _is_whole(target):
            shutil.rmtree(target, ignore_errors=True)
            with contextlib.suppress(OSError):
                made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


_SUMS = "sums.json"
"""The file with a hash of each file of a small model. The model is kept for later rehearsals."""


def _is_whole(model: Path) -> bool:
    try:
        sums = json.loads((model / _SUMS).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(sums, dict) and bool(sums) and sums.items() <= _sums(model).items()


def _sums(model: Path) -> dict[str, str]:
    files = (path for path in model.iterdir() if path.name != _SUMS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.is_file()}


@dataclass(frozen=True, slots=True)
class RolloutEngine:
    """The rollout engine of a rehearsal, and a note about it for the user."""

    name: str = ""
    """The engine that replaces the script's engine. Empty if the script's engine is used."""
    note: str = ""
    no_sleep: bool = False
    """Whether the engine is vLLM's CPU build, which has no sleep mode and cannot be split over verl's ranks."""


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def rollout_engine(
    settings: Settings, asked: str, own_npus: bool = False, installed: Callable[[str], str] = _installed
) -> RolloutEngine:
    """Return the rollout engine to use in the rehearsal. `own_npus` states whether the rollout has separate NPUs."""
    own = settings.text(ENGINE)
    if own in _NO_ENGINES:
        return RolloutEngine()
    found = installed("vllm")
    # vLLM's build for CPUs cannot sleep, which an engine that shares NPUs with the trainer does in every step.
    no_sleep = "cpu" in found
    vllm = _("the rollout engine is the installed vLLM") + (_(", without its sleep mode") if no_sleep else "")
    instead = _("the rollout engine is transformers' generate; the script's is {own}").format(own=own)
    if asked == "vllm" and own != "vllm":
        return RolloutEngine("vllm", _("{vllm}; the script's is {own}").format(vllm=vllm, own=own), no_sleep)
    if asked == "virtual" or (asked != "vllm" and (own != "vllm" or not found)):
        return RolloutEngine("virtual", instead)
    if asked != "vllm" and no_sleep and may_sleep(settings) and not own_npus:
        said = _("{instead}, and the installed vLLM {found} has no sleep mode, which the script uses").format(
            instead=instead, found=found
        )
        return RolloutEngine("virtual", said)
    return RolloutEngine("", vllm, no_sleep)


def engine_for(
    trainer: str, settings: Settings, asked: str, own_npus: bool, installed: Callable[[str], str] = _installed
) -> RolloutEngine:
    """Return the rollout engine to use in a rehearsal of this trainer.

    Raises:
        CommandError: the engine would be transformers' `generate`, but the trainer's weight sync needs vLLM or SGLang.
    """
    engine = rollout_engine(settings, asked, own_npus, installed)
    package = trainer.rpartition(".")[0]
    if engine.name == "virtual" and package in _syncing_packages():
        vllm = installed("vllm")
        raise CommandError(
            subject=f"{trainer}, {ENGINE}={settings.text(ENGINE)}",
            expected=_("vLLM as the rollout engine, because this trainer cannot send weights to a substitute engine"),
            found=_("vLLM {vllm}, but --rollout chooses another engine").format(vllm=vllm) if vllm else _("no vLLM"),
            fix=_("specify --rollout vllm")
            if vllm
            else _(
                "check out verl commit ccd7d934, and run scripts/rehearse.sh --verl CHECKOUT, which installs "
                "vLLM's CPU build"
            ),
        )
    return engine


def _syncing_packages() -> set[str]:
    """Return the packages of upstream recipes whose weights verl-npu's feature weight_sync itself sends."""
    targets = [patch.target.module for feature in load() if feature.name == "weight_sync" for patch in feature]
    return {module.rpartition(".")[0] for module in targets if module.startswith("recipe.")}


def write_questions(folder: Path, source: str, images: bool, rows: int = 64) -> tuple[Path, Path]:
    """Write questions about adding numbers to train.parquet and test.parquet. With `images`, each question has an
    image.

    train.parquet has `rows` questions. The columns are those that verl's examples/data_preprocess writes for
    reinforcement learning, single-turn supervised fine-tuning (extra_info, question, and answer), and multi-turn
    supervised fine-tuning (messages).
    """
    import datasets

    # Progress bars for a few rows would clutter the command's output.
    datasets.disable_progress_bars()
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(1)
    paths = []
    for split, count in (("train", rows), ("test", 8)):
        table = datasets.Dataset.from_list([_row(numbers, source, split, index, images) for index in range(count)])
        if images:
            # verl's data sets expect the image feature, not bytes.
            table = table.cast_column("images", datasets.Sequence(datasets.Image()))
        path = folder / f"{split}.parquet"
        table.to_parquet(path)
        paths.append(path)
    return paths[0], paths[1]


def _row(numbers: random.Random, source: str, split: str, index: int, images: bool) -> dict[str, object]:
    first, second = numbers.randint(0, 9), numbers.randint(0, 9)
    truth = f"{first + second:02d}"
    asked = numbers.choice(_QUESTIONS).format(first=first, second=second)
    question = f"{'<image>' if images else ''}{asked}"
    answer = f"#### {truth}"
    row: dict[str, object] = {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "answer": answer, "question": question},
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        "question": question,
        "answer": answer,
    }
    if images:
        row["images"] = [{"bytes": _picture(numbers), "path": None}]
    return row


def _picture(numbers: random.Random) -> bytes:
    from PIL import Image

    size = (numbers.choice(_SIDES), numbers.choice(_SIDES))
    picture = Image.new("RGB", size, tuple(numbers.randint(0, 255) for _unused in range(3)))
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    return stream.getvalue()
