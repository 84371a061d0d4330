"""The patch registry. It is independent of verl and Ascend, and can patch any package.

A plugin declares patches, records its upstream in a lock, and activates a registry:

    import sys
    from pathlib import Path
    from tempfile import mkdtemp

    from verl_npu.maintain.locks import record_lock, write_lock
    from verl_npu.registry import Bundle, Calls, Feature, Lifecycle, Policy, Registry, SourceTree, Upstream

    # The upstream, somebody else's package.
    site = Path(mkdtemp())
    (site / "shop").mkdir()
    (site / "shop" / "__init__.py").write_text("def total(prices): return sum(prices)")
    sys.path.insert(0, str(site))

    # The plugin. Its author writes the lock once and ships it.
    rounding = Feature("rounding", "Totals have no cents.")

    @rounding.wrap(
        "shop:total",
        why="nobody carries cents",
        how="the total is rounded",
        link="none: an example",
        retired_by=Calls("shop:total", "round"),
    )
    def round_the_total(original, prices):
        return round(original(prices))

    upstreams = [Upstream("shop", ("shop",))]
    locks = site / "locks"
    write_lock(record_lock(upstreams[0], "v1", "a commit", SourceTree.installed(["shop"]), [*rounding]), locks)

    def make(mutex):
        bundle = Bundle([rounding], upstreams, locks)
        return Registry(mutex=mutex, bundles=lambda: [bundle], policy=Policy("SHOP_PLUGIN"), warn=print)

    lifecycle = Lifecycle("shop", make)
    lifecycle.activate()

    from shop import total
    print(total([1.2, 1.9]), lifecycle.work.states()["rounding"])  # 3 applied
    lifecycle.deactivate()

`facade` has all public names, and explains how the registry is built.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .facade import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Import a public name from the facade on first use.

    The facade is not imported at once, because every `import torch` loads this package through `apply.hooks`.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".facade", __name__), name)
