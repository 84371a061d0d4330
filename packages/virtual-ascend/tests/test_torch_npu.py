"""torch_npu is closed: names that we have not written raise an error with the name, and others do not exist."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from virtual_ascend import names
from virtual_ascend.testing.fixtures import Run


@pytest.fixture
def torch_npu(npu: ModuleType) -> ModuleType:
    return importlib.import_module("torch_npu")


def test_an_invented_operator_does_not_exist(torch_npu: ModuleType) -> None:
    assert not hasattr(torch_npu, "npu_gmm")
    assert not hasattr(torch_npu.npu, "npu_gmm")


def test_every_known_and_unwritten_operator_raises_with_its_name(torch_npu: ModuleType) -> None:
    from torch_npu._operators import MISSING

    for name in MISSING:
        with pytest.raises(NotImplementedError, match=rf"^torch_npu\.{name} is not implemented by the virtual Ascend"):
            getattr(torch_npu, name)(1, key=2)


def test_an_annotation_may_name_what_is_not_written(torch_npu: ModuleType) -> None:
    # transformers 5 annotates functions with `torch.cuda.CUDAGraph | None`, which transfer_to_npu replaces.
    unwritten = torch_npu.npu_all_gather_base_mm
    assert (unwritten | None, None | unwritten) == (unwritten, unwritten)


def test_no_module_invents_attributes(torch_npu: ModuleType) -> None:
    mstx = importlib.import_module("torch_npu.npu.mstx")
    for module in (torch_npu, torch_npu.npu, torch_npu.profiler, mstx, torch_npu.npu.memory):
        assert "__getattr__" not in vars(module)


def test_a_tensor_is_of_the_type_of_its_device_and_dtype(torch_npu: ModuleType) -> None:
    torch = importlib.import_module("torch")
    made = torch.npu.BFloat16Tensor([1, 2])
    assert (str(made.device), made.dtype, made.tolist()) == ("npu:0", torch.bfloat16, [1.0, 2.0])
    types = {name: getattr(torch.npu, name) for name in torch.npu.__all__ if name.endswith("Tensor")}
    assert [name for name, type_ in types.items() if isinstance(made, type_)] == ["BFloat16Tensor"]
    assert not any(isinstance(made.cpu(), type_) for type_ in types.values())
    assert isinstance(torch.nn.Parameter(made), torch.npu.BFloat16Tensor)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_storage_is_of_the_type_of_its_device_and_dtype(torch_npu: ModuleType, npu: ModuleType) -> None:
    storage = npu.ones(2, dtype=npu.float16, device="npu").storage()
    types = {name: getattr(npu.npu, name) for name in npu.npu.__all__ if name.endswith("Storage")}
    assert [name for name, type_ in types.items() if isinstance(storage, type_)] == ["HalfStorage"]
    assert isinstance(storage.float(), npu.npu.FloatStorage)
    assert not any(isinstance(storage.cpu(), type_) for type_ in types.values())


def test_a_profiler_follows_its_schedule_and_leaves_an_empty_trace(
    torch_npu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = torch_npu.profiler
    with profiler.profile(
        activities=[profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=profiler.tensorboard_trace_handler(str(tmp_path), worker_name="rank0"),
        experimental_config=profiler._ExperimentalConfig(profiler_level=profiler.ProfilerLevel.Level1),
    ) as run:
        for _ in range(10):
            run.step()
    run.add_metadata_json("world", "2")
    traces = sorted(tmp_path.glob("rank0_*_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json"))
    run.export_chrome_trace(str(tmp_path / "own.json"))
    assert len(traces) == 2
    for trace in traces:
        (event,) = json.loads(trace.read_text())
        assert (event["ph"], "nothing was recorded" in event["args"]["name"]) == ("M", True)
    assert json.loads((tmp_path / "own.json").read_text())[0]["args"]["world"] == 2
    assert capsys.readouterr().err.count("nothing was recorded") == 3


def test_torchair_takes_converters_and_builds_no_graph(python: Run) -> None:
    result = python(
        """
        import torch, torchair
        print(torchair.register_fx_node_ge_converter(None)(len) is len)
        try:
            torchair.ge.custom_op("FFN")
        except NotImplementedError as error:
            print(error)
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "True"
    assert result.stdout.splitlines()[1].startswith("torchair.ge.custom_op is not implemented by the virtual Ascend")


def test_marks_leave_a_function_as_it_is(torch_npu: ModuleType) -> None:
    from torch_npu.npu import mstx

    assert mstx.mstx_range("step")(len)("ab") == 2
    mstx.range_end(mstx.range_start("step"))


def test_marks_never_end_a_job(torch_npu, capsys: pytest.CaptureFixture[str]) -> None:
    """MindSpeed ends a range with torch.cuda.nvtx.range_pop, which takes no number."""
    from torch_npu.npu import mstx

    assert mstx.range_end() is None
    assert "Call range_end failed. Exception: " in capsys.readouterr().err


