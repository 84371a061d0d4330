"""Tests by somebody who knows torch: `pytest --npus 2 test_with_torch.py`."""

import pytest
import torch


def test_a_layer_learns_on_the_accelerator():
    device = torch.accelerator.current_accelerator()
    assert device.type == "npu"
    layer = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.ones(8, 4, device=device)
    losses = []
    for _ in range(5):
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_tensors_of_two_devices_do_not_mix():
    assert torch.accelerator.device_count() == 2
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.ones(1, device="npu:0") + torch.ones(1, device="npu:1")
