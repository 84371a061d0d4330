"""The gradient scaler of `torch.npu.amp`: torch_npu/npu/amp/grad_scaler.py."""

from __future__ import annotations

import torch

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """`torch.amp.GradScaler("npu", ...)`, extended as torch_npu extends this class on an Ascend 910B.

    After an overflow in one optimizer's gradients, the steps of all following optimizers are skipped until `update`.
    With `dynamic=False` the scale does not change, and no step is skipped.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic
        self._has_overflow = False

    def _unscale_grads_(self, *args: object, **options: object) -> dict[torch.device, torch.Tensor]:
        found: dict[torch.device, torch.Tensor] = super()._unscale_grads_(*args, **options)
        self._has_overflow |= self._dynamic and any(bool(value.item()) for value in found.values())
        for value in found.values():
            value.fill_(float(self._has_overflow))
        return found

    def _maybe_opt_step(self, *args: object, **options: object) -> object:
        if not self._has_overflow:
            return super()._maybe_opt_step(*args, **options)
        print("Gradient overflow. Skipping step")
        return None

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the iteration, and adjust the scale if gradients overflowed. If `new_scale` is specified, use that
        scale. A scale that is not dynamic does not change."""
        self._has_overflow = False
        if self.is_enabled() and not self._dynamic and new_scale is None:
            self._per_optimizer_states.clear()
        else:
            super().update(new_scale)

    def state_dict(self) -> dict[str, object]:
        """Return the same state as torch's GradScaler, with an additional entry for whether the scale is dynamic."""
        state: dict[str, object] = super().state_dict()
        return state | {"dynamic": self._dynamic} if self.is_enabled() else state

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Load a state that the method `state_dict` returned.

        Raises:
            RuntimeError: the state is empty.
            KeyError: the state has no entry `dynamic`.
        """
        super().load_state_dict(state_dict)
        if self.is_enabled():
            self._dynamic = bool(state_dict["dynamic"])
