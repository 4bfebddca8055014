"""Circular storage of experience: who writes rows, and which of them may be sampled. `fastrl.replay` is its face.

A row is a structured record with the fields `FIELDS` first, then extra ones. Each environment has a lane, a ring of
rows; a step's next observation is the observation of the row after it. ``cython/_replay_rings.pxd`` has the
invariants.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import disjoint_base

FIELDS: tuple[str, ...]

@disjoint_base
class Storage:
    """Over the caller's arrays, which it writes.

    rows: [num_envs, R] of the row's dtype, R at least stack + 1.
    rings: int64 [num_envs, 5]; ages: uint8 [num_envs, R]; starts: uint32 [num_envs, R]: its state, zero at first.
    stack: frames of an observation. repeat: an episode's first frame stands for those before it, else zeros.

    TypeError, ValueError: arrays that do not fit, or whose state contradicts itself.
    """

    dtype: np.dtype[Any]
    num_envs: int
    stack: int
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
    ) -> Self: ...
    def __len__(self) -> int:
        """Transitions that may be sampled."""

    @property
    def rows_per_env(self) -> int: ...
    @property
    def lost(self) -> int:
        """Steps whose next observation never came, in `append`."""

    def add(
        self,
        obs: NDArray[Any],
        action: int | NDArray[Any],
        reward: float,
        next_obs: NDArray[Any],
        terminated: bool,
        truncated: bool,
        env: int = 0,
        **extra: Any,
    ) -> None:
        """One step of one environment; it may be sampled at once.

        ``next_obs`` is the true last observation where the episode ended. If the next step of this environment does not
        begin with it, the two are not taken for neighbours.

        TypeError, ValueError: a wrong dtype or shape, or memory that is not contiguous. IndexError: no such
        environment. Nothing has changed then.
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
        **extra: NDArray[Any],
    ) -> None:
        """N steps, [N, ...] each, of the environments ``envs`` int64 [N]; None: of each environment one, in order.

        Errors as of `add`.
        """

    def append(self, records: NDArray[Any]) -> None:
        """Rows [k] of `dtype` in the order in which they happened, as a queue shows them; copied once.

        A step may be sampled when the next row of its environment has come: the next step, or, where the episode
        ended, a row with ``end`` that holds the true last observation.

        TypeError, ValueError: another dtype or shape. IndexError: an environment that is not there. Nothing has
        changed then.
        """

    def cut(self, env: int) -> None:
        """The environment begins anew, although its episode did not end: what comes next has nothing to do with what
        was. A step that waits for its next observation is lost. IndexError: no such environment."""

    def _handle(self) -> Any: ...
    def _acquire(self) -> None: ...
    def _release(self) -> None: ...
