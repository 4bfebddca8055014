"""Options of an evaluation, apart from what is scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastrl.training.comparison import Mode

# Callback of progress: its argument is the work done since the last call.
Advance = Callable[[int], object]


@dataclass(frozen=True)
class EvaluationOptions:
    """Episodes of an evaluation, and how a policy acts in them.

    Attributes:
        episodes: how many; of CAGE 2 against each red agent over each horizon.
        seed: of the episodes.
        advance: called with how much of `fastrl.training.task.Task.evaluation_work` has been done.
        ruleset: of the task's protocol; None: the task's choice.
        mode: choice of actions.
        device: where the network acts, if it has no compiled actor.
    """

    episodes: int
    seed: int = 0
    advance: Advance = lambda done: None
    ruleset: Any = None
    mode: Mode = "deterministic"
    device: str = "cpu"
