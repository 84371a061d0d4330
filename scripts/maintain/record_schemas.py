"""Record the schemas of the operators that the virtual Ascend offers, in verl_npu/virtual/operators/schemas.json.

They are read from libtorch_npu.so in the wheels of the real torch_npu, where they are plain text.

    pip download --no-deps torch_npu==2.7.1 ...; python scripts/maintain/record_schemas.py torch_npu-*.whl
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path

from packaging.version import Version

from verl_npu.virtual import operators
from verl_npu.virtual.operators import schemas as shipped

LIBRARY = "torch_npu/lib/libtorch_npu.so"
SCHEMA = re.compile(rb"(?<=\0)([a-z_]\w+)(?:\.(\w+))?(\([\x20-\x7e]*\) -> [\x20-\x7e]+)(?=\0)")

# The overloads that ours serve, where that is not the one without a name.
OVERLOADS = {
    "npu_apply_adam_w": ("out",),
    "npu_format_cast_": ("acl_format",),
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


def main() -> None:
    """Write the file: for each operator, its schemas by the version from which on they are so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help="one wheel of each version")
    by_version = {Version(wheel.name.split("-")[1]): schemas(wheel) for wheel in parser.parse_args().wheels}
    recorded: dict[str, dict[str, list[str]]] = {name: {} for name in sorted(operators.__all__)}
    for name, changes in recorded.items():
        last: list[str] = []
        for version in sorted(by_version):
            now = by_version[version].get(name, [])
            if now != last:
                changes[str(version)] = last = now
    versions = [str(version) for version in sorted(by_version)]
    shipped.RECORDED.write_text(json.dumps({"versions": versions, "operators": recorded}, indent=1) + "\n")
    print(f"{shipped.RECORDED}: {len(recorded)} operators in torch_npu {', '.join(versions)}")


if __name__ == "__main__":
    main()
