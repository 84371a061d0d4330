"""Record the schemas of the operators that the virtual Ascend offers, in operators/schemas.json of virtual_ascend.

They are read from libtorch_npu.so and libop_plugin_atb.so in the wheels of the real torch_npu, where they are plain
text. Some wheels have those of ATB in pieces, or none: there the nearest version's stand.

    pip download --no-deps torch_npu==2.7.1 ...; python scripts/record_schemas.py torch_npu-*.whl
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from pathlib import Path

import torch
from packaging.version import Version
from virtual_ascend import operators
from virtual_ascend.operators import schemas as shipped

LIBRARY = "torch_npu/lib/libtorch_npu.so"
ATB_LIBRARY = "torch_npu/lib/libop_plugin_atb.so"
ATB_NAMES = "torch_npu/op_plugin/atb/_atb_ops.py"
SCHEMA = re.compile(rb"(?<=\0)([a-z_]\w+)(?:\.(\w+))?(\([\x20-\x7e]*\) -> [\x20-\x7e]+)(?=\0)")

# The overloads that ours serve, where that is not the one without a name.
OVERLOADS = {
    "npu_apply_adam_w": ("out",),
    "npu_format_cast_": ("acl_format",),
    "npu_fused_infer_attention_score": ("", "out"),
    "npu_fused_infer_attention_score_v2": ("", "out"),
    "npu_grouped_matmul": ("", "List"),
}


def schemas(wheel: Path) -> dict[str, list[str]]:
    """Of one wheel, by operator; an operator that it lacks is not there."""
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read(LIBRARY)
    found: dict[str, dict[str, str]] = {}
    for name, overload, rest in SCHEMA.findall(library):
        dotted = b"." + overload if overload else b""
        found.setdefault(name.decode(), {})[overload.decode()] = (name + dotted + rest).decode()
    offered = {name: OVERLOADS.get(name, ("",)) for name in operators.__all__}
    kept = {name: [found[name][o] for o in wanted if o in found.get(name, {})] for name, wanted in offered.items()}
    return {name: texts for name, texts in kept.items() if texts}


def is_whole(text: str) -> bool:
    """Return whether a schema stands in one piece in the library."""
    try:
        torch._C.parse_schema(f"atb::{text}")
    except RuntimeError:
        return False
    return True


def atb(wheel: Path) -> dict[str, dict[str, str | None]]:
    """Of one wheel, ATB's operators by where they are offered, `torch_npu` or `torch_npu.atb`: their schemas, or None
    if they cannot be read."""
    with zipfile.ZipFile(wheel) as archive:
        library, source = archive.read(ATB_LIBRARY), archive.read(ATB_NAMES).decode()
    texts = {}
    for name, overload, rest in SCHEMA.findall(library):
        whole = name + b"." + overload if overload else name
        texts[whole.decode()] = (whole + rest).decode()
    found = {name: text for name, text in texts.items() if is_whole(text)}
    lists = {"API_LIST": "torch_npu", "ATB_API_LIST": "torch_npu.atb"}
    offered: dict[str, dict[str, str | None]] = {where: {} for where in lists.values()}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in lists:
            names = ast.literal_eval(node.value)
            names += [f"{name}.out" for name in names if f"{name}.out" in texts]
            offered[lists[node.targets[0].id]] = {
                name: found.get(name) or beginning(texts.get(name)) for name in names
            }
    return offered


def beginning(text: str | None) -> str | None:
    """Of a schema that does not stand in one piece, its arguments, if those do: without what it returns."""
    ends = (place for place, letter in enumerate(text or "", 1) if letter == ")")
    return next((text[:end] for end in ends if text and is_whole(f"{text[:end]} -> ()")), None)


def completed(by_version: dict[Version, dict[str, dict[str, str | None]]]) -> None:
    """Put the schemas of other wheels in the places of those of which only the arguments are known, and which are the
    same; None if there is none."""
    whole = {
        text
        for places in by_version.values()
        for names in places.values()
        for text in names.values()
        if text and "->" in text
    }
    for places in by_version.values():
        for names in places.values():
            for name, text in names.items():
                if text and "->" not in text:
                    names[name] = next((each for each in sorted(whole) if each.startswith(f"{text} ->")), None)


def recorded_atb(by_version: dict[Version, dict[str, dict[str, str | None]]]) -> dict[str, dict[str, dict[str, str]]]:
    """By place and name, the schema from each version on in which it changed; an empty one if no wheel shows it."""
    made: dict[str, dict[str, dict[str, str]]] = {}
    for version in sorted(by_version):
        for place, operators_there in by_version[version].items():
            for name, text in operators_there.items():
                changes = made.setdefault(place, {}).setdefault(name, {})
                last = list(changes.values())[-1] if changes else None
                if last is None or (last and text and text != last):
                    changes[str(version)] = text or ""
                elif text and not last:
                    changes[list(changes)[-1]] = text
    return made


def main() -> None:
    """Write a file that lists, for each operator, its schemas and the first version of each schema."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="one wheel of each version")
    wheels = {Version(wheel.name.split("-")[1]): wheel for wheel in parser.parse_args().wheels}
    by_version = {version: schemas(wheel) for version, wheel in wheels.items()}
    recorded: dict[str, dict[str, list[str]]] = {name: {} for name in sorted(operators.__all__)}
    for name, changes in recorded.items():
        last: list[str] = []
        for version in sorted(by_version):
            now = by_version[version].get(name, [])
            if now != last:
                changes[str(version)] = last = now
    versions = [str(version) for version in sorted(by_version)]
    found = {version: atb(wheel) for version, wheel in wheels.items()}
    completed(found)
    of_atb = recorded_atb(found)
    content = {"versions": versions, "operators": recorded, "atb": of_atb}
    shipped.RECORDED.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{shipped.RECORDED}: {len(recorded)} operators in torch_npu {', '.join(versions)}")


if __name__ == "__main__":
    main()
