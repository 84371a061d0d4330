"""Starts the teacher of `recipe.gkd`, which is a small random model too, runs the recipe, and ends with its status.

python __main__.py CHECKOUT SEED module and settings…
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

SCRIPTS = str(Path(__file__).resolve().parents[2])
sys.path[0] = SCRIPTS
from harness import model  # noqa: E402  # found through the line above

PACKAGE = "harness.distillation"
LOG_PROBS = 32


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(checkout: Path, seed: int, words: list[str]) -> int:
    """Run the recipe to its end. Then end the teacher's two processes, which write their own logs."""
    teacher = model.generate(Path("teacher"), seed)
    recipe = checkout / "recipe" / "gkd"
    port, backend = _free_port(), _free_port()
    # In a real job, the teacher runs on another machine, so it gets no virtual NPU and no patch of verl-npu.
    plain = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ASCEND"}
    plain |= {"VERL_NPU": "off", "PROXY_FRONTEND_PORT": str(port), "PROXY_BACKEND_PORT": str(backend)}
    proxy = [sys.executable, str(recipe / "teacher" / "proxy.py")]
    worker = [sys.executable, str(Path(__file__).with_name("teacher.py")), str(recipe / "teacher" / "worker.py")]
    worker += ["--proxy-addr", f"localhost:{backend}", "--ckpt-path", str(teacher), "--n-logprobs", str(LOG_PROBS)]
    # The modules of the recipe import each other without the name of their package.
    paths = [str(recipe), SCRIPTS, *filter(None, [os.environ.get("PYTHONPATH")])]
    trained = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "VERL_USE_EXTERNAL_MODULES": PACKAGE}
    words = [*words, f"actor_rollout_ref.teacher.server_port={port}"]
    with open("teacher-proxy.log", "w") as proxy_log, open("teacher.log", "w") as worker_log:
        running = [
            subprocess.Popen(command, env=plain, stdout=log, stderr=subprocess.STDOUT)
            for command, log in ((proxy, proxy_log), (worker, worker_log))
        ]
        try:
            return subprocess.run([sys.executable, *words], env=trained, check=False).returncode
        finally:
            for process in running:
                process.terminate()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
