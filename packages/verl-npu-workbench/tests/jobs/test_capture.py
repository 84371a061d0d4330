from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verl_npu_workbench.jobs.capture import Capture, capture, required_verl, tree_of
from verl_npu_workbench.jobs.trainer import trainer_of, with_secrets

from verl_npu.errors import SourceError

from .conftest import COMMAND, Captured, Write


def words(captured: Capture) -> list[list[str]]:
    return [[call.program, *call.arguments] for call in captured.calls]


def test_calls_are_noted_in_order_and_word_by_word(captured: Captured) -> None:
    found = captured("pkill -9 python", "ray start --head", """python3 train.py 'a b' "c=[1,2]" """)
    assert words(found) == [
        ["pkill", "-9", "python"],
        ["ray", "start", "--head"],
        ["python3", "train.py", "a b", "c=[1,2]"],
    ]


def test_exports_are_those_of_the_script_at_the_time_of_the_call(captured: Captured) -> None:
    found = captured(
        "export A=1 B='x y'", "C=not-exported", "ray stop", "export A=2", "ray stop", given={"B": "before"}
    )
    first, second = (found.exports(call) for call in found.calls)
    assert first == {"A": "1", "B": "x y"}
    assert second == {"A": "2", "B": "x y"}


def test_a_variable_for_one_command_is_that_commands(captured: Captured) -> None:
    found = captured("HCCL_X=1 ray start", "ray stop")
    assert [found.exports(call) for call in found.calls] == [{"HCCL_X": "1"}, {}]


def test_a_call_knows_the_folder_that_it_was_made_in(captured: Captured, tree: Path) -> None:
    found = captured("ray stop", "cd examples", "ray stop")
    assert [call.folder for call in found.calls] == [tree, tree / "examples"]


def test_a_script_may_source_the_shell_files_beside_it(tmp_path: Path, tree: Path, sandboxed: None) -> None:
    (tmp_path / "mine" / "settings").mkdir(parents=True)
    (tmp_path / "mine" / "settings" / "a.sh").write_text("A=1\n")
    script = tmp_path / "mine" / "run.sh"
    script.write_text('source "$(dirname "$0")/settings/a.sh"\nray "$A"\n')
    assert words(capture(script, tree)) == [["ray", "1"]]


def test_arguments_reach_the_script(captured: Captured) -> None:
    assert words(captured('ray "$2" "$1" $#', arguments=["a b", "c"])) == [["ray", "c", "a b", "2"]]


SECRET = "correct-horse-7"


@pytest.mark.parametrize(
    ("line", "given", "got"),
    [
        ("echo $MODEL_PATH", {"MODEL_PATH": "/data/model"}, "/data/model"),
        ("echo ${NNODES:-1} $HOME", {"NNODES": "4"}, "4 /"),
        ("echo ${DATA_KEY} $MAX_TOKENS", {"DATA_KEY": "prompt", "MAX_TOKENS": "1024"}, "prompt 1024"),
        ("echo ${N_PASS} ${TOKEN_FILE}", {"N_PASS": "4", "TOKEN_FILE": "/data/x.bin"}, "4 /data/x.bin"),
        ('test -n "$WANDB_API_KEY" && echo set', {"WANDB_API_KEY": SECRET}, "set"),
        (': "${WANDB_API_KEY:?is needed}"; echo on', {"WANDB_API_KEY": SECRET}, "on"),
        ("echo $WANDB_API_KEY", {"WANDB_API_KEY": SECRET}, "masked-WANDB_API_KEY"),
        ("echo $proxy", {"proxy": f"http://me:{SECRET}@proxy:80"}, "masked-proxy"),
        ("echo ${WANDB_API_KEY:-none}", {}, "none"),
        ("name=MODE_OF_MINE; echo ${!name}", {"MODE_OF_MINE": "fast"}, "fast"),
        ("env", {"UNNAMED": SECRET}, ""),
        ("source settings.sh; echo $MODE", {"MODE_OF_MINE": "fast"}, "fast"),
    ],
)
def test_a_script_gets_what_it_names_and_no_secret(
    captured: Captured, tree: Path, line: str, given: dict[str, str], got: str
) -> None:
    (tree / "settings.sh").write_text("MODE=$MODE_OF_MINE\n")
    said = captured(line, given=given).ended.output.decode()
    assert got in said
    assert SECRET not in said


