"""Writes the tables of docs/environment.md and its Chinese twin from verl_npu/environment.py.

python scripts/maintain/environment_page.py            rewrite the tables
python scripts/maintain/environment_page.py --check    status 1 if a table is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from verl_npu import environment
from verl_npu.variable import CONTRIBUTOR, USER, Variable

# The scripts are no package that is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from maintain.section import options, replaced, rewrite

__all__ = ["BEGIN", "CHINESE", "END", "PAGES", "render"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN = "<!-- {audience}: made by scripts/maintain/environment_page.py -->"
END = "<!-- end of {audience} -->"

_HEADINGS = {
    "en": ("variable", "what it does", "value", "default", "workers get it"),
    "zh": ("变量", "作用", "取值", "默认值", "传给 worker"),
}
_WORDS = {"en": ("yes", "no", "not set"), "zh": ("是", "否", "不设置")}
PAGES = {"en": DOCS / "environment.md", "zh": DOCS / "environment.zh-CN.md"}

CHINESE = {
    "VERL_NPU": "是否给 verl 打补丁；auto 表示有昇腾软件（可导入的 torch_npu）或虚拟昇腾时才打",
    "VERL_NPU_DISABLE": "不使用的特性",
    "VERL_NPU_STRICT": "为 1 时，漂移和失败在导入时即为错误；各进程不一致的作业不会开始训练",
    "VERL_NPU_FORCE": "上游已漂移也照样应用的特性；此后每份摘要都标明 TAINTED",
    "VERL_NPU_MANIFEST_DIR": "一个目录，每个进程把自己做了什么以 JSON 写入其中",
    "VERL_NPU_PLACEMENT_TIMEOUT": "Ray 安置作业最多可用的时间，超过即报错",
    "VERL_NPU_TOKEN_BUDGET": "为 1 时，动态批次的微批次不超过 max_token_len_per_gpu；见 docs/micro-batches.zh-CN.md",
    "VERL_NPU_WEIGHT_SYNC_TIMEOUT": "权重同步中一个 rank 等待其他 rank 的时间，超过后报出缺少的 rank",
    "VERL_NPU_WEIGHT_SYNC_CHECK": "权重同步除名称、形状和 dtype 外还比较什么；engine 证明引擎计算时使用的权重",
    "VERL_NPU_WEIGHT_SYNC_BUCKET_MB": "权重同步一条消息的大小；每个传输权重的 rank 保留两条",
    "VERL_NPU_WEIGHT_SYNC_PORT": "权重同步的各 rank 会合的端口；0 表示任意空闲端口",
    "VERL_NPU_UPSTREAMS": "一个目录，含 git 检出（verl-796871d7 等），供不在软件源中的版本的测试和脚本使用",
    "VERL_NPU_VENVS": "脚本在哪里建立虚拟环境；不设置时为项目根目录",
    "VERL_NPU_MINDSPEED": "MindSpeed 的检出目录，供使用 Megatron 的作业使用",
    "VERL_NPU_TORCH_NPU": "装有 torch_npu 而没有 CANN 的各环境的 Python，供在其 wheel 上测试权重同步各 rank 使用",
    "VERL_NPU_VLLM_ASCEND_TESTS": "vllm-ascend 自己的单元测试另外需要的包，见 `python -m tests.vllm_ascend --help`",
    "VERL_NPU_VLLM_ASCEND_SOURCE": "vllm-ascend 在 1de16ead8e 的检出目录，由它为虚拟 NPU 构建已发布镜像的引擎",
    "VERL_NPU_VLLM_ASCEND": "装有 vllm-ascend 的各环境的 Python，供在虚拟 NPU 上用它提供服务的测试使用",
}


def render(text: str, language: str, variables: Mapping[str, Variable] = environment.VARIABLES) -> str:
    """Return the text of a page with its tables made anew. Raises ValueError if a marker is missing."""
    for audience in (USER, CONTRIBUTOR):
        begin, end = BEGIN.format(audience=audience), END.format(audience=audience)
        chosen = [variable for variable in variables.values() if variable.audience == audience]
        text = replaced(text, begin, end, _table(chosen, language))
    return text


def _table(variables: list[Variable], language: str) -> str:
    rows = [_HEADINGS[language], ("---",) * 5]
    yes, no, unset = _WORDS[language]
    for variable in variables:
        summary = variable.summary if language == "en" else CHINESE[variable.name]
        default = f"`{variable.default}`" if variable.default else unset
        rows.append((f"`{variable.name}`", summary, variable.expected, default, yes if variable.forwarded else no))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(
        rewrite(
            {page: render(page.read_text(), language) for language, page in PAGES.items()},
            options(__doc__).parse_args().check,
        )
    )
