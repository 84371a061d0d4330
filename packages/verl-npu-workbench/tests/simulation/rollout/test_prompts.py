"""Prompts with images and videos are processed by the model's own processor, as in vLLM."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from verl_npu.errors import RolloutError

pytestmark = [pytest.mark.virtual, pytest.mark.upstream]

IMAGE, VIDEO, START, END = 6, 7, 3, 4


class Processor:
    """A processor that writes an image as tokens of its length, and a video as its frames between start and end."""

    image_token = "I"
    video_token = "V"

    def __init__(self, edges: bool = False) -> None:
        if edges:
            self.vision_start_token, self.vision_end_token = "S", "E"

    def tokenizer(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [{"I": IMAGE, "V": VIDEO, "S": START, "E": END}[letter] for letter in text]}

    def __call__(self, text: list[str], images: Any = None, videos: Any = None, **asked: Any) -> dict[str, Any]:
        import torch

        assert len(text) == 1
        (item,) = images or videos
        written = [IMAGE] * len(item) if images else [START, *[VIDEO] * len(item), END, 99] * 2
        if videos and text == ["V"]:
            written = [VIDEO] * len(item)
        self.asked = asked
        return {
            "input_ids": torch.tensor([written]),
            "attention_mask": torch.ones(1, len(written)),
            "pixel_values": torch.full((len(item), 2), float(len(item))),
        }


class Model:
    def forward(self, input_ids: Any, mm_token_type_ids: Any = None) -> None: ...


class Older:
    def forward(self, input_ids: Any) -> None: ...


def batch(*prompts: Any, processor: Any = None, model: Any = Older) -> Any:
    from verl_npu_workbench.simulation.rollout.prompts import Prompts

    return Prompts(processor or Processor(), 0, model()).batch(prompts)


def prompt(tokens: list[int], *images: str, videos: Any = (), **settings: Any) -> Any:
    from verl_npu_workbench.simulation.rollout.prompts import Prompt

    return Prompt(tokens, images, videos, settings)


def test_one_placeholder_becomes_as_many_as_the_image_has() -> None:
    made = batch(prompt([1, IMAGE, 2, IMAGE], "xxx", "xx"))
    assert made.ids.tolist() == [[1, *[IMAGE] * 3, 2, *[IMAGE] * 2]]
    assert made.seen["pixel_values"].tolist() == [[3, 3]] * 3 + [[2, 2]] * 2


def test_placeholders_that_are_there_already_are_not_made_more() -> None:
    made = batch(prompt([1, IMAGE, IMAGE, IMAGE, 2], "xxx"))
    assert made.ids.tolist() == [[1, IMAGE, IMAGE, IMAGE, 2]]


def test_prompts_are_padded_on_the_left_and_their_images_follow_each_other() -> None:
    made = batch(prompt([5]), prompt([IMAGE, 5], "xx"), prompt([IMAGE], "x"))
    assert made.ids.tolist() == [[0, 0, 5], [IMAGE, IMAGE, 5], [0, 0, IMAGE]]
    assert made.mask.tolist() == [[0, 0, 1], [1, 1, 1], [0, 0, 1]]
    assert made.seen["pixel_values"].tolist() == [[2, 2], [2, 2], [1, 1]]


@pytest.mark.parametrize("video", ["xx", ("xx", {"fps": 2})])
def test_a_video_takes_the_place_of_its_placeholder(video: Any) -> None:
    processor = Processor()
    made = batch(prompt([1, VIDEO, 2], videos=[video], fps=1), processor=processor)
    assert made.ids.tolist() == [[1, VIDEO, VIDEO, 2]]
    more = {"video_metadata": [{"fps": 2}], "do_sample_frames": False} if isinstance(video, tuple) else {}
    assert processor.asked == {"return_tensors": "pt", "fps": 1, **more}


@pytest.mark.parametrize("there", [False, True], ids=["one placeholder", "written already"])
def test_frames_with_their_own_start_and_end_replace_the_placeholders(there: bool) -> None:
    frames = [START, VIDEO, VIDEO, END, 99] * 2
    given = frames if there else [START, VIDEO, END]
    made = batch(prompt([1, *given, 2], videos=["xx"]), processor=Processor(edges=True))
    assert made.ids.tolist() == [[1, *frames, 2]]


def test_a_model_that_asks_for_it_is_told_which_tokens_are_images() -> None:
    made = batch(prompt([1, IMAGE], "xx"), prompt([1, VIDEO, 1], videos=["x"]), model=Model)
    assert made.seen["mm_token_type_ids"].tolist() == [[0, 1, 1], [0, 2, 0]]
    assert "mm_token_type_ids" not in batch(prompt([1]), model=Model).seen


def test_an_image_without_a_placeholder_is_refused() -> None:
    with pytest.raises(RolloutError, match="expected a placeholder"):
        batch(prompt([1, IMAGE], "xx", "xx"))


def test_an_image_for_a_model_of_text_is_refused() -> None:
    from verl_npu_workbench.simulation.rollout.prompts import Prompts

    with pytest.raises(RolloutError, match="the prompt has images, but this model's processor has no token"):
        Prompts(None, 0, Older()).batch([prompt([1], "xx")])


NIGHTLY = pytest.mark.nightly("verl_npu_workbench/simulation/rollout")
ARCHITECTURES = [
    "qwen2_5_vl",
    *(pytest.param(each, marks=NIGHTLY) for each in ("qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")),
]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    from .tiny import write

    if not hasattr(transformers.models, request.param):
        pytest.skip(f"transformers {transformers.__version__} has no {request.param}")
    return write(tmp_path_factory.mktemp(request.param), request.param)


def test_a_model_of_images_answers_as_transformers_does(npu: ModuleType, folder: Any) -> None:
    import numpy
    import torch
    from PIL import Image
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, GenerationConfig
    from verl_npu_workbench.simulation.rollout.engine import Engine
    from verl_npu_workbench.simulation.rollout.prompts import Prompt

    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="sdpa").float()
    model.generation_config = GenerationConfig()
    engine = Engine(AutoConfig.from_pretrained(folder), "float32", 0, processor, str(folder))
    engine.weights.take(model.state_dict().items())
    engine.weights.complete()
    random = numpy.random.default_rng(0)
    sizes = [[(24, 32), (16, 16)], [(40, 16)], []]
    images = [[Image.fromarray(random.integers(0, 255, (*size, 3), dtype="uint8")) for size in row] for row in sizes]
    texts = ["<|vision_start|><|image_pad|><|vision_end|>" * len(row) + "What colour" for row in images]
    prompts = [Prompt(processor.tokenizer(text)["input_ids"], row) for text, row in zip(texts, images, strict=True)]
    answers = engine.generate(prompts, 4, None, {"do_sample": False}, with_log_probs=True)
    for row, text in enumerate(texts):
        inputs = processor(text=[text], images=images[row] or None, return_tensors="pt")
        config = GenerationConfig(max_new_tokens=4, do_sample=False, pad_token_id=0, suppress_tokens=[IMAGE, VIDEO])
        expected = model.generate(**inputs, generation_config=config)[:, inputs["input_ids"].shape[1] :]
        assert answers.responses[row].tolist() == expected[0].tolist()
    assert torch.isfinite(answers.log_probs).all()