def test_what_is_started_outside_of_a_sandbox_has_its_secrets(captured: Captured) -> None:
    given = {"MY_TOKEN": SECRET}
    line = "export HF_TOKEN=$MY_TOKEN"
    trainer = trainer_of(captured(line, f"{COMMAND} +trainer.token=$MY_TOKEN", given=given))
    assert SECRET not in str(trainer)
    assert (trainer.overrides[-1], trainer.exports) == (
        "+trainer.token=masked-MY_TOKEN",
        {"HF_TOKEN": "masked-MY_TOKEN"},
    )
    whole = with_secrets(trainer, given)
    assert (whole.overrides[-1], whole.exports) == (f"+trainer.token={SECRET}", {"HF_TOKEN": SECRET})


def test_the_users_own_programs_and_home_do_not_reach_the_script(captured: Captured, tmp_path: Path) -> None:
    given = {"PATH": str(tmp_path), "HOME": str(tmp_path), "BASH_ENV": "/none", "PYTHONPATH": "x", "LD_PRELOAD": "y"}
    found = captured('ray "${PYTHONPATH-}${LD_PRELOAD-}" "$HOME"', given=given)
    assert found.calls[0].arguments[0] == ""
    assert found.calls[0].arguments[1] != str(tmp_path)


@pytest.mark.parametrize("unconfined", [False, True])
def test_what_a_script_names_below_its_home_is_in_the_users_and_cannot_be_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unconfined: bool
) -> None:
    home, tree = tmp_path / "home", tmp_path / "tree"
    home.mkdir()
    tree.mkdir()
    (home / "data.parquet").touch()
    monkeypatch.setenv("HOME", str(home))
    script = tree / "run.sh"
    script.write_text('ray "$HOME/data.parquet" ~/data.parquet "$(ls ~)"\n')
    assert words(capture(script, tree, unconfined=unconfined)) == [["ray", *2 * [str(home / "data.parquet")], ""]]


def test_python_computes_what_a_script_asks_it_with_the_packages_of_this_environment(captured: Captured) -> None:
    found = captured(
        "ray $(python3 -c 'import sys, click; print(6 * 7, sys.prefix)')",
        *("X=$(python3 - <<END", "print('computed')", "END", ")", "ray $X"),
    )
    assert words(found) == [["ray", "42", sys.prefix], ["ray", "computed"]]


def test_a_script_that_asks_for_torch_npu_is_on_npus(captured: Captured) -> None:
    asked = """python3 -c "import torch_npu" 2>/dev/null && DEVICE=npu || DEVICE=cuda"""
    assert words(captured(asked, "ray $DEVICE")) == [["ray", "npu"]]


def test_a_sourced_file_that_is_not_here_is_noted_and_no_error(captured: Captured) -> None:
    found = captured("set -e", "source /usr/local/Ascend/set_env.sh --cxx_abi=1", ". /not-here", "ray stop")
    assert found.missing == ("/usr/local/Ascend/set_env.sh", "/not-here")
    assert words(found) == [["ray", "stop"]]


@pytest.mark.parametrize("word", ["source", "."])
def test_a_sourced_file_that_is_here_is_read(captured: Captured, write: Write, word: str) -> None:
    write('export A="$1"', name="examples/env.sh")
    found = captured(f"{word} examples/env.sh word", "ray stop")
    assert found.exports(found.calls[0]) == {"A": "word"}
    assert found.missing == ()
    assert found.read == (found.script, found.tree / "examples/env.sh")


def test_a_script_that_resets_its_path_can_source_files(captured: Captured, write: Write) -> None:
    write("export A=1", name="examples/env.sh")
    found = captured("set -e", "old=$PATH; PATH=/usr/bin", "source examples/env.sh", "PATH=$old ray stop")
    assert found.exports(found.calls[0])["A"] == "1"
    assert found.read == (found.script, found.tree / "examples/env.sh")


