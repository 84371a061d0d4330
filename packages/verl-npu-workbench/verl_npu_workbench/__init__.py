"""What a person calls before, during and after a training, and what virtual NPUs need for verl.

Nothing here is part of `import torch` or of a training on real NPUs. The plugin does not know it: `verl-npu` finds the
commands of this package through entry points.
"""

from __future__ import annotations

from pathlib import Path

from verl_npu.language import add_catalogue

DOMAIN = "verl_npu_workbench"
LOCALE = Path(__file__).resolve().parent / "locale"

add_catalogue(DOMAIN, str(LOCALE))
