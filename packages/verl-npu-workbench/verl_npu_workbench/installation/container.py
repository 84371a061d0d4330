"""A container for a pin: the image, the server's NPUs, the files of the host's driver, and the `docker run` command.

Both Ascend's container runtime and vllm-ascend's documents name the driver's files. verl's own document mounts the
whole driver folder, which contains lib64, version.info, and the tool hccn_tool. /etc/hccn.conf has the addresses of
the NPUs' own network cards, which ranks on several machines need.

The sources are MindCluster's (github.com/Ascend/mind-cluster at 22bb3d98): docs/en/scheduling/api/k8s.md for the
labels of nodes, docs/en/scheduling/api/volcano.md, table 3, for the policies, and
component/ascend-for-volcano/internal/npu/ascend910 for the numbers of NPUs that a job may ask for.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from verl_npu.errors import CommandError
from verl_npu.language import gettext as _

from ..pins import Pin
from .target import Npu, Target

SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_GIB = 64
"""The size of /dev/shm in GiB. Ray keeps its objects there, and data loader workers keep their batches there."""


@dataclass(frozen=True, slots=True)
class Container:
    """The container that runs on each machine."""

    pin: Pin
    server: Server
    npus: int
    image: str
    mounts: tuple[str, ...] = ()
    """Writable folders of the host, each mounted at the same path."""
    tools: tuple[str, ...] = ()
    """Files and folders of the host that are mounted read-only, besides the driver's."""
    published: bool = False
    """True if the image is a published one. Its name here does not include the address of the registry. The container
    then runs in the background and is entered with `docker exec`."""


def container(
    target: Target, server: Server, npus: int | None = None, image: str = "", mounts: Sequence[str] = ()
) -> Container:
    """Return a container, by default with all NPUs of the server and the image that is documented for the target.

    A container of a published image runs in the background. Besides the folders in `mounts`, such a container mounts
    the folders that the image's documentation lists.

    Raises:
        CommandError: the server has fewer than `npus` NPUs, no image exists for the target, or a mount is not an
            absolute path.
    """
    if npus is not None:
        server.check(npus)
    for path in mounts:
        if not path.startswith("/") or ":" in path:
            raise CommandError(
                subject=f"--mount {path}",
                expected=_(
                    "the absolute path of a folder on the host, because the container mounts the folder at the "
                    "same path"
                ),
                found=path,
                fix=_("specify a path such as /data"),
            )
    published = target.environment.published and not image
    own = target.image if published else None
    return Container(
        pin=target.pin,
        server=server,
        npus=server.npus if npus is None else npus,
        image=image or _own_image(target),
        mounts=tuple(dict.fromkeys((*(own.mounts if own else ()), *mounts))),
        tools=own.tools if own else (),
        published=published,
    )


def _own_image(target: Target) -> str:
    if target.image is not None:
        return target.tag
    published = [each for each in target.pin.environments if each.published]
    names = _("one of {published}").format(
        published=_(", ").join(image.base for each in published for image in each.images)
    )
    other = (
        ""
        if target.environment.published or not published
        else _("use {names} with --for {id}, or ").format(names=names, id=published[0].id)
    )
    raise CommandError(
        subject=_("an image with verl {target} for {npu} and {arch} processors").format(
            target=target.name, npu=target.npu.value.upper(), arch=target.arch.value
        ),
        expected=names if target.environment.published else _("a Dockerfile in verl's docker/ascend at this pin"),
        found=_("no image"),
        fix=_("{other}specify your own image with --image").format(other=other),
    )


def docker_run(made: Container) -> str:
    """Return the `docker run` command that starts the container with access to this machine's NPUs."""
    numbers = range(made.npus)
    # Without verl's --ipc host: with it, docker ignores --shm-size and uses the host's /dev/shm.
    writable = (
        " ".join(f"-v {shlex.quote(path)}:{shlex.quote(path)}" for path in made.mounts)
        if made.mounts
        else '-v "$HOME/.cache":/root/.cache -v "$PWD":/workspace -w /workspace'
    )
    lines = [
        "docker run -dit --name verl-npu" if made.published else "docker run -it --rm --name verl-npu",
        f"--net=host --shm-size={SHARED_MEMORY_GIB}g --ulimit nofile=1048576:1048576",
        *(
            " ".join(f"--device {npu_device(number)}" for number in numbers[first : first + 4])
            for first in numbers[::4]
        ),
        " ".join(f"--device {device}" for device in DEVICES),
        *(f"-v {path}:{path}:ro" for path in (*(file.path for file in FILES), *made.tools)),
        writable,
        f"{_name(made)} bash",
    ]
    return " \\\n    ".join(lines) + "\n"