def test_a_script_that_another_one_starts_is_captured_too(captured: Captured, write: Write) -> None:
    write("source /not-here", "ray $1", name="examples/inner.sh")
    found = captured("bash examples/inner.sh word")
    assert words(found) == [["ray", "word"]]
    assert found.missing == ("/not-here",)
    assert found.read == (found.script, found.tree / "examples/inner.sh", Path("/not-here"))


def test_a_limit_that_cannot_be_raised_is_no_error(captured: Captured) -> None:
    assert words(captured("set -e", "ulimit -n 99999999999", "ulimit -u unlimited", "ray stop")) == [["ray", "stop"]]


def test_a_strict_script_runs_to_its_end(captured: Captured) -> None:
    found = captured(
        "#!/usr/bin/env bash",
        "set -xeuo pipefail",
        "ulimit -n 1048576",
        "source /usr/local/Ascend/set_env.sh",
        "pkill -9 python || true",
        "ray stop --force",
        "mkdir -p logs/run && ls | grep -q verl",
        'cd "$(dirname "$0")/.."',
        f"{COMMAND} 2>&1 | tee logs/run/train.log",
    )
    assert found.ended.status == 0
    assert found.calls[-1].arguments[-1] == "actor.lr=1e-5"


def test_a_script_waits_for_a_cluster_that_is_there_soon(captured: Captured) -> None:
    count = 'n=$(ray status | grep -oP "(?<=/)\\d+(?=\\.\\d+\\s*NPU)")'
    loop = f'while true; do {count}; [ "$n" -eq 32 ] && break; sleep 5; done'
    found = captured("""ray start --head --resources='{"NPU": 16}'""", loop, "ray job")
    assert words(found)[-1] == ["ray", "job"]
    assert words(found).count(["ray", "status"]) == 2


def test_an_address_is_found_for_the_interface_that_a_script_names(captured: Captured) -> None:
    found = captured("ray $(ifconfig eth0 | grep -Eo 'inet ([0-9.]+)' | awk '{print $2}') $(hostname -I)")
    assert words(found)[-1] == ["ray", "127.0.0.1", "127.0.0.1"]


JOINED = (
    "IP=$(ip -4 addr show $(ip route show default | awk '{print $5}') | grep -oP '(?<=inet )[0-9.]+')",
    'if [ "$MASTER_ADDR" = "$IP" ]; then',
    "ray start --head",
    COMMAND,
    "else",
    'ray start --address="$MASTER_ADDR:6766"',
    "fi",
)


@pytest.mark.parametrize("head", ["IP FOR MASTER NODE", "192.168.0.7", "localhost"])
def test_a_script_that_joins_the_head_node_is_run_as_on_it(captured: Captured, head: str) -> None:
    found = captured(f'export MASTER_ADDR="{head}"', *JOINED)
    assert trainer_of(found).exports == {"MASTER_ADDR": "127.0.0.1"}
    assert found.head == head
    assert head in found.script.read_text()


def test_a_script_that_joins_and_trains_all_the_same_is_run_once(captured: Captured) -> None:
    found = captured("MASTER_ADDR=10.0.0.1", 'ray start --address="$MASTER_ADDR:6379"', COMMAND)
    assert words(found)[0][-1] == "--address=10.0.0.1:6379"
    assert not found.head


def test_an_address_that_begins_like_the_head_nodes_stays(captured: Captured) -> None:
    found = captured("MASTER_ADDR=10.0.0.1", "export OTHER=10.0.0.12", *JOINED)
    assert trainer_of(found).exports == {"OTHER": "10.0.0.12"}


def test_a_script_that_takes_the_head_node_from_elsewhere_is_run_once(captured: Captured) -> None:
    found = captured(*JOINED, given={"MASTER_ADDR": "192.168.0.7"})
    assert words(found)[-1] == ["ray", "start", "--address=192.168.0.7:6766"]
    assert not found.head


