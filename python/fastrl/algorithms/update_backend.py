"""The choice between compiled gradient steps and those of PyTorch."""

from collections.abc import Callable, Sequence, Set
from dataclasses import fields
from typing import Any

import torch


def takes_compiled_steps(
    config: Any,
    known: Set[str],
    device: torch.device,
    networks: Callable[[], str],
    *,
    overrides: Sequence[str],
    shards: int,
    owner: str = "PPO",
) -> tuple[bool, str]:
    """True if the settings ask for compiled gradient steps and there are some. Else PyTorch takes them, for the reason
    in the text, which is empty where the settings ask for PyTorch.

    Args:
        known: settings that compiled steps obey.
        networks: gives the condition of compiled steps that the networks do not meet; empty: they meet all. It is
            called where all other conditions hold.
        overrides: methods that a subclass has in place of those that the compiled steps are of.
        shards: of each minibatch; 0: it is whole.
        owner: the algorithm whose losses are compiled.

    Raises:
        ValueError: compiled steps are asked for, and there are none.
    """
    if config.update_backend == "torch":
        return False, ""
    takes = _failing_condition(config, known, device, overrides, shards, owner) or networks()
    if takes and config.update_backend == "compiled":
        raise ValueError(f"update_backend compiled is for {takes}: set update_backend to auto or torch")
    return not takes, takes and f"PyTorch takes the gradient steps: compiled ones are for {takes}"


def _failing_condition(
    config: Any, known: Set[str], device: torch.device, overrides: Sequence[str], shards: int, owner: str
) -> str:
    """The first condition that does not hold, apart from those of networks; empty: all hold."""
    unknown = sorted({field.name for field in fields(config)} - known)
    if overrides:
        return f"{owner}'s own {' and '.join(overrides)}"
    if unknown:
        return f"{owner}'s own settings, without {', '.join(unknown)}"
    if shards:
        return "whole minibatches, without ranks and shards"
    return "" if device.type == "cpu" else "networks on the CPU"