def _name(made: Container) -> str:
    """Return the image's name, quoted for a shell."""
    if not made.published:
        return shlex.quote(made.image)
    # Without a registry docker would look on Docker Hub, where anybody may have registered the name.
    return f'"${{REGISTRY:?set it to the address that the document of the image gives}}/{made.image}"'


@dataclass(frozen=True, slots=True)
class File:
    """A file or a folder of the host that is mounted read-only at the same path in the container."""

    path: str
    folder: bool
    source: str
    """The repository and the document that list the file."""

    @property
    def volume(self) -> str:
        """The name of the volume that holds this file in a pod: lowercase letters, digits, and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.path.rpartition("/")[2].lower())


_RUNTIME = "Ascend/mind-cluster 22bb3d98: component/ascend-docker-runtime/build/scripts/base.list"
_VLLM_ASCEND = _("vllm-ascend v0.23.0: docs/source/installation.md")
_VERL = "verl 1dda039b: docs/ascend_tutorial/get_start/dockerfile_build_guidance.rst"
_SEVERAL = _("vllm-ascend v0.23.0: docs/source/tutorials/features/pd_disaggregation_mooncake_multi_node.md")
DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
"""The device files besides those of the NPUs: management, memory, and the channel between host and NPU."""
FILES = (
    File("/usr/local/dcmi", True, _RUNTIME),
    File("/usr/local/bin/npu-smi", False, _RUNTIME),
    File("/usr/local/Ascend/driver", True, _VERL),
    File("/etc/ascend_install.info", False, _VLLM_ASCEND),
    File("/etc/hccn.conf", False, _SEVERAL),
)
"""The files and folders of the driver that are mounted into the container."""


def npu_device(number: int) -> str:
    """Return the device file of one NPU of the host."""
    return f"/dev/davinci{number}"


@dataclass(frozen=True, slots=True)
class Server:
    """A server model, such as Atlas 800T A2."""

    key: str
    """The server's name on the command line."""
    name: str
    npu: Npu
    npus: int
    label: str
    """The value of the node's label `accelerator-type`."""
    policy: str
    """The value of the annotation `huawei.com/schedule_policy`."""
    super_pod: bool = False
    """True if servers of this model form a SuperPoD. A job on several servers of a SuperPoD must use all NPUs of each
    server."""

    def check(self, npus: int) -> None:
        """Check that a server of this model has at least this many NPUs.

        Raises:
            CommandError: `npus` is below 1 or above the server's number of NPUs.
        """
        if 1 <= npus <= self.npus:
            return
        larger = [each.key for each in SERVERS.values() if each.npu is self.npu and each.npus >= npus > self.npus]
        raise CommandError(
            subject=f"--npus {npus}",
            expected=_("a number from 1 to {npus}, because one {name} has {npus} NPUs").format(
                npus=self.npus, name=self.name
            ),
            found=str(npus),
            fix=_("use --server {larger}, which has enough NPUs").format(larger=larger[0])
            if larger
            else _("spread the job over more machines with --nodes"),
        )

    def check_pod(self, npus: int, nodes: int) -> None:
        """Check the number of NPUs of each pod in a job on `nodes` nodes.

        Raises:
            CommandError: Ascend's scheduler does not accept this number for a pod, or the server has fewer NPUs.
        """
        self.check(npus)
        allowed = [str(count) for count in range(1, self.npus + 1) if self._is_given(count, nodes)]
        if str(npus) not in allowed:
            raise CommandError(
                subject=f"--npus {npus}",
                expected=_(
                    "{allowed}, because Ascend's scheduler accepts only these NPU counts for a pod on {name}"
                ).format(allowed=_(", ").join(allowed), name=self.name)
                + (_(" in a job on {nodes} nodes").format(nodes=nodes) if nodes > 1 else ""),
                found=str(npus),
                fix=_("set --npus to one of these numbers"),
            )

    def _is_given(self, npus: int, nodes: int) -> bool:
        if nodes > 1 and self.super_pod:
            return npus == self.npus
        if self.npu is Npu.A3:
            # A card has two NPUs, and only a job with a single pod may get half a card.
            return npus % 2 == 0 or (npus == 1 and nodes == 1)
        return npus <= 8 or npus % 2 == 0


SERVERS = {
    each.key: each
    for each in (
        Server("a2", _("Atlas 800T A2"), Npu.A2, 8, "module-910b-8", "chip8-node8"),
        Server(
            "a2-box16",
            _("Atlas 200T A2 Box16"),
            Npu.A2,
            16,
            "module-910b-16",
            "chip8-node16",
        ),
        Server("a3", _("Atlas 800T A3"), Npu.A3, 16, "module-a3-16", "chip2-node16"),
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
"""All servers, by key."""