def test_a_recipe_says_how_to_install_its_verl(write: Write, tree: Path) -> None:
    script = write(name="recipe/small/run.sh")
    assert required_verl(script) == []
    (tree / "recipe" / "small" / "REQUIRED_VERL.txt").write_text(
        "MODE=pinned\nCOMMIT=1234\nPIP_INSTALL=pip install verl==0.7.1\nOPTION_A_PIP=pip install verl==0.4.0\n"
    )
    assert required_verl(script) == ["pip install verl==0.7.1", "pip install verl==0.4.0"]


def test_a_script_outside_of_the_tree_is_captured_in_the_tree(captured: Captured, tree: Path, tmp_path: Path) -> None:
    found = captured("ray $(ls)", folder=tmp_path / "elsewhere", name="mine.sh")
    assert words(found) == [["ray", "examples", "verl"]]
    assert found.script == tmp_path / "elsewhere" / "mine.sh"


def test_a_script_can_be_run_in_the_root_folder(sandboxed: None, write: Write) -> None:
    found = capture(write("touch /verl-npu-test && ray done"), Path("/"))
    assert words(found) == [["ray", "done"]]
    assert not Path("/verl-npu-test").exists()


def test_a_script_whose_name_is_like_an_option_is_captured(captured: Captured) -> None:
    assert words(captured("ray stop", name="-x.sh")) == [["ray", "stop"]]


def test_many_calls_at_once_are_noted_whole(captured: Captured) -> None:
    found = captured("for i in $(seq 8); do ray $i $(printf 'x%.0s' $(seq 9000)) & done", "wait")
    assert sorted(int(call.arguments[0]) for call in found.calls) == list(range(1, 9))
    assert {len(call.arguments[1]) for call in found.calls} == {9000}


@pytest.mark.parametrize(
    "line",
    ["text", "[1]", "{}", '{"program": 1, "arguments": [], "folder": "/", "environment": {}}', "[" * 5000],
    ids=["a text", "a list", "no keys", "a number", "nested"],
)
def test_what_a_script_itself_writes_among_the_calls_is_no_call(captured: Captured, line: str) -> None:
    assert words(captured(f"echo '{line}' >&$STAND_IN_CALLS", "ray stop")) == [["ray", "stop"]]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"if true; then\n", "syntax error"),
        (b"echo 'no end\n", "unexpected EOF"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\xff\xfe" * 20, "cannot execute binary file"),
    ],
)
def test_what_bash_cannot_parse_is_not_run(write: Write, tree: Path, content: bytes, found: str) -> None:
    script = write()
    script.write_bytes(content)
    with pytest.raises(SourceError, match=found):
        capture(script, tree)


@pytest.mark.parametrize("path", ["none.sh", "verl", "examples/run.sh/x"])
def test_what_is_no_file_is_no_script(write: Write, tree: Path, path: str) -> None:
    write()
    with pytest.raises(SourceError, match="no such file"):
        capture(tree / path, tree)


def test_the_tree_of_a_script_is_the_nearest_folder_above_with_verl(write: Write, tree: Path) -> None:
    assert tree_of(write()) == tree


def test_the_tree_of_a_script_without_verl_is_its_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert tree_of(tmp_path / "a" / "b" / "run.sh") == tmp_path


def test_the_tree_of_a_script_in_no_repository_is_its_folder(tmp_path: Path) -> None:
    assert tree_of(tmp_path / "run.sh") == tmp_path


def test_a_trainer_inherits_the_users_variables_that_the_script_leaves(captured: Captured) -> None:
    given = {"HCCL_BUFFSIZE": "abc", "HCCL_EXEC_TIMEOUT": "1", "VLLM_USE_V1": "1", "HOME": "/home/me"}
    result = captured("export HCCL_EXEC_TIMEOUT=2", "unset VLLM_USE_V1", COMMAND, given=given)
    trainer = trainer_of(result)
    assert trainer.inherited == {"HCCL_BUFFSIZE": "abc"}
    assert trainer.exports["HCCL_EXEC_TIMEOUT"] == "2"
