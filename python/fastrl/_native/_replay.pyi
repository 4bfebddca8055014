"""Circular storage of experience, compiled (source: ``cython/_replay.pyx``), for `fastrl.replay`.

A row is a structured record with the fields `FIELDS` first, then ``mask`` if there are masks, then extra ones. Each
environment has a ring of rows; the next observation of a step is the observation of the following row.
``cython/_replay_rings.pxd`` has the invariants.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

FIELDS: tuple[str, ...]

@disjoint_base
class Storage:
    """A storage in the caller's arrays, which it writes.

    rows: [num_envs, R] of the row's dtype, R at least stack + 1.
    rings: int64 [num_envs, 5]; ages: uint8 [num_envs, R]; starts: uint32 [num_envs, R]: its state, initially zeros.
    stack: frames of an observation. repeat: frames before the first of an episode are copies of it, else zeros.
    final_masks: end rows have masks, too.

    TypeError, ValueError: arrays that do not fit, or whose state contradicts itself.
    """

    dtype: np.dtype[Any]
    num_envs: int
    stack: int
    num_masked: int
    final_masks: bool
    extra: tuple[str, ...]

    def __new__(
        cls,
        rows: NDArray[Any],
        rings: NDArray[Any],
        ages: NDArray[Any],
        starts: NDArray[Any],
        *,
        stack: int = 1,
        repeat: bool = False,
        final_masks: bool = False,
    ) -> Self: ...
    def __len__(self) -> int:
        """Number of transitions that can be sampled."""

    @property
    def rows_per_env(self) -> int: ...
    @property
    def lost(self) -> int:
        """Number of steps written by `append` whose next observation never came."""

    def add(
        self,
        obs: NDArray[Any],
        action: int | NDArray[Any],
        reward: float,
        next_obs: NDArray[Any],
        terminated: bool,
        truncated: bool,
        env: int = 0,
        *,
        mask: NDArray[np.bool_] | None = None,
        next_mask: NDArray[np.bool_] | None = None,
        **extra: Any,
    ) -> None:
        """Adds a step of one environment, which can be sampled at once.

        ``next_obs`` is the true last observation where the episode ended. If the next step of this environment has
        another ``obs``, it starts a new sequence of rows.

        ``mask`` and ``next_mask``, bool [num_masked], say which actions are allowed at ``obs`` and at ``next_obs``.
        They are given if the replay was made with them. After a termination ``next_mask`` may be all False. The
        ``mask`` of a step that follows takes the place of ``next_mask``.

        TypeError, ValueError: a wrong dtype or shape, or memory that is not contiguous. IndexError: no such
        environment. Nothing is changed then.
        """

    def add_many(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[np.float32],
        next_obs: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        envs: NDArray[np.int64] | None = None,
        *,
        masks: NDArray[np.bool_] | None = None,
        next_masks: NDArray[np.bool_] | None = None,
        **extra: NDArray[Any],
    ) -> None:
        """Adds N steps, [N, ...] each, of the environments ``envs`` int64 [N]; None: one step of each, in order.

        Errors as `add`.
        """

    def append(self, records: NDArray[Any]) -> None:
        """Adds rows [k] of `dtype` in order of time, for example from a queue's `peek`; each is copied once.

        A step can be sampled once the next row of its environment has been added: the next step, or, where the episode
        ended, an end row with the true last observation.

        TypeError, ValueError: another dtype or shape. IndexError: no such environment. Nothing is changed then.
        """

    def append_steps(
        self,
        envs: NDArray[np.int64],
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        final_obs: NDArray[Any],
        *,
        masks: NDArray[np.bool_] | None = None,
        final_masks: NDArray[np.bool_] | None = None,
        **extra: NDArray[Any],
    ) -> None:
        """Adds T steps of R environments, as a `fastrl.rollout.fragment.Fragment` has them: those of one environment
        after the other, and an end row after the last one of each episode. The last step of each environment can be
        sampled once the next one is there, or if its episode ended.

        envs: int64 [R], their places here. obs: [T + 1, R, D], whose last frame is stored; final_obs: [T, R, D], read
        where an episode ended; final_masks: read where it was truncated alone. The others are [T, R, ...]; extra fields
        may also be one value for all steps.

        Errors as `append`.
        """

    def cut(self, env: int) -> None:
        """Separates the next row of an environment from the rows before it, although the episode did not end, for
        example because the environment was replaced. A step that waits for its next observation is lost. IndexError: no
        such environment."""

    def _handle(self) -> Any: ...
    def _acquire(self) -> None: ...
    def _release(self) -> None: ...
