"""Servers with NPUs, as Ascend's scheduler knows them.

The facts are those of MindCluster (github.com/Ascend/mind-cluster at 22bb3d98): the labels of nodes in
docs/en/scheduling/api/k8s.md, the policies in docs/en/scheduling/api/volcano.md, table 3, and how many NPUs of a node
a job may ask for in component/ascend-for-volcano/internal/npu/ascend910.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ContainerError
from .target import Npu

__all__ = ["SERVERS", "Server"]


@dataclass(frozen=True, slots=True)
class Server:
    """One model of a server."""

    key: str
    """How the command line calls it."""
    name: str
    npu: Npu
    npus: int
    label: str
    """The value of the node's label `accelerator-type`."""
    policy: str
    """The value of the annotation `huawei.com/schedule_policy`."""
    super_pod: bool = False
    """Whether servers are joined to a SuperPoD, in which a job over several of them takes whole ones."""

    def check(self, npus: int) -> None:
        """Refuse more NPUs than the server has.

        Raises:
            ContainerError: more, or none.
        """
        if 1 <= npus <= self.npus:
            return
        larger = [each.key for each in SERVERS.values() if each.npu is self.npu and each.npus >= npus > self.npus]
        raise ContainerError(
            subject=f"--npus {npus}",
            expected=f"1 to {self.npus}, which is what one {self.name} has",
            found=str(npus),
            fix=f"--server {larger[0]} has that many" if larger else "ask for more nodes",
        )

    def check_pod(self, npus: int, nodes: int) -> None:
        """Refuse a number of NPUs that Ascend's scheduler gives to no pod of a job over so many nodes.

        Raises:
            ContainerError: such a number, or more than the server has.
        """
        self.check(npus)
        allowed = [str(count) for count in range(1, self.npus + 1) if self._is_given(count, nodes)]
        if str(npus) not in allowed:
            raise ContainerError(
                subject=f"--npus {npus}",
                expected=f"{', '.join(allowed)}: Ascend's scheduler gives no other number to a pod on {self.name}"
                + (f" in a job over {nodes} nodes" if nodes > 1 else ""),
                found=str(npus),
                fix="ask for one of those",
            )

    def _is_given(self, npus: int, nodes: int) -> bool:
        if nodes > 1 and self.super_pod:
            return npus == self.npus
        if self.npu is Npu.A3:
            # Two NPUs are one card; half a card goes to jobs of one pod only.
            return npus % 2 == 0 or (npus == 1 and nodes == 1)
        return npus <= 8 or npus % 2 == 0


SERVERS = {
    each.key: each
    for each in (
        Server("a2", "Atlas 800T A2", Npu.A2, 8, "module-910b-8", "chip8-node8"),
        Server(
            "a2-box16",
            "Atlas 200T A2 Box16",
            Npu.A2,
            16,
            "module-910b-16",
            "chip8-node16",
        ),
        Server("a3", "Atlas 800T A3", Npu.A3, 16, "module-a3-16", "chip2-node16"),
        Server(
            "a3-superpod",
            "Atlas 900 A3 SuperPoD",
            Npu.A3,
            16,
            "module-a3-16-super-pod",
            "chip2-node16-sp",
            super_pod=True,
        ),
    )
}
"""All servers, by their key."""
