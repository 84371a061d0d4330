"""A small server that answers as OpenAI's does, for whatever asks one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Served", "serving"]

Request = dict[str, Any]


@dataclass
class Served:
    """What the server does, which a test may change while it runs, and what it was asked."""

    answer: Callable[[Request], str] = lambda request: "4"
    failures: list[int] = field(default_factory=list)
    """Statuses of the next requests, before they are answered."""
    models: list[str] = field(default_factory=lambda: ["small"])
    root: str = "models/small"
    owner: str = "somebody"
    finish_reason: str = "stop"
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@contextmanager
def serving() -> Iterator[Served]:
    """Serve on a port of the system's choice."""
    served = Served()
    handler = type("Handler", (_Handler,), {"served": served})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        self._send(200, {"data": [_model(self.served, name) for name in self.served.models]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.served.lock:
            self.served.requests.append(request)
            status = self.served.failures.pop(0) if self.served.failures else 200
        if status != 200:
            self._send(status, {"error": {"message": "the prompt is too long", "code": status}})
            return
        message = {"role": "assistant", "content": self.served.answer(request)}
        choice = {"index": 0, "message": message, "finish_reason": self.served.finish_reason}
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        self._send(200, {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _model(served: Served, name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": served.owner, "root": served.root}
