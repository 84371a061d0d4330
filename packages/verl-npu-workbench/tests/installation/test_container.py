"""`docker run`: the devices and files that the documents name, read by docker's own parser."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from verl_npu_workbench.installation.container import SERVERS, container, docker_run
from verl_npu_workbench.installation.target import Arch, Target
from verl_npu_workbench.pins import PINS

from verl_npu.errors import CommandError

every = pytest.mark.parametrize("server", SERVERS)

# The mounts of github.com/vllm-project/vllm-ascend v0.23.0 (docs/source/installation.md), and those of them that
# Ascend's container runtime mounts by itself (component/ascend-docker-runtime/build/scripts/base.list).
DOCUMENTED_DEVICES = {"/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"}
DOCUMENTED_FILES = {
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
}


def target(pin: str, server: str, arch: str = "arm", named: str = "documents") -> Target:
    (environment,) = (each for each in PINS[pin].environments if each.id == named)
    return Target(PINS[pin], Arch(arch), SERVERS[server].npu, in_image=True, named=environment)


def line(server: str, npus: int | None = None, image: str = "") -> str:
    return docker_run(container(target("v0.9.1", server), SERVERS[server], npus, image))


def values(command: str, option: str) -> list[str]:
    words = shlex.split(command)
    return [word for previous, word in itertools.pairwise(words) if previous == option]


@every
def test_a_container_gets_the_npus_and_the_devices_that_the_documents_name(server: str) -> None:
    devices = values(line(server), "--device")
    npus = {f"/dev/davinci{number}" for number in range(SERVERS[server].npus)}
    assert set(devices) == npus | DOCUMENTED_DEVICES
    assert len(devices) == len(set(devices))


def test_as_many_npus_as_asked_for() -> None:
    devices = values(line("a3", 3), "--device")
    assert [each for each in devices if each[-1].isdigit()] == [f"/dev/davinci{number}" for number in range(3)]


@every
def test_each_file_that_the_documents_name_is_mounted_read_only_at_its_own_path(server: str) -> None:
    mounts = [each.split(":") for each in values(line(server), "-v") if each.endswith(":ro")]
    assert all(outside == inside for outside, inside, _ in mounts)
    folders = [inside for _, inside, _ in mounts]
    for file in DOCUMENTED_FILES:
        assert any(file == folder or file.startswith(f"{folder}/") for folder in folders), file


@every
def test_it_has_shared_memory_and_the_network_of_the_host(server: str) -> None:
    words = shlex.split(line(server))
    assert "--shm-size=64g" in words
    assert "--net=host" in words
    # docker ignores --shm-size beside it.
    assert "--ipc" not in line(server)


@pytest.mark.parametrize(
    ("server", "arch", "image", "mounts"),
    [
        ("a2", "arm", "a2-arm", ["/home", "/data"]),
        ("a3", "arm", "a3-arm", ["/home", "/data", "/mnt"]),
        ("a2", "x86", "ax-x86", ["/home", "/data"]),
    ],
)
def test_the_published_image_runs_as_its_document_says(server: str, arch: str, image: str, mounts: list[str]) -> None:
    made = container(target("796871d7", server, arch, "image"), SERVERS[server], mounts=["/models", "/home"])
    words = shlex.split(docker_run(made))
    assert words[2] == "-dit"
    assert words[-2].endswith(f"}}/ascendhub/verl_pt27_25rc3:{image}")
    given = values(docker_run(made), "-v")
    assert [each.split(":")[0] for each in given if not each.endswith(":ro")] == [*mounts, "/models"]
    tools = {"/usr/local/sbin", "/usr/local/Ascend/firmware", "/usr/bin/msnpureport", "/usr/local/bin/npu-smi"}
    assert tools <= {each.split(":")[0] for each in given if each.endswith(":ro")}


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"REGISTRY": "host/x"}, "host/x/ascendhub/verl_pt27_25rc3:a3-arm bash\n"), ({}, "the document of the image")],
)
def test_the_published_image_is_never_looked_for_without_its_registry(variables: dict[str, str], said: str) -> None:
    text = docker_run(container(target("796871d7", "a3", "arm", "image"), SERVERS["a3"]))
    shown = 'docker() { echo "$@"; }\n' + text
    done = subprocess.run(["bash", "-c", shown], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == bool(variables)
    assert said in (done.stdout if variables else done.stderr)


def test_an_image_that_is_not_published_for_these_processors_and_a_mount_that_is_no_path_are_refused() -> None:
    with pytest.raises(CommandError, match="expected one of ascendhub/verl_pt27_25rc3:a2-arm, "):
        container(target("796871d7", "a3", "x86", "image"), SERVERS["a3"])
    with pytest.raises(CommandError, match="--mount models: expected the absolute path"):
        container(target("v0.9.1", "a2"), SERVERS["a2"], mounts=["models"])


def test_the_image_is_the_one_that_is_built_for_the_pin_or_the_users() -> None:
    assert shlex.split(line("a2"))[-2:] == ["verl-npu:v0.9.1-a2", "bash"]
    assert shlex.split(line("a3", image="my image; rm"))[-2:] == ["my image; rm", "bash"]


def test_a_pin_without_an_image_needs_the_users() -> None:
    with pytest.raises(CommandError, match=r"^an image with verl 796871d7 for A2 .*--image$"):
        container(target("796871d7", "a2"), SERVERS["a2"])
    assert container(target("796871d7", "a2"), SERVERS["a2"], image="mine").image == "mine"


@pytest.mark.parametrize(
    ("server", "npus", "fix"),
    [("a2", 0, "more machines"), ("a2", 9, "use --server a2-box16, which has enough"), ("a3", 17, "more machines")],
)
def test_more_npus_than_a_machine_has_are_an_error(server: str, npus: int, fix: str) -> None:
    with pytest.raises(CommandError, match=rf"^--npus {npus}: expected a number from 1 to ") as caught:
        container(target("v0.9.1", server), SERVERS[server], npus)
    assert fix in str(caught.value)


# Docker's own parser. It asks a daemon for its system and then sends the parsed line: this daemon keeps that, and
# starts nothing.


class Daemon(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer(200)

    def do_GET(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "/containers/create" in self.path:
            self.server.asked.append(json.loads(body))
        self.answer(500, b'{"message": "kept"}')

    def answer(self, status: int, body: bytes = b"OK") -> None:
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("OSType", "linux")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *said: object) -> None:
        pass


Read = Callable[[str], dict]


class Refused(Exception):
    """Docker's client did not understand the line."""


