from __future__ import annotations

import pytest
from verl_npu_workbench.secrecy.redaction import Redaction


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        ("HF_TOKEN=hf_abcdefGHIJKL1234567890", "hf_abcdef"),
        ("using key sk-abcdef1234567890abcdef", "sk-abcdef"),
        ("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("{'password': 'open sesame'}", "open"),
        ('"secret_access_key": "wJalrXUtnFEMI/K7MDENG"', "wJalr"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc", "eyJhbG"),
        ("git+https://me:pa55word@example.com/x.git", "pa55word"),
        ("https://ghp_abcdefghij0123456789@example.com/x", "abcdefghij"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("mail to someone@example.com", "someone"),
        ("(WorkerDict pid=1, ip=10.23.45.67)", "10.23.45.67"),
        ("connect to fe80:0:0:0:2aa:ff:fe9a:4ca2", "2aa:ff"),
        ('File "/home/someone/project/a/b/reward.py", line 3', "someone"),
        ('File "/home/someone/venv/lib/python3.11/site-packages/torch/nn.py", line 3', "someone"),
        ("node worker-17-blue failed", "worker-17"),
        ("srun: error: gandalf: task 3: Killed", "gandalf"),
        ("/data/frodo is gone; frodo@gandalf", "frodo"),
    ],
)
def test_it_is_taken_out(said: str, secret: str) -> None:
    assert secret in said
    assert secret not in Redaction(("gandalf", "frodo"))(said)


@pytest.mark.parametrize(
    "said",
    [
        "max_token_len: 4096",
        "num_tokens=128 prompt_tokens: 12.5",
        "RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity)",
        "listening on 127.0.0.1:8000",
        "/usr/local/Ascend/ascend-toolkit/latest",
        "torch 2.7.1, torch_npu 2.7.1.post1",
        "[ERROR] 2025-06-25-10:45:23 (PID:4711, Device:0, RankID:0) ERR00100 PTA call acl api failed",
    ],
)
def test_what_a_reader_needs_stays(said: str) -> None:
    assert Redaction()(said) == said


def test_the_same_address_has_the_same_name_throughout() -> None:
    redact = Redaction()
    assert redact("10.0.0.7 waits for 10.0.0.8") == "<ip 1> waits for <ip 2>"
    assert redact("10.0.0.8") == "<ip 2>"


def test_of_a_path_the_file_of_the_program_is_kept() -> None:
    assert Redaction()("/opt/me/verl/workers/fsdp_workers.py") == "…/verl/workers/fsdp_workers.py"
