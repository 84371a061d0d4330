"""Kernels of our own with the faults of public reports, which docs/records/kernels-reported.json lists."""

from __future__ import annotations

HEAD = """
import triton
import triton.language as tl
"""

COPIED_ROWS = """
@triton.jit
def copied_rows(x_ptr, index_ptr, out_ptr, rows, stride, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    for row in range(rows):
        source = tl.load(index_ptr + row)
        values = tl.load(x_ptr + source * stride + columns, mask=columns < stride)
        tl.store(out_ptr + row * stride + columns, values, mask=columns < stride)


def launch(x):
    copied_rows[(1,)](x, x, x, 4, 48000, WIDTH=48000)
"""
"""triton-lang/triton-ascend#302."""

COPIED_CUBES = """
@triton.jit
def copied_cubes(x_ptr, out_ptr, heads, rows, columns, HEADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    head, row, column = tl.arange(0, HEADS), tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    for first in range(0, heads, HEADS):
        at = (first + head)[:, None, None] * rows * columns + row[None, :, None] * columns + column[None, None, :]
        inside = ((first + head) < heads)[:, None, None] & (row < rows)[None, :, None] & (column < columns)
        tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside, other=0), mask=inside)


def launch(x):
    copied_cubes[(1,)](x, x, 16, 128, 128, HEADS=2, ROWS=128, COLUMNS=128)
"""
"""sgl-project/sgl-kernel-npu#477."""

RESHAPED = """
@triton.jit
def reshaped(x_ptr, y_ptr, out_ptr, SIDE: tl.constexpr):
    at = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    row = tl.reshape(tl.ravel(x), (1, SIDE * SIDE))
    column = tl.permute(row, (1, 0))
    total = tl.sum(tl.reshape(column, (SIDE * SIDE,)), 0)
    chosen = tl.where(x > y, x, tl.broadcast_to(total, (SIDE, SIDE)))
    tl.store(out_ptr + tl.arange(0, SIDE), tl.sum(tl.sqrt(tl.exp2(chosen)), 1))


def launch(x):
    reshaped[(1,)](x, x, x, SIDE=64)
"""
"""triton-lang/triton-ascend#1640."""

ROW_LOSSES = """
@triton.jit
def row_losses(logits_ptr, targets_ptr, losses_ptr, columns, stride, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest_x, highest_y = -float("inf"), -float("inf")
    total_x, total_y = 0.0, 0.0
    for first in range(0, columns, WIDTH):
        column = first + tl.arange(0, WIDTH)
        inside = column < columns
        x = tl.load(logits_ptr + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
        y = tl.load(targets_ptr + row * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
        new_x, new_y = tl.maximum(highest_x, tl.max(x, 0)), tl.maximum(highest_y, tl.max(y, 0))
        total_x = total_x * tl.exp(highest_x - new_x) + tl.sum(tl.exp(x - new_x), 0)
        total_y = total_y * tl.exp(highest_y - new_y) + tl.sum(tl.exp(y - new_y), 0)
        highest_x, highest_y = new_x, new_y
    tl.store(losses_ptr + row, highest_x + tl.log(total_x) - highest_y - tl.log(total_y))


def launch(x):
    row_losses[(1,)](x, x, x, 32000, 32000, WIDTH=32768)
"""
"""vllm-project/speculators#993."""

GATED_ROWS = """
@triton.jit
def gated_rows(x_ptr, bias_ptr, rows, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    first = tl.program_id(0) * ROWS
    for start in range(0, ROWS):
        row = first + start + tl.arange(0, 1)[:, None]
        for left in range(0, columns, WIDTH):
            column = left + tl.arange(0, WIDTH)[None, :]
            inside = (column < columns) & (row < rows)
            x = tl.load(x_ptr + row * 16384 + column, inside).to(tl.float32)
            y = x + tl.load(bias_ptr + column, column < columns).to(tl.float32)
            tl.store(x_ptr + row * 16384 + column, y * tl.sigmoid(y), inside)


def launch(x):
    gated_rows[(1,)](x, x, 4096, 16384, ROWS=48, WIDTH=16384)
"""
"""Ascend/pytorch#102."""

DIVIDED = """
@triton.jit
def divided(x_ptr, y_ptr, out_ptr, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    tl.store(out_ptr + at, tl.div_rn(tl.load(x_ptr + at), tl.load(y_ptr + at)))


def launch(x):
    divided[(1,)](x, x, x, WIDTH=16)
"""
ONE_DIVIDED = DIVIDED.replace(" + at", "").replace("    at = tl.arange(0, WIDTH)\n", "")
"""triton-lang/triton-ascend#2289: of one element, and so no block."""

CHOSEN_KEYS = """
@triton.jit
def chosen_keys(
    q_ptr, k_ptr, v_ptr, chosen_ptr, last_ptr, out_ptr, tiles, tokens, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    column = tl.arange(0, WIDTH)
    at = query[:, None] * WIDTH + column[None, :]
    q = tl.load(q_ptr + at, mask=(query < tokens)[:, None], other=0.0)
    last = tl.load(last_ptr + query, mask=query < tokens, other=-1)
    highest = tl.full((QUERIES,), -float("inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    found = tl.zeros((QUERIES, WIDTH), tl.float32)
    for tile in range(0, tiles):
        key = tile * KEYS + tl.arange(0, KEYS)
        inside = (key < tokens)[None, :] & (query < tokens)[:, None]
        block = key[None, :] // 4 + query[:, None] * (tokens // 4)
        chosen = tl.load(chosen_ptr + block, mask=inside, other=0)
        seen = (chosen != 0) & (key[None, :] <= last[:, None]) & inside
        at_key = key[:, None] * WIDTH + column[None, :]
        k = tl.load(k_ptr + at_key, mask=(key < tokens)[:, None], other=0.0)
        v = tl.load(v_ptr + at_key, mask=(key < tokens)[:, None], other=0.0)
        score = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        new = tl.maximum(highest, tl.max(score, 1))
        weight = tl.where(seen, tl.exp(score - new[:, None]), 0.0)
        shrunk = tl.exp(highest - new)
        total = total * shrunk + tl.sum(weight, 1)
        found = found * shrunk[:, None] + tl.dot(weight.to(v.dtype), v)
        highest = new
    tl.store(out_ptr + at, found / total[:, None], mask=(query < tokens)[:, None])


def launch(x):
    chosen_keys[(1,)](x, x, x, x, x, x, 4, 256, 0.1, QUERIES=64, KEYS=64, WIDTH=256)
"""
"""modelscope/mcore-bridge#188."""

LOGARITHMS = """
from triton.language.extra import libdevice


@triton.jit
def logarithms(x_ptr, out_ptr, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    tl.store(out_ptr + at, libdevice.log1p(tl.load(x_ptr + at)))


def launch(x):
    logarithms[(1,)](x, x, WIDTH=128)
"""
"""triton-lang/triton-ascend#2363."""

SQUARES = """
@triton.jit
def squares(x_ptr, out_ptr, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + at).to(tl.float64)
    tl.store(out_ptr + at, (x * x).to(tl.float32))


def launch(x):
    squares[(1,)](x, x, WIDTH=128)
"""
"""flagos-ai/FlagGems#6226: a float that is wider than the NPU's."""
