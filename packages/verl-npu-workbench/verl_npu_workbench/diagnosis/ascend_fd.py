"""Reads reports from `ascend-fd`, Ascend's diagnosis tool (mind-cluster).

ascend-fd also reads the logs of drivers, devices, switches, and controllers, which verl-npu does not read itself. It
writes diag_report.json. Each fault in this report becomes an error of a process on a device, with the log lines and
the advice that ascend-fd gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from verl_npu.findings import Finding, Severity, Stage

from ..logs.lines import Process
from .event import MOST_LINES, Event, Kind
from .rules import LogRule, Precision

Fault = tuple[Event, LogRule]
"""An error, and a rule that holds ascend-fd's explanation of the error."""
_LARGEST = 1 << 26
"""The largest size of a report in bytes. Larger reports are not read."""
_SECTION = "Knowledge_Graph"
_NOTHING = "NORMAL_OR_UNSUPPORTED"
_ENDS = " .;\u3002\uff1b"
"""The characters that end ascend-fd's sentences. They are stripped, because verl-npu adds a period."""
_VAGUE = re.compile(r"_ERRCODE_|^AISW_(?:TRACEBACK|SEG)")
"""Codes of faults that name no cause: the error codes of CANN and torch_npu, tracebacks, and crashes."""


def faults_of(path: Path) -> tuple[Fault, ...] | None:
    """Return the faults in an ascend-fd report, the most important first, or None if the file is not an ascend-fd
    report."""
    try:
        if path.suffix != ".json" or not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    section = report.get(_SECTION) if isinstance(report, dict) else None
    if not isinstance(section, dict):
        return None
    return tuple(
        _fault(fault, process, event)
        for fault in _mappings(section.get("fault"))
        if _said(fault, "code") != _NOTHING
        for process, event in _events(fault)
    )


def _events(fault: Mapping[str, object]) -> Iterator[tuple[Process, Mapping[str, object]]]:
    """Yield each occurrence of a fault with its process. ascend-fd writes the process as `worker-NAME
    device-NUMBER`."""
    places = fault.get("event_attr")
    for place, events in places.items() if isinstance(places, dict) else ():
        host, _found, device = str(place).partition(" device-")
        host = host.removeprefix("worker-")
        process = Process(ip="" if host == "local" else host, device=device if device.isdigit() else "")
        for event in _mappings(events):
            yield process, event


def _fault(fault: Mapping[str, object], process: Process, seen: Mapping[str, object]) -> Fault:
    code, text = _said(fault, "code"), _said(seen, "key_info").strip()
    lines = text.splitlines()[:MOST_LINES] or [code]
    event = Event(Kind.CANN, process, 0, _said(seen, "source_file"), lines)
    cause, advice = (_translated(fault, name).rstrip(_ENDS) for name in ("cause", "suggestion"))
    source = (f"ascend-fd: {code}",)
    finding = Finding(code, Severity.ERROR, lines[0], why=cause, fix=advice, source=source)
    rule = LogRule(
        code=code,
        ask=lambda _text: (finding,),
        stages=(Stage.LOG,),
        precision=Precision.CODE if _VAGUE.search(code) else Precision.EXACT,
        alternatives=(),
        pattern=re.compile(re.escape(lines[0])),
        seen=source,
        anywhere=False,
        means=cause,
        fix=advice,
    )
    return event, rule


def _translated(fault: Mapping[str, object], name: str) -> str:
    return _said(fault, f"{name}_en") or _said(fault, f"{name}_zh")


def _said(of: Mapping[str, object], name: str) -> str:
    said = of.get(name)
    if isinstance(said, Sequence) and not isinstance(said, str):
        return " ".join(each.strip() for each in said if isinstance(each, str))
    return said if isinstance(said, str) else ""


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
