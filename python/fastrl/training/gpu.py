"""Utilisation of the GPU, as its driver reports it."""

import contextlib
import ctypes
from typing import Any

import torch


class GpuMeter:
    """Asks NVIDIA's management library, which comes with the driver.

    Args:
        device: "cpu" or "cuda".
    """

    def __init__(self, device: str) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        if device == "cpu":
            return
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libnvidia-ml.so.1")
            # By its unique id: CUDA_VISIBLE_DEVICES renumbers devices for PyTorch, not for the driver.
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
            if library.nvmlInit_v2() == 0 and not library.nvmlDeviceGetHandleByUUID(
                uuid, ctypes.byref(self._handle)
            ):
                self._library = library

    def use(self) -> float | None:
        """The share of the last moments (a sixth of a second to a second) in which it computed; None without one."""
        if self._library is None:
            return None
        rates = (ctypes.c_uint * 2)()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)) != 0:
            return None
        return rates[0] / 100
