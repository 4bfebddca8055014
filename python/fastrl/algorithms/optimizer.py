"""Gradient steps after automatic differentiation: Adam, clipping, mixed precision on GPUs."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastrl.networks.parameters import check_moments


class Optimizer:
    """Adam (Kingma and Ba, 2015) on one vector of parameters, see `flatten_parameters`.

    Gradients add up in the vector's ``grad``, those of `scale`d losses, until `step` takes them. (`FlatAdam` is for
    networks of many agents, which spell their gradients out and use neither automatic differentiation nor half
    precision: without ``torch.optim`` a process is 120 MB smaller.)

    Args:
        parameters: with a gradient of zeros.
        precision: of arithmetic within `autocast`; "auto": bf16 on GPUs that have it.
        eps: Adam's.
        learning_rate: until `step` is given another.

    Attributes:
        half: type of arithmetic within `autocast`; None: float32.
    """

    def __init__(
        self,
        parameters: nn.Parameter,
        precision: Literal["auto", "fp32", "bf16", "fp16"],
        *,
        eps: float,
        learning_rate: float = 1e-3,
    ) -> None:
        self._parameters = parameters
        self._device = parameters.device.type
        if precision == "auto":
            precision = "bf16" if self._device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        self.half = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        self._eps, self._learning_rate = eps, learning_rate
        self._state: dict[str, Tensor] = {}
        self._scaler = torch.amp.GradScaler(self._device, enabled=self.half == torch.float16)

    @functools.cached_property
    def _adam(self) -> torch.optim.Adam:
        """Adam, made at the first step: the class loads PyTorch's compiler, which takes 2 s of CPU and 120 MB, and
        compiled updates need the moments alone."""
        adam = torch.optim.Adam([self._parameters], lr=self._learning_rate, eps=self._eps, fused=True)
        adam.state[self._parameters] = self._state
        return adam

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Arithmetic of networks within it has the chosen precision."""
        return contextlib.nullcontext() if self.half is None else torch.autocast(self._device, self.half)

    def scale(self, loss: Tensor) -> Tensor:
        """A loss, scaled so that its gradients do not vanish in fp16."""
        return self._scaler.scale(loss)

    def step(self, max_grad_norm: float | None, learning_rate: float | None = None) -> Tensor:
        """Takes a step along the gradient, scaled down to ``max_grad_norm`` (None: as it is), and zeroes it.

        Returns:
            The gradient's norm before that; 0 where fp16 overflowed, for which no step is taken.
        """
        if learning_rate is not None:
            self._adam.param_groups[0]["lr"] = learning_rate
        gradient = self._parameters.grad
        assert gradient is not None
        self._scaler.unscale_(self._adam)
        if max_grad_norm is None:
            norm = gradient.norm()
        else:
            norm = nn.utils.clip_grad_norm_(self._parameters, max_grad_norm)
        self._scaler.step(self._adam)
        self._scaler.update()
        gradient.zero_()
        return norm.nan_to_num(0.0, 0.0, 0.0) if self._scaler.is_enabled() else norm

    def moments(self) -> dict[str, Tensor]:
        """Adam's state, to be changed in place: ``exp_avg`` and ``exp_avg_sq``, float32 of the parameters' shape, and
        ``step``, float32 []."""
        if not self._state:
            self._state["step"] = torch.zeros((), dtype=torch.float32, device=self._parameters.device)
            for name in ("exp_avg", "exp_avg_sq"):
                self._state[name] = torch.zeros_like(self._parameters.data)
        return self._state

    def state_dict(self) -> dict[str, Any]:
        """Moments and the scaler's state; tensors are not copies."""
        return {"adam": dict(self._state), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the state of an optimiser of as many parameters.

        Raises:
            ValueError: it has others.
        """
        check_moments(state["adam"], self._parameters)
        self._state.clear()
        self._state.update(
            {key: value.to(self._parameters.device, copy=True) for key, value in state["adam"].items()}
        )
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