def test_marks_have_the_names_of_the_wheels(torch_npu: ModuleType) -> None:
    module = importlib.import_module("torch_npu.npu.mstx")
    assert torch_npu.npu.mstx is module.mstx
    assert not hasattr(module, "mark")


def test_recording_the_memory_history_raises_and_stopping_does_not(npu: ModuleType) -> None:
    npu.npu.memory._record_memory_history(enabled=None)
    with pytest.raises(NotImplementedError, match="_record_memory_history"):
        npu.npu.memory._record_memory_history()


@pytest.mark.parametrize("module", ["torch_npu.npu", "torch_npu.npu.memory", "torch_npu.npu.utils", "torch_npu._C"])
def test_every_public_name_of_the_pretended_version_is_there(torch_npu: ModuleType, module: str) -> None:
    assert set(names.of_module(module, "2.7.1")) <= set(vars(importlib.import_module(module)))


def test_a_public_name_that_is_not_written_raises_with_its_module(torch_npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"^torch_npu\.empty_with_format is not implemented"):
        torch_npu.empty_with_format()


@pytest.mark.parametrize(
    ("version", "there"), [("2.4", False), ("2.7.1", False), ("2.8.0", False), ("2.10.0", True), ("2.99", True)]
)
def test_a_name_is_there_from_its_version_on(version: str, there: bool) -> None:
    assert ("host_empty_cache" in names.of_module("torch_npu.npu", version)) is there


@pytest.mark.parametrize(
    ("version", "there"), [("2.5.1", False), ("2.5.1.post1", True), ("2.5.1.post2", True), ("2.7.1rc1", True)]
)
def test_a_patch_has_names_that_its_release_lacks_and_a_candidate_has_those_of_the_release(
    version: str, there: bool
) -> None:
    assert ("npu_moe_token_permute" in names.of_module("torch_npu", version)) is there
    assert ("npu_moe_token_permute" in names.outside("torch_npu", version)) is not there


OTHER_VERSIONS = pytest.mark.nightly(
    "packages/virtual-ascend/virtual_ascend/names", "packages/virtual-ascend/virtual_ascend/site"
)

GRADIENT = """
    import torch, torch_npu
    experts = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32).npu()
    for tokens in (torch.ones(2, 4).npu(), torch.ones(2, 4).npu().requires_grad_()):
        try:
            torch_npu.npu_moe_token_permute(tokens, experts)
            print("ok")
        except RuntimeError as error:
            print(error)
"""


