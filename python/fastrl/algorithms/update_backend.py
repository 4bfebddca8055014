"""The choice between compiled gradient steps and those of PyTorch."""

from collections.abc import Callable, Sequence, Set
from dataclasses import fields
from typing import Any

from fastrl.algorithms.loss import overridden


def takes_compiled_steps(
    learner: Any,
    known: Any,
    methods: Sequence[str],
    settings: Set[str],
    networks: Callable[[], str],
    owner: str = "",
) -> tuple[bool, str]:
    """True if the settings ask for compiled gradient steps and there are some. Else PyTorch takes them, for the reason
    in the text, which is empty where the settings ask for PyTorch.

    Args:
        learner: the algorithm, with ``config``, ``device`` and ``ranks``.
        known: the class of algorithms whose losses are compiled.
        methods: of this class that compiled steps are of.
        settings: that compiled steps obey.
        networks: gives the condition of compiled steps that the networks do not meet; empty: they meet all. It is
            called where all other conditions hold.
        owner: name of the algorithm whose losses are compiled; empty: that of the class.

    Raises:
        ValueError: compiled steps are asked for, and there are none.
    """
    backend = learner.config.update_backend
    if backend == "torch":
        return False, ""
    owner = (owner or known.name).upper()
    unknown = sorted({field.name for field in fields(learner.config)} - settings)
    if overrides := overridden(type(learner), known, methods):
        takes = f"{owner}'s own {' and '.join(overrides)}"
    elif unknown:
        takes = f"{owner}'s own settings, without {', '.join(unknown)}"
    elif learner.ranks.shards:
        takes = "whole minibatches, without ranks and shards"
    else:
        takes = networks() if learner.device.type == "cpu" else "networks on the CPU"
    if takes and backend == "compiled":
        raise ValueError(f"update_backend compiled is for {takes}: set update_backend to auto or torch")
    return not takes, takes and f"PyTorch takes the gradient steps: compiled ones are for {takes}"
