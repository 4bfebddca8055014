"""The choice between compiled gradient steps and those of PyTorch."""

from collections.abc import Sequence, Set
from dataclasses import fields
from typing import Any

import torch


def failing_condition(
    config: Any,
    known: Set[str],
    device: torch.device,
    *,
    overrides: Sequence[str],
    shards: int,
    owner: str = "PPO",
) -> str:
    """The first condition of compiled steps that does not hold, apart from those of networks; empty: all hold.

    Args:
        known: settings that compiled steps obey.
        overrides: methods that a subclass has in place of those that the compiled steps are of.
        shards: of each minibatch; 0: it is whole.
        owner: the algorithm whose losses are compiled.
    """
    unknown = sorted({field.name for field in fields(config)} - known)
    if overrides:
        return f"{owner}'s own {' and '.join(overrides)}"
    if unknown:
        return f"{owner}'s own settings, without {', '.join(unknown)}"
    if shards:
        return "whole minibatches, without ranks and shards"
    return "" if device.type == "cpu" else "networks on the CPU"


def why_torch(backend: str, takes: str) -> str:
    """Remark that PyTorch takes the gradient steps, with the reason.

    Args:
        backend: the setting.
        takes: the condition of compiled ones that does not hold.

    Raises:
        ValueError: compiled ones are asked for.
    """
    if backend == "compiled":
        raise ValueError(f"update_backend compiled is for {takes}: set update_backend to auto or torch")
    return f"PyTorch takes the gradient steps: compiled ones are for {takes}"
