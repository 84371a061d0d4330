"""What a container needs of the host's driver.

Both Ascend's container runtime and vllm-ascend's documents name these files; verl's own document mounts the whole
folder of the driver, which holds lib64, version.info and the tool hccn_tool. /etc/hccn.conf has the addresses of the
NPUs' own network cards, which ranks on several machines need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DEVICES", "FILES", "File", "npu_device"]


@dataclass(frozen=True, slots=True)
class File:
    """A file or a folder of the host that is mounted at the same path, read-only."""

    path: str
    folder: bool
    source: str
    """The document that names it, and whose."""

    @property
    def volume(self) -> str:
        """What a pod calls it: small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.path.rpartition("/")[2].lower())


_RUNTIME = "Ascend/mind-cluster 22bb3d98: component/ascend-docker-runtime/build/scripts/base.list"
_VLLM_ASCEND = "vllm-ascend v0.23.0: docs/source/installation.md"
_VERL = "verl 1dda039b: docs/ascend_tutorial/get_start/dockerfile_build_guidance.rst"
_SEVERAL = "vllm-ascend v0.23.0: docs/source/tutorials/features/pd_disaggregation_mooncake_multi_node.md"

DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
"""The devices beside the NPUs' own: management, memory and the channel between host and NPU."""

FILES = (
    File("/usr/local/dcmi", True, _RUNTIME),
    File("/usr/local/bin/npu-smi", False, _RUNTIME),
    File("/usr/local/Ascend/driver", True, _VERL),
    File("/etc/ascend_install.info", False, _VLLM_ASCEND),
    File("/etc/hccn.conf", False, _SEVERAL),
)
"""The files and folders of the driver."""


def npu_device(number: int) -> str:
    """Return the device of one NPU of the host."""
    return f"/dev/davinci{number}"
