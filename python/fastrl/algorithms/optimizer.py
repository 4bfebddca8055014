"""Gradient steps after automatic differentiation: Adam, clipping, mixed precision on GPUs, memory on CPUs."""

import contextlib
import ctypes
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.networks.parameters import check_moments

_HALVES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Names of glibc's malloc.h: smaller blocks come from the heap, and so much free memory stays at its end.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1


def keep_freed_memory() -> None:
    """Stops glibc from returning the memory of each minibatch and fragment to the system.

    Fetching it again, and clearing it, would cost a quarter of an update, and most of a copy of frames. Larger blocks
    than 32 MiB, the most that glibc allows here, are returned. Elsewhere this has no effect.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**25)
        mallopt(_M_TRIM_THRESHOLD, 2**30)


def autocast(
    device: str, precision: Literal["fp32", "bf16", "fp16"]
) -> contextlib.AbstractContextManager[None]:
    """Arithmetic of networks on a type of device within it has a precision, but for their last layers."""
    half = _HALVES[precision]
    return contextlib.nullcontext() if half is None else torch.autocast(device, half)


def clip_gradient(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scales a gradient down to a norm, or leaves it as it is; returns its norm before. The arithmetic is that of
    ``nn.utils.clip_grad_norm_``, which takes longer than the rest of a small network's step."""
    norm = torch.linalg.vector_norm(gradient)
    if max_norm is not None:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


class _FusedAdam:
    """Adam's state, and the parts of an optimiser that a GradScaler uses."""

    def __init__(self, parameters: nn.Parameter, learning_rate: float, beta1: float, eps: float) -> None:
        self.param_groups = [{"params": [parameters]}]
        self.learning_rate, self._beta1, self._eps = learning_rate, beta1, eps
        self._parameters = parameters
        self.state = {
            "step": torch.zeros((), dtype=torch.float32, device=parameters.device),
            **{name: torch.zeros_like(parameters.data) for name in ("exp_avg", "exp_avg_sq")},
        }

    @torch.no_grad()
    def step(self) -> None:
        state = self.state
        state["step"] += 1
        assert self._parameters.grad is not None
        torch._fused_adam_(
            [self._parameters],
            [self._parameters.grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            lr=self.learning_rate,
            beta1=self._beta1,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )


class Optimizer:
    """Adam (Kingma and Ba, 2015) on one vector of parameters, see `flatten_parameters`.

    Gradients add up in the vector's ``grad``, those of `scale`d losses, until `step` takes them. The step is that of
    ``torch.optim.Adam(fused=True)``, whose class would load PyTorch's compiler: 1.3 s of processor time and 120 MB.

    Args:
        parameters: with a gradient of zeros.
        precision: of arithmetic within `autocast`; "auto": bf16 on GPUs that have it.
        beta1, eps: Adam's.
        learning_rate: until `step` is given another.

    Attributes:
        vector: the parameters.
        mean, square: Adam's moments, float32 of the same shape.
        half: type of arithmetic within `autocast`; None: float32.
    """

    def __init__(
        self,
        parameters: nn.Parameter,
        precision: Literal["auto", "fp32", "bf16", "fp16"],
        *,
        eps: float,
        beta1: float = 0.9,
        learning_rate: float = 1e-3,
    ) -> None:
        self.vector = parameters
        self._device = parameters.device.type
        if precision == "auto":
            precision = "bf16" if self._device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        self._precision: Literal["fp32", "bf16", "fp16"] = precision
        self.half = _HALVES[precision]
        self._adam = _FusedAdam(parameters, learning_rate, beta1, eps)
        self.mean, self.square = (self._adam.state[name] for name in ("exp_avg", "exp_avg_sq"))
        self._scaler = torch.amp.GradScaler(self._device, enabled=self.half == torch.float16)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Arithmetic of networks within it has the chosen precision."""
        return autocast(self._device, self._precision)

    def scale(self, loss: Tensor) -> Tensor:
        """A loss, scaled so that its gradients do not vanish in fp16."""
        return self._scaler.scale(loss)

    def step(self, max_grad_norm: float | None, learning_rate: float | None = None) -> Tensor:
        """Takes a step along the gradient, scaled down to ``max_grad_norm`` (None: as it is), and zeroes it.

        Returns:
            The gradient's norm before that; 0 where fp16 overflowed, for which no step is taken.
        """
        if learning_rate is not None:
            self._adam.learning_rate = learning_rate
        gradient = self.vector.grad
        assert gradient is not None
        self._scaler.unscale_(cast("torch.optim.Optimizer", self._adam))
        norm = clip_gradient(gradient, max_grad_norm)
        self._scaler.step(cast("torch.optim.Optimizer", self._adam))
        self._scaler.update()
        gradient.zero_()
        return norm.nan_to_num(0.0, 0.0, 0.0) if self._scaler.is_enabled() else norm

    @property
    def steps(self) -> int:
        """Steps so far, without those for which fp16 overflowed."""
        return int(self._adam.state["step"])

    @steps.setter
    def steps(self, steps: int) -> None:
        self._adam.state["step"].fill_(steps)

    def arrays(self) -> tuple[NDArray[np.float32], ...]:
        """Parameters, Adam's moments and the number of steps on a CPU, float32 [P] and []: views, which stay valid."""
        tensors = (self.vector.detach(), self.mean, self.square, self._adam.state["step"])
        return tuple(tensor.numpy() for tensor in tensors)

    def state_dict(self) -> dict[str, Any]:
        """Moments and the scaler's state; tensors are not copies."""
        return {"adam": dict(self._adam.state), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from the state of an optimiser of as many parameters.

        Raises:
            ValueError: it has others.
        """
        check_moments(state["adam"], self.vector)
        # In place: compiled steps have views of the moments.
        for name, tensor in self._adam.state.items():
            tensor.copy_(state["adam"].get(name, torch.zeros(())))
        if self._scaler.is_enabled() and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