@pytest.mark.parametrize(
    ("version", "there"), [("2.5.1.post1", False), pytest.param("2.7.1", True, marks=OTHER_VERSIONS)]
)
def test_experts_have_gradients_only_in_versions_that_have_them(python: Run, version: str, there: bool) -> None:
    result = python(GRADIENT, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "ok"
    assert (second == "ok") if there else ("npu_moe_token_permute: has no gradient before torch_npu 2.7.1" in second)


FAST_GELU = """
    import torch, torch_npu
    try:
        print(torch_npu.npu_fast_gelu(torch.ones(2).npu().requires_grad_()).requires_grad)
    except RuntimeError as error:
        print(error)
    try:
        print(torch.Stream(device="npu").device, torch.npu.Stream(device="npu:1").device)
    except RuntimeError as error:
        print(torch.npu.Stream(device="npu:1").device, error)
"""


@pytest.mark.parametrize(
    ("version", "gelu", "stream"),
    [
        ("2.5.1.post1", "has no gradient before torch_npu 2.9.0", "npu:1 Backend doesn't support create a new Stream"),
        pytest.param("2.8.0", "has no gradient before torch_npu 2.9.0", "npu:0 npu:1", marks=OTHER_VERSIONS),
        pytest.param("2.9.0", "True", "npu:0 npu:1", marks=OTHER_VERSIONS),
    ],
)
def test_what_only_later_versions_can_do_is_refused(python: Run, version: str, gelu: str, stream: str) -> None:
    result = python(FAST_GELU, timeout=300, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert gelu in first
    assert stream in second


MEMBERS = """
    import torch, torch_npu
    found = [hasattr(torch_npu.npu.Event, "ipc_handle"), hasattr(torch.npu, "get_per_process_memory_fraction"),
             hasattr(torch_npu, "multiprocessing"), hasattr(torch_npu, "erase_stream")]
    try:
        torch_npu.profiler.schedule(wait=1, active=1, warmup=1, skip_first_wait=1)
        found.append(True)
    except TypeError:
        found.append(False)
    torch_npu.npu.Event().record()
    print(*map(int, found))
"""


@pytest.mark.parametrize(
    ("version", "there"),
    [
        ("2.5.1", "0 0 0 0 0"),
        pytest.param("2.8.0", "0 0 1 1 0", marks=OTHER_VERSIONS),
        pytest.param("2.13.0", "1 1 1 1 1", marks=OTHER_VERSIONS),
    ],
)
def test_what_the_pretended_version_lacks_is_not_there(python: Run, version: str, there: str) -> None:
    result = python(MEMBERS, VIRTUAL_ASCEND_TORCH_NPU_VERSION=version)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == there


def test_a_name_that_went_is_no_longer_there() -> None:
    assert "_npu_set_threads_affinity" in names.of_module("torch_npu._C", "2.5.1")
    assert "_npu_set_threads_affinity" not in names.of_module("torch_npu._C", "2.7.1")


def test_operators_whose_names_begin_with_an_underscore_are_those_of_torch_npu(torch_npu: ModuleType) -> None:
    assert "_npu_dropout" in names.of_module("torch_npu", "2.7.1")
    assert "_npu_dropout" not in names.of_module("torch_npu._C", "2.13.0")
    with pytest.raises(NotImplementedError, match=r"^torch_npu\._npu_dropout is not implemented"):
        torch_npu._npu_dropout(1)


def test_what_the_wheels_take_from_their_compiled_part_raises_with_its_name(torch_npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"^torch_npu\._C\._launch_host_func is not implemented"):
        importlib.import_module("torch_npu._C")._launch_host_func()


@pytest.mark.parametrize(("version", "there"), [("2.8.0", True), ("2.9.0", False), ("2.13.0", True)])
def test_a_name_may_come_back(version: str, there: bool) -> None:
    assert ("npu_fused_linear_online_max_sum" in names.of_module("torch_npu", version)) is there


def test_an_overflow_is_an_infinity_or_a_nan(torch_npu: ModuleType, npu: ModuleType) -> None:
    utils = importlib.import_module("torch_npu.npu.utils")
    small, great = npu.ones(2, device="npu"), npu.full((2,), 65504.0, device="npu", dtype=npu.float16)
    assert [utils.npu_check_overflow(x) for x in (small, great, great * 2, float("nan"), 1.0)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(RuntimeError, match="Unsupported type"):
        utils.npu_check_overflow(1)
    with pytest.raises(RuntimeError, match="please use npu_check_overflow"):
        utils.get_npu_overflow_flag()
    with pytest.warns(UserWarning, match="clear_npu_overflow_flag is useless"):
        utils.clear_npu_overflow_flag()


def test_the_version_of_cann_and_of_the_driver_is_the_pretended_one(torch_npu: ModuleType) -> None:
    utils = importlib.import_module("torch_npu.npu.utils")
    assert [utils.get_cann_version(part) for part in ("CANN", "HCCL", "DRIVER", "nothing")] == [
        "8.3.RC1",
        "8.3.RC1",
        "25.2.0",
        "",
    ]
    # `accelerate env` and `transformers env` read it from torch.
    assert sys.modules["torch"].version.cann == "8.3.RC1"


def test_a_version_of_cann_is_compared_as_a_version(torch_npu: ModuleType) -> None:
    utils = importlib.import_module("torch_npu.npu.utils")
    assert [utils._is_gte_cann_version(v) for v in ("8.2.RC1", "8.3.RC1", "8.3.0", "10.0.0")] == [
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(RuntimeError, match=r'7\.0\.0 is less than "8\.1\.RC1"'):
        utils._is_gte_cann_version("7.0.0")


def test_the_compiled_part_knows_the_chip_and_the_current_stream(torch_npu: ModuleType, npu: ModuleType) -> None:
    with npu.npu.stream(npu.npu.Stream()) as entered:
        assert torch_npu._C._npu_getCurrentRawStream(0) == entered.stream.npu_stream != 0
    assert torch_npu._C._npu_get_soc_version() == npu.npu.get_soc_version()


def test_an_option_takes_the_values_that_it_has(torch_npu: ModuleType) -> None:
    torch_npu.npu.set_option(
        {"ACL_PRECISION_MODE": "must_keep_origin_dtype", "ACL_AICORE_NUM": 20, "ACL_DEBUG_DIR": "x"}
    )
    for name, value in {"ACL_PRECISION_MODE": "500", "ACL_AICORE_NUM": "at", "ACL_OP_DEBUG_LEVEL": 300}.items():
        with pytest.raises(ValueError, match=f"value of {name} should be .* but got {value}"):
            torch_npu.npu.set_option({name: value})
    with pytest.raises(TypeError, match="must be a dict"):
        torch_npu.npu.set_option("jitCompile")
    assert torch_npu.npu.is_jit_compile_false()
    torch_npu.npu.set_option({"jitCompile": "enable", "MM_BMM_ND_ENABLE": "disable"})
    assert (torch_npu.npu.is_jit_compile_false(), torch_npu.npu.get_mm_bmm_format_nd()) == (False, False)
    torch_npu.npu.set_option({"jitCompile": "disable", "MM_BMM_ND_ENABLE": "enable"})
