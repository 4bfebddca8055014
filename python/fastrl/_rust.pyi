"""The part of fastrl that is compiled from Rust.

Arrays belong to the caller. They are C-contiguous, aligned, in native byte order, of exactly the dtype and shape
given here, writeable where they are written, and no two of one call share memory; otherwise TypeError (dtype) or
ValueError says what was expected and what came, and nothing has changed. Long calls release the GIL: no other thread
may touch the arrays meanwhile. N is `num_envs`, D `obs_dim`, A `num_actions`.
"""

from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

__version__: str

CAGE2_ACTIONS: list[str]
"""The 145 actions of blue, as the challenge prints them, in its order."""
CAGE2_HOSTS: list[str]
CAGE2_SUBNETS: list[str]
CAGE2_EXPLOITS: list[str]
CAGE2_RED_KINDS: list[str]
"""Kinds of red's actions."""
CAGE2_RED_AGENTS: list[str]
CAGE2_SCAN_HOSTS: list[int]
"""Hosts, in order, that the ten scan values of an observation speak of."""
CAGE2_EFFECTIVE_ACTIONS: list[int]
"""Actions that can ever have an effect."""

@final
class Cage2Vec:
    """N games of CAGE Challenge 2. `fastrl.envs.Cage2VectorEnv` explains the options.

    It may not be used by two threads at once (RuntimeError) nor in a process forked from its own (RuntimeError).
    After `close` every method but `close` raises `gymnasium.error.ClosedEnvironmentError`.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        ruleset: str,
        red_agents: list[str],
        red_weights: list[float],
        episode_length: int,
        scan_memory: bool,
        actions: list[int],
        num_threads: int,
        autoreset_mode: str,
        python_random: bool,
    ) -> Cage2Vec: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def obs_dim(self) -> int: ...
    @property
    def num_actions(self) -> int: ...
    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """Starts new episodes where `reset_mask` [N] says so (everywhere without it) and writes these rows of `obs`
        [N, D]. `seeds` [N] start the streams anew. A mask without a True is a ValueError; one that leaves out an
        environment that was never reset raises `gymnasium.error.ResetNeeded`."""

    def observe(self, obs: NDArray[np.float32]) -> None:
        """Writes every game's present observation, [N, D]."""

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
    ) -> None:
        """One step of every game. `actions` int64 [N]; `obs` [N, D]; `rewards` float32 or float64 [N];
        `terminations`, `truncations` [N]; `final_obs` [N, D] only with autoreset "same_step": rows whose episode
        ended get its last observation. ValueError: an action out of range. `gymnasium.error.ResetNeeded`: a game
        was never reset, or has ended with autoreset "disabled"."""

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        """Writes, [N, A], which actions may have an effect now, as far as blue can know."""

    def alerts(self, out: NDArray[np.bool_]) -> None:
        """Writes, [N, 13], on which hosts Monitor named a suspicious process in the last step."""

    def red_agents(self, out: NDArray[np.uint8]) -> None:
        """Writes, [N], the index into `CAGE2_RED_AGENTS` of each game's red agent."""

    def truth(
        self,
        red_access: NDArray[np.uint8],
        red_sessions: NDArray[np.uint8],
        processes: NDArray[np.uint8],
        red_action: NDArray[np.int8],
    ) -> None:
        """Writes the true state, three times [N, 13] (access 0 none, 1 user, 2 root; counts up to 255), and red's
        last action [N, 3]: index into `CAGE2_RED_KINDS`, target host or subnet (-1 none), success (1, 0, -1)."""

    def render(self, index: int) -> str:
        """A table of blue's view and the truth of one game. IndexError: there is no such game."""

    def save_state(self) -> bytes:
        """Everything that the future depends on, generators included."""

    def load_state(self, state: bytes) -> None:
        """Restores it. ValueError: damaged, of another version, of other options or another number of games."""

    def close(self) -> None:
        """Ends it. May be called again."""

def replay_cage2(
    mode: Literal["decisions", "seed"],
    ruleset: str,
    red_agent: str,
    seed: int,
    arrays: dict[str, NDArray[Any]],
) -> tuple[int, int, tuple[int, int | None, str] | None]:
    """Replays a trace (arrays as in a trace file) from its recorded decisions or from its seed.

    Returns the steps, how many of them differ from the record, and the first difference: episode, step (None at the
    reset) and words. KeyError: an array is missing. TypeError, ValueError: one is of another dtype or shape, or
    holds an impossible value.
    """
