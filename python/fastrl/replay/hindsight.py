"""Transitions with goals that were achieved later (Andrychowicz et al., "Hindsight Experience Replay", 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _replay_samplers
from fastrl.replay.samplers import Batch, UniformSampler, seed_bits
from fastrl.replay.storage import Replay

if TYPE_CHECKING:
    from torch import Tensor

_STRATEGIES = ("future", "final", "episode")


class HindsightSampler(UniformSampler):
    """Draws transitions with equal probability, and replaces the goals of a share of each batch by goals that were
    achieved in the same episode.

    Observations are vectors, of which the slice ``achieved`` is the achieved goal and the slice ``desired`` the desired
    one. In the first ``round(her_ratio * B)`` transitions of a batch, ``desired`` is replaced in obs and next_obs, and
    the reward is recomputed.

    Args:
        achieved, desired: slices of the observation, of the same length.
        reward_fn: (achieved [G, g] in next_obs, desired [G, g]) -> rewards [G].
        terminated_fn: the same arguments -> bool [G], True for steps that end the episode; None: as stored.
        her_ratio: share of a batch with replaced goals.
        strategy: the observation whose achieved goal is taken: ``"future"``: one after the step; ``"final"``: the last
            one of the episode, or the newest if the episode has not ended; ``"episode"``: any but the first one of the
            episode, as far as it is stored.
        others: as `UniformSampler`.

    Raises:
        ValueError, TypeError: arguments that make no sense; observations that are no vectors, or stacked.
    """

    def __init__(
        self,
        replay: Replay,
        batch_size: int,
        *,
        achieved: slice,
        desired: slice,
        reward_fn: Callable[[Tensor, Tensor], Tensor],
        terminated_fn: Callable[[Tensor, Tensor], Tensor] | None = None,
        her_ratio: float = 0.8,
        strategy: Literal["future", "final", "episode"] = "future",
        gamma: float = 0.99,
        replacement: bool = True,
        seed: int = 0,
        pin_memory: bool | None = None,
    ) -> None:
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(_STRATEGIES)}, got {strategy!r}")
        if not 0 <= her_ratio <= 1:
            raise ValueError(f"her_ratio must be from 0 to 1, got {her_ratio}")
        self._set_up(replay, batch_size, replacement)
        shape = replay.dtype["obs"].shape
        if len(shape) != 1:
            raise ValueError(f"hindsight needs observations that are vectors, got shape {list(shape)}")
        self._achieved, self._desired = range(shape[0])[achieved], range(shape[0])[desired]
        if self._achieved.step != 1 or self._desired.step != 1:
            raise ValueError(f"achieved and desired must be slices of step 1, got {achieved} and {desired}")
        if len(self._achieved) != len(self._desired) or not self._achieved:
            raise ValueError(
                "achieved and desired must be of the same length, at least 1,"
                f" got {len(self._achieved)} and {len(self._desired)}"
            )
        self._reward_fn, self._terminated_fn, self._gamma = reward_fn, terminated_fn, gamma
        self._relabelled = round(her_ratio * self.batch_size)
        core = _replay_samplers.Hindsight(
            replay,
            self.batch_size,
            1,
            gamma,
            seed_bits(seed),
            _STRATEGIES.index(strategy),
            self._relabelled,
            self._achieved.start,
            self._desired.start,
            len(self._achieved),
        )
        self._build(core, pin_memory)

    def fill(self, arrays: dict[str, NDArray[Any]], batch: Batch) -> None:
        """Fills the arrays of a batch, see `UniformSampler.fill`.

        Raises:
            ValueError: also if a function does not return one value for each transition.
        """
        super().fill(arrays, batch)
        count = self._relabelled
        if count == 0:
            return
        after = batch.next_obs[:count]
        reached = after[:, self._achieved.start : self._achieved.stop]
        wanted = after[:, self._desired.start : self._desired.stop]
        batch.rewards[:count] = _check_shape("reward_fn", self._reward_fn(reached, wanted), count)
        if self._terminated_fn is not None:
            ended = _check_shape("terminated_fn", self._terminated_fn(reached, wanted), count)
            batch.terminated[:count] = ended
            continues = ~batch.terminated[:count]
            if batch.next_masks is not None:
                # Masks after the true end of an episode are unknown: it stays the end.
                continues &= batch.next_masks[:count].any(1)
            batch.discounts[:count] = continues.float() * float(np.float32(self._gamma))


def _check_shape(name: str, values: Tensor, count: int) -> Tensor:
    if tuple(values.shape) != (count,):
        raise ValueError(f"{name} must return shape [{count}], got {list(values.shape)}")
    return values
