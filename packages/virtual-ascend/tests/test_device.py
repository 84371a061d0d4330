"""The device `npu`: tensors, memory, random numbers, streams, autocast."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from types import ModuleType

import pytest
from virtual_ascend.testing.fixtures import Run


def test_a_tensor_says_that_it_is_on_an_npu(npu: ModuleType) -> None:
    x = npu.ones(3, device="npu:1")
    assert (x.device.type, x.device.index, x.is_npu, x.is_cpu) == ("npu", 1, True, False)
    assert x.npu(0).device == npu.device("npu", 0)


def test_a_view_shares_memory_with_its_base(npu: ModuleType) -> None:
    x = npu.zeros(2, 3, dtype=npu.complex64, device="npu")
    npu.view_as_real(x)[..., 0].fill_(2)  # goes through the fallback
    assert x.real.sum().item() == 12
    assert npu.view_as_real(x).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_an_out_tensor_grows_and_its_storage_with_it(npu: ModuleType) -> None:
    out = npu.empty(0, device="npu")
    npu.add(npu.ones(4, device="npu"), 1, out=out)
    assert out.tolist() == [2, 2, 2, 2]
    assert out.untyped_storage().nbytes() == 16


def test_a_training_step_equals_the_cpu_one(npu: ModuleType) -> None:
    losses = []
    for device in ("cpu", "npu"):
        npu.manual_seed(0)
        model = npu.nn.Sequential(npu.nn.Linear(4, 8), npu.nn.GELU(), npu.nn.Linear(8, 1)).to(device)
        optimizer = npu.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(npu.arange(8.0, device=device).view(2, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_a_host_tensor_in_a_device_operation_is_an_error(npu: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and cpu"):
        npu.ones(2, device="npu:0") + npu.ones(2)


def test_tensors_of_two_npus_in_one_operation_are_an_error(npu: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and npu:1"):
        npu.ones(2, device="npu:0") + npu.ones(2, device="npu:1")


def test_a_host_scalar_and_host_indices_are_accepted(npu: ModuleType) -> None:
    x = npu.arange(4.0, device="npu")
    assert (x * npu.tensor(2.0)).tolist() == [0, 2, 4, 6]
    assert x[npu.tensor([3, 0])].tolist() == [3, 0]


def test_an_npu_that_does_not_exist_is_named(npu: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"invalid device ordinal 5: 2 NPUs are visible \(npu:0 to npu:1\)"):
        npu.npu.set_device(5)
    with pytest.raises(RuntimeError, match="invalid device ordinal 2"):
        npu.ones(1, device="npu:2")


def test_the_device_context_restores_the_current_npu(npu: ModuleType) -> None:
    before = npu.npu.current_device()
    with npu.npu.device(1):
        assert npu.empty(1, device="npu").device.index == 1
    assert npu.npu.current_device() == before


def test_saved_tensors_load_onto_any_device(npu: ModuleType) -> None:
    file = io.BytesIO()
    npu.save({"w": npu.arange(3.0, device="npu:1")}, file)
    for place in ("cpu", "npu:0"):
        file.seek(0)
        loaded = npu.load(file, map_location=place, weights_only=True)["w"]
        assert loaded.device == npu.device(place)
        assert loaded.tolist() == [0, 1, 2]
    file.seek(0)
    assert npu.load(file, weights_only=True)["w"].device == npu.device("npu:1")


def test_pinned_memory_is_pinned(npu: ModuleType) -> None:
    assert not npu.ones(3).is_pinned()
    assert npu.ones(3).pin_memory().is_pinned()


def test_memory_counts_live_blocks_of_one_npu(npu: ModuleType) -> None:
    before = [npu.npu.memory_allocated(index) for index in range(2)]
    x = npu.empty(1 << 20, dtype=npu.uint8, device="npu:1")
    y = x + 1  # allocated by a CPU kernel
    after = [npu.npu.memory_allocated(index) for index in range(2)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 2 << 20]
    del x, y
    assert npu.npu.memory_allocated(1) == before[1]


def test_the_peak_stays_until_it_is_reset(npu: ModuleType) -> None:
    npu.npu.reset_peak_memory_stats(1)
    base = npu.npu.max_memory_allocated(1)
    npu.empty(1 << 20, dtype=npu.uint8, device="npu:1")
    assert npu.npu.max_memory_allocated(1) == base + (1 << 20)
    npu.npu.reset_peak_memory_stats(1)
    assert npu.npu.max_memory_allocated(1) == base


def test_reserved_memory_stays_until_the_cache_is_emptied(npu: ModuleType) -> None:
    npu.npu.empty_cache()
    base = npu.npu.memory_reserved(1)
    npu.empty(1 << 20, dtype=npu.uint8, device="npu:1")
    assert npu.npu.memory_reserved(1) == base + (1 << 20)
    free, total = npu.npu.mem_get_info(1)
    assert total - free == npu.npu.memory_reserved(1)
    npu.npu.empty_cache()
    assert npu.npu.memory_reserved(1) == base


def test_a_resize_to_nothing_frees_the_memory(npu: ModuleType) -> None:
    x = npu.ones(1 << 20, dtype=npu.uint8, device="npu")
    held = npu.npu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert held - npu.npu.memory_allocated() == 1 << 20


def test_a_view_takes_no_memory_and_keeps_what_it_shows(npu: ModuleType) -> None:
    held = npu.npu.memory_allocated()
    x = npu.ones(1 << 20, dtype=npu.uint8, device="npu")
    view = x.view(2, -1)[1].t()
    assert npu.npu.memory_allocated() - held == 1 << 20
    del x
    assert npu.npu.memory_allocated() - held == 1 << 20
    del view
    assert npu.npu.memory_allocated() == held


def test_a_resized_tensor_is_charged_for_its_new_size(npu: ModuleType) -> None:
    held = npu.npu.memory_allocated()
    x = npu.empty(512, dtype=npu.uint8, device="npu")
    x.resize_(2048)
    assert npu.npu.memory_allocated() - held == 2048
    npu.add(x, 1, out=x.resize_(0))
    del x
    assert npu.npu.memory_allocated() == held


def test_blocks_are_rounded_up_as_torch_npu_rounds_them(npu: ModuleType) -> None:
    held = npu.npu.memory_allocated()
    x = npu.empty(513, dtype=npu.uint8, device="npu")
    assert npu.npu.memory_allocated() - held == 1024
    del x


def test_freed_and_allocated_totals_differ_by_what_lives(npu: ModuleType) -> None:
    kept = [npu.rand(100, device="npu") @ npu.rand(100, device="npu") for _ in range(3)]
    stats = npu.npu.memory_stats()
    totals = stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"]
    assert totals == stats["allocated_bytes.all.current"]
    del kept


def test_more_memory_than_the_fraction_is_out_of_memory(npu: ModuleType) -> None:
    npu.npu.set_per_process_memory_fraction(0.0001, 1)  # of 64 GiB
    try:
        with pytest.raises(
            npu.OutOfMemoryError,
            match=r"^NPU out of memory\. Tried to allocate 16\.00 MiB \(NPU 1; .*; 6\.55 MiB allowed; ",
        ):
            npu.empty(1 << 24, dtype=npu.uint8, device="npu:1")
    finally:
        npu.npu.set_per_process_memory_fraction(1.0, 1)


def test_more_memory_than_there_is_is_out_of_memory_in_torch_npu_words(python: Run) -> None:
    program = """
        import torch
        print(torch.npu.mem_get_info()[1], torch.npu.get_device_properties().total_memory)
        kept = torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        try: torch.empty(1 << 30, dtype=torch.uint8, device="npu")
        except RuntimeError as error: print(error)
        torch.empty(1 << 20, dtype=torch.uint8, device="npu")
        print(torch.npu.memory_stats()["num_ooms"])
    """
    result = python(program, VIRTUAL_ASCEND_MEMORY="0.5")
    assert result.stdout.splitlines() == [
        f"{1 << 29} {1 << 29}",
        "NPU out of memory. Tried to allocate 1024.00 MiB (NPU 0; 512.00 MiB total capacity; 1024.00 KiB already "
        "allocated; 1024.00 KiB current active; 511.00 MiB free; 1024.00 KiB reserved in total by PyTorch) If "
        "reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation. "
        "(virtual Ascend)",
        "1",
    ], result.stderr


def test_more_memory_than_anybody_has_is_out_of_memory_too(npu: ModuleType) -> None:
    with pytest.raises(npu.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        npu.empty(1 << 61, dtype=npu.int8, device="npu")


def test_each_npu_has_its_own_random_numbers(npu: ModuleType) -> None:
    npu.manual_seed(7)
    host = npu.get_rng_state()
    first = npu.randn(4, device="npu:0")
    assert npu.equal(npu.get_rng_state(), host), "the host's generator moved"
    second = npu.randn(4, device="npu:0")
    other = npu.randn(4, device="npu:1")
    assert not npu.equal(first, second)
    assert npu.equal(first.cpu(), other.cpu()), "both were seeded alike by torch.manual_seed"


def test_a_restored_state_repeats_its_numbers(npu: ModuleType) -> None:
    state = npu.npu.get_rng_state()
    assert (state.dtype, state.numel()) == (npu.uint8, 16)
    first = npu.nn.functional.dropout(npu.ones(64, device="npu"), 0.5)
    npu.npu.set_rng_state(state)
    assert npu.equal(first, npu.nn.functional.dropout(npu.ones(64, device="npu"), 0.5))


def test_a_generator_of_its_own_draws_apart(npu: ModuleType) -> None:
    own = npu.Generator("npu").manual_seed(3)
    default = npu.npu.get_rng_state()
    x = npu.rand(8, device="npu", generator=own)
    assert npu.equal(npu.npu.get_rng_state(), default)
    assert npu.equal(x, npu.rand(8, device="npu", generator=own.manual_seed(3)))
    with pytest.raises(RuntimeError, match="generator"):
        npu.rand(8, device="npu", generator=npu.Generator())


def test_dropout_keeps_what_it_should(npu: ModuleType) -> None:
    x = npu.ones(10000, device="npu", requires_grad=True)
    y = npu.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert sorted(set(y.tolist())) == pytest.approx([0, 4 / 3])
    assert 0.2 < (y == 0).float().mean().item() < 0.3
    assert npu.equal(x.grad, y.detach())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_lowers_products_and_keeps_softmax(npu: ModuleType, dtype: str) -> None:
    x = npu.ones(2, 2, device="npu")
    with npu.autocast("npu", dtype=getattr(npu, dtype)):
        assert (x @ x).dtype == getattr(npu, dtype)
        assert npu.softmax((x @ x), -1).dtype == npu.float32
    assert (x @ x).dtype == npu.float32


def test_autocast_is_asked_and_set_by_torch_npus_names(npu: ModuleType) -> None:
    before = npu.npu.get_autocast_dtype()
    with npu.autocast("npu", dtype=npu.bfloat16):
        assert (npu.npu.is_autocast_enabled(), npu.npu.get_autocast_dtype()) == (True, npu.bfloat16)
        npu.npu.set_autocast_enabled(False)
        npu.npu.set_autocast_dtype(npu.float16)
        assert (npu.is_autocast_enabled("npu"), npu.get_autocast_dtype("npu")) == (False, npu.float16)
    assert (npu.npu.is_autocast_enabled(), npu.npu.get_autocast_dtype()) == (False, before)


def test_streams_and_events_say_what_they_are(npu: ModuleType) -> None:
    assert repr(npu.npu.current_stream()).startswith("<torch_npu.npu.Stream device=npu:0")
    event = npu.npu.Event()
    assert repr(event) == "<torch_npu.npu.Event uninitialized>"
    event.record()
    assert repr(event).startswith("<torch_npu.npu.Event 0x")


def test_no_stream_is_captured_which_optimizers_ask_where_cuda_means_npu(npu: ModuleType) -> None:
    assert npu.npu.is_current_stream_capturing() is False


def test_a_stream_is_current_in_its_context_only(npu: ModuleType) -> None:
    default = npu.npu.current_stream()
    assert default == npu.npu.default_stream()
    stream = npu.npu.Stream()
    with npu.npu.stream(stream):
        assert npu.npu.current_stream() == stream
        npu.ones(1, device="npu").record_stream(stream)
    assert npu.npu.current_stream() == default


def test_events_measure_the_time_between_them(npu: ModuleType) -> None:
    first, second = (npu.npu.Event(enable_timing=True) for _ in range(2))
    first.record()
    npu.npu.current_stream().record_event(second)
    assert 0 <= first.elapsed_time(second) < 1000
    with pytest.raises(RuntimeError, match="enable_timing"):
        first.elapsed_time(npu.npu.Event())


def test_a_sparse_result_is_refused_by_the_operators_name(npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"aten::_to_sparse.*virtual Ascend.*layout Sparse"):
        npu.eye(2, device="npu").to_sparse()


def test_an_operator_without_a_cpu_kernel_is_named(npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match=r"aten::_cudnn_init_dropout_state.*virtual Ascend"):
        npu._cudnn_init_dropout_state(0.1, True, 1, dtype=npu.uint8, device="npu")


def test_a_convolution_and_its_gradient_are_the_cpus(npu: ModuleType) -> None:
    results = []
    for device in ("cpu", "npu"):
        image = npu.linspace(-1, 1, 2 * 3 * 4 * 6 * 6).view(2, 3, 4, 6, 6).to(device).requires_grad_()
        weight = npu.linspace(-1, 1, 5 * 3 * 2 * 3 * 3).view(5, 3, 2, 3, 3).to(device).requires_grad_()
        bias = npu.ones(5, device=device, requires_grad=True)
        out = npu.nn.functional.conv3d(image, weight, bias, stride=2)
        out.square().sum().backward()
        results.append([t.detach().cpu() for t in (out, image.grad, weight.grad, bias.grad)])
    assert all(npu.equal(ours, expected) for expected, ours in zip(*results, strict=True))


def test_a_convolution_of_two_devices_is_an_error(npu: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="at least two devices, npu:0 and cpu"):
        npu.nn.functional.conv1d(npu.ones(1, 1, 4, device="npu"), npu.ones(1, 1, 2))


def test_conjugate_and_negative_views_are_read_as_such(npu: ModuleType) -> None:
    x = npu.tensor([1 + 2j, 3 - 4j], device="npu")
    assert x.conj().cpu().tolist() == [1 - 2j, 3 + 4j]
    assert x.conj().imag.cpu().tolist() == [-2, 4]
    assert x.clone().conj_physical_().tolist() == [1 - 2j, 3 + 4j]


def test_a_list_copied_at_once_equals_copies_one_by_one(npu: ModuleType) -> None:
    plain = npu.arange(6.0).view(2, 3)
    turned = npu.view_as_complex(npu.randn(2, 3, 2))
    sources = [plain, plain, plain.t(), turned.conj(), npu.tensor(7.0)]
    targets = [npu.empty(2, 3), npu.empty(2, 3, dtype=npu.bfloat16), npu.empty(3, 2), npu.empty_like(turned)]
    targets.append(npu.empty(()))
    on_npu = [target.to("npu") for target in targets]
    npu._foreach_copy_(on_npu, [*(source.to("npu") for source in sources[:-1]), sources[-1]])
    for target, source, moved in zip(targets, sources, on_npu, strict=True):
        assert npu.equal(moved.cpu(), target.copy_(source))


def test_whole_numbers_are_counted_as_the_npu_counts_them(npu: ModuleType) -> None:
    numbers = npu.tensor([0, 3, 1, 3, 5, 7], dtype=npu.int32)
    counts = npu.histc(numbers.to("npu"), bins=6, min=0, max=5)
    assert (counts.device.type, counts.dtype) == ("npu", npu.int32)
    assert counts.tolist() == npu.histc(numbers.float(), bins=6, min=0, max=5).tolist() == [1, 1, 0, 2, 0, 1]


def test_zeros_of_autograd_have_memory(npu: ModuleType) -> None:
    x = npu.ones(3, device="npu", requires_grad=True)
    (gradient,) = npu.autograd.grad(npu.sgn(x).sum(), x)
    assert gradient.cpu().tolist() == [0, 0, 0]


def test_memory_is_counted_by_the_pool_that_torch_npu_would_take_it_from(npu: ModuleType) -> None:
    npu.npu.empty_cache()
    before = npu.npu.memory_stats(1)
    small, great = (
        npu.empty(1 << 20, dtype=npu.int8, device="npu:1"),
        npu.empty((1 << 20) + 1, dtype=npu.int8, device="npu:1"),
    )
    stats = npu.npu.memory_stats(1)
    del small, great
    grown = {
        name: stats[name] - before[name] for name in stats if name.endswith(".current") and stats[name] != before[name]
    }
    assert {name: size for name, size in grown.items() if name.startswith("requested_bytes")} == {
        "requested_bytes.all.current": (2 << 20) + 1,
        "requested_bytes.large_pool.current": (1 << 20) + 1,
        "requested_bytes.small_pool.current": 1 << 20,
    }
    assert [grown[f"allocation.{pool}.current"] for pool in ("all", "large_pool", "small_pool")] == [2, 1, 1]
    assert grown["allocated_bytes.large_pool.current"] == (1 << 20) + 512


def test_a_summary_has_a_line_for_each_counter(npu: ModuleType) -> None:
    block = npu.empty(3 << 20, dtype=npu.int8, device="npu:1")
    lines = npu.npu.memory_summary(1).splitlines()
    brief = npu.npu.memory_summary(1, abbreviated=True).splitlines()
    del block
    assert {len(line) for line in lines} == {77}
    assert "PyTorch NPU memory summary, device ID 1" in lines[1]
    assert [line for line in lines if "pool" not in line] == brief
    assert any(line.startswith("| Allocated memory      |    ") for line in lines)


def test_raw_memory_is_charged_until_it_is_deleted(npu: ModuleType) -> None:
    before = npu.npu.memory_allocated()
    address = npu.npu.caching_allocator_alloc(1000)
    assert npu.npu.memory_allocated() == before + 1024
    npu.npu.caching_allocator_delete(address)
    assert npu.npu.memory_allocated() == before
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        npu.npu.caching_allocator_delete(address)


def test_there_is_no_channels_last_as_on_a_real_npu(npu: ModuleType) -> None:
    x = npu.randn(2, 3, 4, 4, device="npu", requires_grad=True)
    for refused in (
        lambda: x.contiguous(memory_format=npu.channels_last),
        lambda: x.to(memory_format=npu.channels_last),
        lambda: npu.nn.Conv2d(3, 3, 2).to("npu").to(memory_format=npu.channels_last),
    ):
        with pytest.raises(RuntimeError, match="ERR01007 OPS feature not supported"):
            refused()
    y = x.permute(0, 2, 3, 1).contiguous()
    y.sum().backward()
    assert (y.is_contiguous(), x.grad.sum().item()) == (True, 96)
    one = npu.ones(2, 1, 4, 4, device="npu")  # is in both orders at once
    assert one.contiguous(memory_format=npu.channels_last) is one


def test_an_npu_has_an_identity_of_its_own(npu: ModuleType) -> None:
    first, second = (npu.npu.get_device_properties(index).uuid for index in range(2))
    assert (len(str(first)), len(first.bytes), first == second) == (36, 16, False)
    assert npu.npu.get_device_properties(0).uuid == first


def test_to_erase_a_stream_takes_a_tensor_of_an_npu(npu: ModuleType) -> None:
    torch_npu = importlib.import_module("torch_npu")
    x = npu.ones(2, device="npu")
    x.record_stream(npu.npu.Stream())
    torch_npu.erase_stream(x, npu.npu.Stream())
    with pytest.raises(RuntimeError, match="expected a tensor on an NPU; found one on cpu"):
        torch_npu.erase_stream(x.cpu(), npu.npu.Stream())


def test_the_state_of_a_generator_is_real_under_fake_tensors(npu: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    npu.npu.manual_seed(7)
    with FakeTensorMode():
        state = npu.npu.get_rng_state()
    assert state.tolist() == npu.npu.get_rng_state().tolist()


@pytest.mark.parametrize("other", [{"device_type": 1}, {"device_index": 9}, {"device_index": -1}])
def test_a_stream_of_another_device_is_not_made(npu: ModuleType, other: dict[str, int]) -> None:
    stream = npu.npu.Stream()
    identity = {"stream_id": stream.stream_id, "device_index": stream.device_index, "device_type": stream.device_type}
    assert npu.npu.Stream(**identity) == stream
    with pytest.raises((RuntimeError, OverflowError)):
        npu.npu.Stream(**{**identity, **other})


@pytest.fixture
def overflowing(npu: ModuleType) -> Callable[..., list[float]]:
    def train(dynamic: bool) -> list[float]:
        """Train two parameters, the first with an infinite gradient; return their values and the scale."""
        parameters = [npu.nn.Parameter(npu.ones(1, device="npu")) for _ in range(2)]
        optimizers = [npu.optim.SGD([parameter], lr=1.0) for parameter in parameters]
        scaler = npu.npu.amp.GradScaler(init_scale=4.0, dynamic=dynamic)
        scaler.scale(parameters[0] * float("inf") + parameters[1]).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return [*(parameter.item() for parameter in parameters), scaler.get_scale()]

    return train


def test_an_overflow_skips_the_steps_of_all_optimizers_that_follow(overflowing: Callable[..., list[float]]) -> None:
    assert overflowing(dynamic=True) == [1, 1, 2]


def test_a_static_scale_skips_nothing(overflowing: Callable[..., list[float]]) -> None:
    assert overflowing(dynamic=False) == [-float("inf"), 0, 4]


def test_a_scaler_s_state_says_whether_it_is_dynamic(npu: ModuleType) -> None:
    scaler = npu.npu.amp.GradScaler(dynamic=False)
    state = scaler.state_dict()
    other = npu.npu.amp.GradScaler()
    other.load_state_dict(state)
    assert (state["dynamic"], other.state_dict()) == (False, state)
    assert npu.npu.amp.GradScaler(enabled=False).state_dict() == {}


def test_a_cast_to_float64_on_an_npu_gives_float32_as_on_a_real_one(npu: ModuleType) -> None:
    x = npu.ones(2, device="npu")
    assert [y.dtype for y in (x.double(), x.to(npu.float64), x.half().to(npu.float64))] == [npu.float32] * 3
    made = [npu.ones(2, device="npu", dtype=npu.float64), x.cpu().double().to("npu"), x.to("npu", npu.float64)]
    assert [y.dtype for y in made] == [npu.float64] * 3


def test_a_tensor_is_set_to_what_it_is_a_view_of(npu: ModuleType) -> None:
    x = npu.ones(2, 3, device="npu")
    y = npu.empty(0, device="npu").set_(x)
    assert [y.is_set_to(x), y.is_set_to(x.clone()), y.is_set_to(x.t())] == [True, False, False]


def test_fresh_memory_is_filled_where_torch_is_to_be_deterministic(npu: ModuleType) -> None:
    npu.use_deterministic_algorithms(True)
    try:
        made = [npu.empty(3, device="npu"), npu.empty_strided((2, 2), (1, 2), device="npu")]
        grown = npu.zeros(2, device="npu").resize_(4)
    finally:
        npu.use_deterministic_algorithms(False)
    assert all(x.isnan().all() for x in made)
    assert grown.isnan().tolist() == [False, False, True, True]


def test_an_npu_reaches_the_memory_of_all_but_itself(npu: ModuleType) -> None:
    assert [npu.npu.can_device_access_peer(0, peer) for peer in (0, 1, "npu:1")] == [False, True, True]
    for pair in ((-1, 0), (0, 9)):
        with pytest.raises(AssertionError, match=r"Invalid (peer )?device id"):
            npu.npu.can_device_access_peer(*pair)
