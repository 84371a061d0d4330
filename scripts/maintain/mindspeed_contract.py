"""Records the contract of a MindSpeed revision: `python scripts/maintain/mindspeed_contract.py --help`.

It records the names, types, defaults, and choices of arguments. It reads source code, and imports neither MindSpeed
nor Megatron.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verl_npu.features import locks_folder
from verl_npu.features.megatron.contract import write_contract
from verl_npu.features.megatron.source import extract


def main() -> None:
    """Extract the contract and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mindspeed", type=Path, required=True, help="a checkout of MindSpeed")
    parser.add_argument("--megatron", type=Path, required=True, help="a checkout, or a site-packages folder")
    parser.add_argument("--revision", required=True, help="the name of the record, for example f2b0977e")
    parser.add_argument("--core", required=True, help="the version of Megatron-Core, for example 0.12.1")
    parser.add_argument("--output", type=Path, default=locks_folder() / "mindspeed")
    given = parser.parse_args()
    contract = extract(given.mindspeed / "mindspeed", given.megatron / "megatron", given.revision, given.core)
    path = write_contract(contract, given.output)
    print(f"{path}: {len(contract.arguments)} arguments, {len(contract.features)} features")


if __name__ == "__main__":
    main()
