"""A container for a pin: which image, how many NPUs, and the `docker run` that starts it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ..ascend.matrix import Pin
from ..errors import ContainerError
from .driver import DEVICES, FILES, npu_device
from .server import Server
from .target import Arch, Target

__all__ = ["SHARED_MEMORY", "SHARED_MEMORY_GIB", "Container", "container", "docker_run"]

SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_GIB = 64
"""Where Ray keeps its objects and the workers of a data loader their batches."""


@dataclass(frozen=True, slots=True)
class Container:
    """What runs on each machine."""

    pin: Pin
    server: Server
    npus: int
    image: str


def container(pin: Pin, server: Server, npus: int | None = None, image: str = "") -> Container:
    """Return a container; `npus` is all that the server has unless given, and `image` the pin's own.

    Raises:
        ContainerError: more NPUs than the server has, or the pin has no image for them.
    """
    if npus is not None:
        server.check(npus)
    return Container(pin, server, server.npus if npus is None else npus, image or _own_image(pin, server))


def _own_image(pin: Pin, server: Server) -> str:
    # The processor does not matter: an image of one name is built on each kind.
    target = Target(pin, Arch.ARM, server.npu, in_image=True)
    if target.image is None:
        raise ContainerError(
            subject=f"an image of verl {pin.name} for {server.npu.value.upper()}",
            expected="a Dockerfile in verl's docker/ascend at this pin",
            found="none",
            fix="name an image of your own with --image",
        )
    return target.tag


def docker_run(made: Container) -> str:
    """Return the command that starts a container with NPUs of this machine."""
    numbers = range(made.npus)
    # No --ipc host, which verl's document has: docker then ignores --shm-size, and takes the host's /dev/shm.
    lines = [
        "docker run -it --rm --name verl-npu",
        f"--net=host --shm-size={SHARED_MEMORY_GIB}g --ulimit nofile=1048576:1048576",
        *(
            " ".join(f"--device {npu_device(number)}" for number in numbers[first : first + 4])
            for first in numbers[::4]
        ),
        " ".join(f"--device {device}" for device in DEVICES),
        *(f"-v {file.path}:{file.path}:ro" for file in FILES),
        '-v "$HOME/.cache":/root/.cache -v "$PWD":/workspace -w /workspace',
        f"{shlex.quote(made.image)} bash",
    ]
    return " \\\n    ".join(lines) + "\n"
