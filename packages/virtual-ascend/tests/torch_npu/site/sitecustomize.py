"""In every process of a run, makes `torch_npu.testing` come from the checkout.

Everything else comes from the virtual Ascend, or from the wheel under test, which has these modules itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tests import forking

TESTING = Path(os.environ["TORCH_NPU_TESTING"])
OURS = os.environ["VIRTUAL_ASCEND_TORCH_NPU"] == "ours"


class Testing:
    """Finds the modules that torch_npu's tests import beside torch_npu."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parts = name.split(".")
        if parts[:2] != ["torch_npu", "testing"] and (not OURS or name != "torch_npu.utils._path_manager"):
            return None
        place = TESTING.joinpath(*parts)
        if (place / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.is_file() else None


sys.meta_path.insert(0, Testing())  # type: ignore[arg-type]

forking.install("torch_npu")
