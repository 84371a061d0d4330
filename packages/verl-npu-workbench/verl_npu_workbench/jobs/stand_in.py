"""The stand-in program that runs in a sandbox in place of python, torchrun, ray, pip, and similar programs.

It writes each call as a line of JSON to the file descriptor in STAND_IN_CALLS. It is started by its file path, without
this package and without site-packages. Its first argument is the name of the program that was called.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import sys

THROUGH = ("sudo", "nohup")
"""Programs that only run the command in their arguments."""
ADDRESS = "127.0.0.1"
"""The address of this node that `ifconfig`, `ip`, and `hostname` print."""
_LARGEST_FILE = 1 << 18


def main() -> int:
    name, *arguments = sys.argv[1:]
    if name in THROUGH and arguments:
        os.execvp(arguments[0], arguments)
    if name.startswith("python") and arguments[:2] == ["-c", "import torch_npu"]:
        # Scripts for several kinds of devices use this import to detect NPUs.
        return 0
    if name.startswith("python") and _is_query(arguments):
        os.environ.pop("BASH_ENV", None)
        os.environ.setdefault("VIRTUAL_ASCEND", os.environ["STAND_IN_NPUS"])
        python = os.environ["STAND_IN_PYTHON"]
        # Python finds its virtual environment by the path in argv[0].
        os.execv(python, [python, *arguments])
    record(name, arguments)
    return ANSWERS[name](arguments) if name in ANSWERS else 0


def record(name: str, arguments: list[str]) -> None:
    """Record the call as one line of JSON."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STAND_IN_")}
    call = {"program": name, "arguments": arguments, "folder": os.getcwd(), "environment": environment}
    line = json.dumps({**call, "runtime": _runtime_environment(name, arguments)})
    descriptor = int(os.environ["STAND_IN_CALLS"])
    # The lock keeps lines whole when several processes write at once.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _runtime_environment(name: str, arguments: list[str]) -> str:
    """Return the text of the runtime environment file that `ray job submit` names. It is read when the call is
    recorded, because the script may have just written it."""
    if name != "ray" or arguments[:2] != ["job", "submit"]:
        return ""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    values = [word.partition("=")[2] for word in options if word.startswith("--runtime-env=")]
    values += [value for word, value in itertools.pairwise(options) if word == "--runtime-env"]
    try:
        with open(values[-1], errors="replace") as file:
            return file.read(_LARGEST_FILE)
    except (IndexError, OSError):
        return ""


def _is_query(arguments: list[str]) -> bool:
    """Return whether this call of python only computes a value for the script, as in `$(python3 -c …)`."""
    return bool(arguments) and arguments[0] in ("-c", "-", "-V", "--version")


def _ray(words: list[str]) -> int:
    # Scripts wait until `ray status` shows the NPUs of all nodes. The stand-in does not know how many nodes that is,
    # so each call shows one node more.
    if words[:1] == ["status"]:
        counter = os.path.join(os.environ["STAND_IN_STATE"], "ray-status")
        with open(counter, "a+") as file:
            file.write("+")
            file.flush()
            nodes = os.path.getsize(counter)
        print(f"Resources\n Total Usage:\n  0.0/{nodes * 8}.0 CPU\n  0.0/{nodes * _npus()}.0 NPU")
    return 0


def _npus() -> int:
    """Return the number of NPUs of a node that this script gave to `ray start --resources`."""
    try:
        with open(os.path.join(os.environ["STAND_IN_STATE"], "ray-npus")) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 8


def _ray_and_start(words: list[str]) -> int:
    if words[:1] == ["start"]:
        for word in words:
            if "NPU" in word:
                count = "".join(char for char in word.partition("NPU")[2] if char.isdigit())
                with open(os.path.join(os.environ["STAND_IN_STATE"], "ray-npus"), "w") as file:
                    file.write(count or "8")
    return _ray(words)


def _ifconfig(words: list[str]) -> int:
    print(f"eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>\n        inet {ADDRESS}  netmask 255.0.0.0")
    return 0


def _ip(words: list[str]) -> int:
    if any("route".startswith(word) for word in words):
        print(f"default via {ADDRESS} dev eth0 src {ADDRESS}")
    else:
        print(f"2: eth0: <BROADCAST,MULTICAST,UP>\n    inet {ADDRESS}/8 scope global eth0")
    return 0


def _hostname(words: list[str]) -> int:
    print(ADDRESS if words else "sandbox")
    return 0


def _npu_smi(words: list[str]) -> int:
    for npu in range(8):
        print(
            f"| {npu}     910B                | OK            | 0.0         0                 0    / 0             |"
        )
    return 0


ANSWERS = {"ray": _ray_and_start, "ifconfig": _ifconfig, "ip": _ip, "hostname": _hostname, "npu-smi": _npu_smi}

if __name__ == "__main__":
    sys.exit(main())
