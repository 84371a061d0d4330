"""The patch registry. It knows nothing of verl or Ascend: it could patch any package.

A plugin declares patches, records in a lock what its upstream looks like, and activates a registry:

    import sys
    from pathlib import Path
    from tempfile import mkdtemp

    from verl_npu.maintain.locks import record_lock, write_lock
    from verl_npu.registry import Bundle, Calls, Feature, Policy, Registry, SourceTree, Upstream

    # The upstream, which is somebody else's package.
    site = Path(mkdtemp())
    (site / "shop").mkdir()
    (site / "shop" / "__init__.py").write_text("")
    (site / "shop" / "till.py").write_text("def total(prices): return sum(prices)")
    sys.path.insert(0, str(site))

    # The plugin. The lock is written once, when the plugin is made, and comes with it.
    rounding = Feature("rounding", "Totals have no cents.")

    @rounding.wrap(
        "shop.till:total",
        why="a total has cents, and nobody has any in his pocket",
        how="the total is rounded",
        link="none: an example",
        retired_by=Calls("shop.till:total", "round"),
    )
    def round_the_total(original, prices):
        return round(original(prices))

    upstreams = [Upstream("shop", ("shop",))]
    locks = site / "locks"
    write_lock(record_lock(upstreams[0], "v1", "a commit", SourceTree.installed(["shop"]), [*rounding]), locks)

    registry = Registry(
        trigger="shop",
        bundles=lambda: [Bundle([rounding], upstreams, locks)],
        policy=Policy("SHOP_PLUGIN"),
        warn=print,
        changed=lambda registry: None,
    )
    registry.activate()

    from shop.till import total

    print(total([1.2, 1.9]), registry.states()["rounding"])  # 3 applied
    registry.deactivate()

`facade` lists what can be imported from here. `patch` is how patches are declared, and `state` what becomes of them.
From there it goes in three steps:

- `source`: how upstream's source is read, without importing it. A tree gives the definition behind a target (`tree`,
  `definition`), finds names and code in it (`lookup`), reads what upstream patches by itself (`assignments`), and
  answers a patch's questions (`probe`).
- `judge`: what the source says of each patch. A lock records a target at a pin (`lock`); a verdict is the state of a
  patch for a tree (`verdict`), found for each owner's features by the owner's locks (`bundles`); what upstream patches
  by itself is looked up (`natives`); a newer upstream is compared with the nearest pin (`diff`).
- `apply`: how patches get into modules and out again. Hooks around imports (`hooks`), the places that are written
  (`slots`) and what goes there (`replacement`), the state of each patch in this process (`ledger`, `readback`), and
  the registry itself, which drives all of it (`engine`).
"""

from __future__ import annotations

# ruff: noqa: F403, F405
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .facade import *

__all__ = [
    "Action",
    "AllOf",
    "AnyOf",
    "Assigns",
    "Bundle",
    "Calls",
    "Catches",
    "Defines",
    "Feature",
    "Imported",
    "Imports",
    "IsActor",
    "Judged",
    "Keys",
    "Lock",
    "Never",
    "Not",
    "Passes",
    "Patch",
    "PatchModule",
    "Policy",
    "Raises",
    "Reads",
    "Registry",
    "Sets",
    "SourceTree",
    "Standing",
    "State",
    "Takes",
    "Target",
    "Upstream",
    "Verdict",
    "judge_bundles",
    "read_locks",
]


def __getattr__(name: str) -> object:
    """Return what the facade has of that name, loaded now: `apply.hooks`, and so this, is in every `import torch`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".facade", __name__), name)
