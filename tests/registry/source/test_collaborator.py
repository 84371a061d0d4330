"""The upstream names, calls and configuration keys that patches use are looked for in source."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from verl_npu.errors import DeclarationError
from verl_npu.registry.source.named import Collaborator
from verl_npu.registry.source.tree import SourceTree
from verl_npu.registry.source.used import find

SOURCES = {
    "up/base.py": "class Base:\n    def __init__(self):\n        self.kept = 1\n    def move(self, device): ...\n",
    "up/workers.py": """
from .base import Base
from torch import nn
from vllm import serve

class Worker(Base, nn.Module):
    limit: int = 1
    def start(self, config, *, rank=0, **rest):
        self.engine, self.other = config, 2
    @staticmethod
    def plain(config): ...

class Alone(Worker):
    def __init__(self):
        self.own = 1

def build(config, device, rank=0): ...
async def wait(config): ...
""",
    "up/all.py": "from .workers import *\n",
    "up/config/main.yaml": """
defaults:
  - model_engine: dp
  - actor@job.actor: ${model_engine}_actor
  - _self_
trainer:
  # the device
  device: cuda   # or npu
  name: "a: b"
text: |
  trainer:
    hidden: 1
list:
  - device: cpu
""",
    "up/config/other.yaml": "defaults:\n  - main\n  - override model_engine: big\n  - _self_\n",
    "up/config/actor/big_actor.yaml": "shards: 9\n",
    "up/config/actor/dp_actor.yaml": "defaults:\n  - actor\n  - ../optim@optim: adam\nshards: 2\n",
    "up/config/actor/actor.yaml": "strategy: fsdp\nshards: 1\n",
    "up/config/optim/adam.yaml": "lr: 1e-3\n",
    "up/config/model_engine/dp.yaml": "# @package _global_\nengine: dp\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree.at(tmp_path, ("up",))


FITS = (
    "up.workers:Worker.limit",
    "up.workers:Worker.engine",
    "up.workers:Worker.other",
    "up.workers:Worker.kept",
    "up.workers:Alone.own",
    "up.workers:Alone.engine",
    "up.workers:Worker.move(device)",
    "up.workers:Worker.start(config, rank=)",
    "up.workers:Worker.start(config, anything=)",
    "up.workers:Worker.plain(config)",
    "up.workers:Worker()",
    "up.workers:serve(model)",
    "up.workers:build(config, device)",
    "up.workers:build(config, rank=, device=)",
    "up.all:build",
    "up.gone:build or up.workers:build(config, device)",
    "up/config/main.yaml: trainer.device = cuda",
    "up/config/main.yaml: trainer.name",
    "up/config/main.yaml: job.actor.strategy = fsdp",
    "up/config/main.yaml: job.actor",
    "up/config/main.yaml: job.actor.shards = 2",
    "up/config/other.yaml: job.actor.shards = 9",
    "up/config/other.yaml: trainer.device = cuda",
    "up/config/main.yaml: job.actor.optim.lr = 1e-3",
    "up/config/main.yaml: engine = dp",
)
NOTHING = "nothing of that name"
UNFIT = {
    "up.workers:Worker.gone": NOTHING,
    "up.workers:Alone.kept": NOTHING,
    "up.workers:gone()": NOTHING,
    "up.workers:build(config)": "function (config, device, rank=0)",
    "up.workers:build(config, device, gone=)": "function (config, device, rank=0)",
    "up.workers:build(device, config)": "function (config, device, rank=0)",
    "up.workers:wait(config, device)": "coroutine function (config)",
    "up/config/main.yaml: trainer.device = npu": "cuda",
    "up/config/main.yaml: trainer.gone": NOTHING,
    "up/config/main.yaml: text.trainer.hidden": NOTHING,
    "up/config/main.yaml: list.device": NOTHING,
    "up/config/gone.yaml: trainer.device": NOTHING,
}


@pytest.mark.parametrize("text", FITS)
def test_an_existing_name_fits(text: str, tree: SourceTree) -> None:
    assert find(Collaborator.parse(text), tree).fits


@pytest.mark.parametrize(("text", "found"), UNFIT.items(), ids=UNFIT)
def test_a_missing_or_different_name_does_not_fit(text: str, found: str, tree: SourceTree) -> None:
    answer = find(Collaborator.parse(text), tree)
    assert (answer.fits, str(answer)) == (False, found)


@pytest.mark.parametrize("text", ["up", "up.x", "up.x:", "up.x:f(", "up/x.yml: a", "up/../x.yaml: a", "up/x.yaml:a"])
def test_what_is_no_name_and_no_key_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError):
        Collaborator.parse(text)


HOSTILE = {
    "includes itself": "defaults:\n  - main\n  - main@a: main\n",
    "anchors that multiply": "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
    "a long line": "device" + " " * 500_000 + ": cuda\n",
    "deep": "".join(f"{' ' * n}k{n}:\n" for n in range(900)),
    "many defaults": "defaults:\n" + "".join(f"  - g{n}@a{n}: x\n" for n in range(20_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_strangers_yaml_takes_neither_long_nor_much_memory(text: str, tmp_path: Path) -> None:
    (tmp_path / "up" / "config").mkdir(parents=True)
    (tmp_path / "up" / "config" / "main.yaml").write_text(text)
    here = SourceTree.at(tmp_path, ("up",))
    began = time.process_time()
    assert not find(Collaborator.parse("up/config/main.yaml: a.device"), here).fits
    assert time.process_time() - began < 2
