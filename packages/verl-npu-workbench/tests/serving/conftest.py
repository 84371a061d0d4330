"""A package `vllm` that serves without a model, and does what a test wants of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import argparse, json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

parser = argparse.ArgumentParser()
for name in ("--model", "--served-model-name", "--host", "--port", "--tensor-parallel-size", "--dtype"):
    parser.add_argument(name)
parser.add_argument("--max-model-len")
parser.add_argument("--enforce-eager", action="store_true")
parser.add_argument("--do", default="serve")
given = parser.parse_args()
print(f"SERVER {os.getpid()}", flush=True)
print("INFO 11-23 00:36:08 [a.py:1] starting", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"CHILD {child.pid}", flush=True)
if given.do == "fail":
    print("WARNING 11-23 00:36:08 [a.py:1] this can cause errors like `OSError: [Errno 24] Too many open files`")
    raise ValueError("the weights do not fit")
if given.do == "hang":
    time.sleep(600)
if given.do == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/end":
            os._exit(3)
        name = "somebody else" if given.do == "another" else given.served_model_name
        body = json.dumps({"data": [{"id": name}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


HTTPServer((given.host, int(given.port)), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install it; its folder."""
    folder = tmp_path / "site" / "vllm"
    (folder / "entrypoints" / "openai").mkdir(parents=True)
    for package in (folder, folder / "entrypoints", folder / "entrypoints" / "openai"):
        (package / "__init__.py").touch()
    (folder / "entrypoints" / "openai" / "api_server.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent), prepend=":")
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with four heads."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_attention_heads": 4}')
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install an empty package."""

    def call(name: str) -> None:
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
        monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])

    return call