@pytest.fixture
def read() -> Iterator[Read]:
    """Return a function that parses a line with docker's client, by what it sends to a daemon."""
    docker = shutil.which("docker")
    if docker is None:
        pytest.skip("needs docker's client")
    server = HTTPServer(("127.0.0.1", 0), Daemon)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def call(command: str) -> dict:
        at = f"{shlex.quote(docker)} -H tcp://127.0.0.1:{server.server_port} run"
        without_terminal = command.replace("docker run -it", at)
        ended = subprocess.run(
            ["bash", "-c", without_terminal], capture_output=True, text=True, check=False, timeout=60, input=""
        )
        if not server.asked:
            raise Refused(ended.stderr)
        return server.asked.pop()

    yield call
    server.shutdown()
    thread.join()
    server.server_close()


@every
def test_docker_reads_the_devices_and_mounts_that_the_documents_name(read: Read, server: str) -> None:
    asked = read(line(server))
    host = asked["HostConfig"]
    npus = {f"/dev/davinci{number}" for number in range(SERVERS[server].npus)}
    assert asked["Image"] == f"verl-npu:v0.9.1-{SERVERS[server].npu.value}"
    assert {device["PathOnHost"] for device in host["Devices"]} == npus | DOCUMENTED_DEVICES
    assert (host["ShmSize"], host["NetworkMode"], host["Privileged"]) == (64 << 30, "host", False)
    mounts = [bind.split(":")[0] for bind in host["Binds"] if bind.endswith(":ro")]
    for file in DOCUMENTED_FILES:
        assert any(file == folder or file.startswith(f"{folder}/") for folder in mounts), file


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("--shm-size=64g", "--shm-size=64q"), ("--net=host", "--nets=host"), ("nofile=1048576", "nofiles=1")],
)
def test_docker_refuses_a_line_that_is_wrong(read: Read, right: str, wrong: str) -> None:
    with pytest.raises(Refused, match=r"invalid|unknown"):
        read(line("a2").replace(right, wrong))
