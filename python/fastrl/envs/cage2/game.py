"""CAGE Challenge 2 as a game of two agents, compiled: blue as in `fastrl.envs.cage2.env`, and red.

**Red's actions**: an index into `RED_ACTIONS`, CybORG's own: Sleep, and each other kind on each subnet or host. Its
mask is False for targets that it cannot name yet: it knows subnets, addresses and names of hosts, as CybORG's action
space for red does. Such an action fails and does nothing.

**Red's observation**: float32 [181] from 0 to 1, named by `RED_VIEW`: what it has learnt from the results of its
actions. Blue may have taken back what red believes to hold; it learns so when an action fails.

**Reward**: blue's is the challenge's, red's its negative.

Given red's actions the game is that of the real CybORG, step by step. The scripted reds play it too, see
`Cage2GameVectorEnv.choose_red`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage2.env import RedAgent, action_indices, red_mix
from fastrl.envs.cage2.memory import Memory, Observe, Ruleset, observation_high
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.vector import as_autoreset_mode
from fastrl.utils.arguments import as_integer, one_of

AGENTS = ("blue", "red")
RED_ACTIONS: tuple[str, ...] = tuple(_rust.CAGE2_RED_ACTIONS)
"""Names of red's 56 actions: by kind, then by subnet or by host in the order of `fastrl.envs.cage2.env.HOSTS`."""
RED_VIEW: tuple[str, ...] = tuple(_rust.CAGE2_RED_VIEW)
"""Names of the values of red's observation."""


class Cage2GameVectorEnv(MultiAgentVectorEnv):
    """N games of CAGE Challenge 2 between blue and red, stepped natively; the module documents red's side.

    Both sides' arrays have the longer one's length: zeros follow an observation, and masked actions without effect
    follow the others. `fastrl.envs.adapters.parallel_env` gives each its own spaces. An episode is truncated for both
    after `episode_length` steps and never terminates.

    Args:
        num_envs: number of games, N.
        ruleset, episode_length, memory, observe, actions: of the game and of blue's side, as in
            `fastrl.envs.Cage2VectorEnv`.
        red_agent: the scripted red whose choices `choose_red` gives: a name, `"mix"`, or a mapping of names to weights
            from which each episode's is drawn.
        random: "fast", or "python" for the generator of CPython's `random`: then `seed=s` gives the episodes of the
            real CybORG after `random.seed(s)` with the same actions of both. It needs a single `red_agent`.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        num_threads: threads that step the games, 0 for one a core.

    Raises:
        ValueError: an option out of its range; the message says what was expected.
    """

    _native: _rust.Cage2GameVec

    def __init__(
        self,
        num_envs: int = 1,
        *,
        ruleset: Ruleset = "main",
        red_agent: RedAgent = "bline",
        episode_length: int = 100,
        memory: Memory = "none",
        observe: Observe = "blue",
        actions: Literal["effective"] | Sequence[int] | None = None,
        random: Literal["fast", "python"] = "fast",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
    ) -> None:
        one_of("random", random, ("fast", "python"))
        self.actions = action_indices(actions)
        self.episode_length = as_integer("episode_length", episode_length, 1)
        reds = red_mix(red_agent)
        native = _rust.Cage2GameVec(
            as_integer("num_envs", num_envs, 1),
            ruleset=ruleset,
            red_agents=list(reds),
            red_weights=list(reds.values()),
            episode_length=self.episode_length,
            memory=memory,
            observe=observe,
            actions=list(self.actions),
            num_threads=as_integer("num_threads", num_threads, 0),
            autoreset_mode=as_autoreset_mode(autoreset_mode).name.lower(),
            python_random=random == "python",
        )
        highs = observation_high(memory, self.episode_length, observe), np.ones(len(RED_VIEW), np.float32)
        self._spaces: list[tuple[Space[Any], Space[Any]]] = [
            (Box(np.zeros_like(high), high, dtype=np.float32), Discrete(n))
            for high, n in zip(highs, (len(self.actions), len(RED_ACTIONS)), strict=True)
        ]
        high = np.maximum(*(np.pad(high, (0, native.obs_dim - len(high))) for high in highs))
        super().__init__(
            lambda mode: native,
            Box(np.zeros_like(high), high, dtype=np.float32),
            Discrete(native.num_masked),
            autoreset_mode=autoreset_mode,
            name="fastrl/Cage2Game-v0",
        )
        self.agents, self.groups = AGENTS, AGENTS

    def agent_spaces(self, *, padded: bool) -> list[tuple[Space[Any], Space[Any]]]:
        return super().agent_spaces(padded=True) if padded else self._spaces

    def choose_red(self) -> NDArray[np.int64]:
        """The actions that the scripted reds take next, int64 [N]: indices into `RED_ACTIONS`. Each call is one move of
        theirs: call it once before each step.

        They draw from the games' random streams. With `random="fast"` games in which red takes these actions are those
        of `fastrl.envs.Cage2VectorEnv` with the same options and seed, to the bit.
        """
        out = np.empty(self.num_envs, np.int64)
        self._native.choose_red(out)
        return out
