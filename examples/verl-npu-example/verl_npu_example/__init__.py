"""A patch of verl and a patch of vLLM, of the kind that a cluster of one's own needs. What they do is made up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from verl_npu.features import Contribution
from verl_npu.registry import Calls, Feature, Reads, Upstream

# Import torch, verl and vLLM inside functions only: commands load this module, and it is loaded before verl is.
memory = Feature("example_memory", "Freeing an NPU's memory takes one attempt.")
address = Feature("example_address", "vLLM's processes meet at the address that HCCL uses.")


@memory.wrap(
    "verl.utils.memory_utils:aggressive_empty_cache",
    why="each step stands still while aggressive_empty_cache runs the garbage collector up to three times",
    how="upstream's function is called with one attempt, unless its caller asks for another number",
    link="none: an example",
    retired_by=Calls("verl.utils.memory_utils:aggressive_empty_cache", "npu.empty_cache"),
)
def one_attempt(original: Callable[..., None], force_sync: bool = True, max_retries: int = 1) -> None:
    """Free memory with one attempt."""
    original(force_sync=force_sync, max_retries=max_retries)


@address.wrap(
    "vllm.utils:get_ip",
    why="on a host with two networks vLLM takes the address of the one that leads out, which the other hosts cannot "
    "reach: its workers wait for each other until they time out",
    how="if HCCL_IF_IP is set on the host, and VLLM_HOST_IP is not, that address is taken",
    link="none: an example",
    retired_by=Reads("vllm.utils:get_ip", "HCCL_IF_IP"),
)
def take_the_address_of_hccl(original: Callable[[], str]) -> str:
    """Return the address that HCCL is told to use on this host, if it is told one."""
    own = os.environ.get("HCCL_IF_IP", "")
    return own if own and "VLLM_HOST_IP" not in os.environ else original()


contribution = Contribution(
    features=(memory, address),
    locks=Path(__file__).parent / "locks",
    # verl-npu has verl, transformers, hydra, tensordict and MindSpeed already.
    upstreams=(Upstream("vllm", ("vllm",)),),
)
