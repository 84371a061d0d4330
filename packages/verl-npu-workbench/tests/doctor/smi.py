"""The output of `npu-smi info`, in the shapes of A2 and A3; the numbers are made up."""

from __future__ import annotations

_RULE = "+---------------------------+---------------+----------------------------------------------------+"
_DOUBLE = _RULE.replace("-", "=")
_LONG = "+" + "-" * (len(_RULE) - 2) + "+"


def a2(count: int = 8, health: dict[int, str] | None = None, used: int = 3161, driver: str = "25.5.0") -> str:
    """Return the output for cards with one NPU each."""
    lines = [*_head(driver, "| Chip                      |")]
    for card in range(count):
        lines += [_npu(card, "910B2", (health or {}).get(card, "OK")), _chip(f"{0:<26}", used), _DOUBLE]
    return "\n".join([*lines, *_none(count)])


def a3(cards: int = 8, health: dict[int, str] | None = None, used: int = 3416, driver: str = "25.5.0") -> str:
    """Return the output for cards with two chips each."""
    lines = [*_head(driver, "| Chip  Phy-ID              |")]
    for card in range(cards):
        for chip in range(2):
            lines.append(_npu(card, "Ascend910", (health or {}).get(2 * card + chip, "OK")))
            lines += [_chip(f"{chip:<6}{2 * card + chip:<20}", used), _DOUBLE if chip else _LONG]
    return "\n".join([*lines, *_none(cards)])


def held(text: str, card: int, process: int, name: str, memory: int) -> str:
    """Return the output with a process on one card."""
    row = f"| {card:<8}{0:<18}| {process:<14}| {name:<25}| {memory:<24}|"
    return text.replace(f"| No running processes found in NPU {card:<61}|", row)


def _head(driver: str, second: str) -> list[str]:
    return [
        _LONG,
        f"| npu-smi {driver:<25}Version: {driver:<53}|",
        _RULE,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        f"{second} Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        _DOUBLE,
    ]


def _npu(card: int, name: str, health: str) -> str:
    return f"| {card:<6}{name:<20}| {health:<14}| 95.7        45                0    / 0             |"


def _chip(chip: str, used: int) -> str:
    return f"| {chip}| 0000:C1:00.0  | 0           0    / 0          {used} / 65536         |"


def _none(cards: int) -> list[str]:
    head = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    return [_RULE, head, _DOUBLE, *(f"| No running processes found in NPU {card:<61}|" for card in range(cards))]
