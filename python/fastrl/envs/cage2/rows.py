"""CAGE Challenge 2 by rows of hosts, so that one policy defends networks of several sizes.

An observation is a table float32 [rows, 27]: a row for each host in the order of the network's hosts, then rows of
zeros. `ROW` names its numbers: the four bits of the host as in `fastrl.envs.cage2.env`, whether it was scanned (1 if it
was last, 0.5 if it was before), which decoys can start there now, and what blue knows of its network from the start:
the image, the costs of its loss, a tenth of them each, and three flags. ``gateway``: red reaches hosts that are
``gated`` while it holds such a host. ``shows the server``: an escalation there shows Op_Server0.

Actions are ``Sleep``, then eleven on the host of the first row (`KINDS` but Sleep and Monitor), eleven on that of the
second row, and so on. One that is on no host, or that the scenario does not offer, does what Sleep does; action masks
leave these out. The encoder ``pointer`` of policies is for such observations and actions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage2.env import RedAgent, red_mix
from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.random_scenario import load_networks
from fastrl.envs.cage2.scenario import KINDS, Cage2Scenario
from fastrl.envs.single import SingleEnv
from fastrl.envs.vector import NativeVectorEnv
from fastrl.utils.arguments import as_integer, one_of

ROW: tuple[str, ...] = tuple(_rust.CAGE2_ROW)
"""Names of the numbers of a row."""
HOST_KINDS = KINDS[2:]
"""Kinds of actions on hosts, in order."""


def num_actions(rows: int) -> int:
    """Number of actions on so many rows."""
    return 1 + len(HOST_KINDS) * rows


class Cage2RowsVectorEnv(NativeVectorEnv):
    """N games of CAGE Challenge 2 by rows of hosts, stepped natively; the module documents observations and actions.

    Each episode is played in a network that is drawn from the environment's random stream when it begins, if there are
    several. ``episode_info("network")`` is its index, ``episode_info("red_agent")`` that of the red agent.

    Args:
        num_envs: number of games, N.
        scenario: a scenario file, perhaps with a table `random` (`fastrl.envs.cage2.random_scenario`), or networks that
            `load_networks` has read. Tables are compiled once, here.
        rows: of an observation; None: as many as the largest network has hosts.
        ruleset: `"main"`, the default, or `"leaderboard"`.
        red_agent: as of `fastrl.envs.Cage2VectorEnv`; it has to be able to play in all networks.
        episode_length, max_episode_steps, num_threads, autoreset_mode: as there.
        random: as there; `"python"` for a single network alone.

    Raises:
        ScenarioError: the file cannot be read or played.
        ValueError: an option out of its range; the message says what was expected.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        scenario: str | Path | tuple[Cage2Scenario, ...],
        rows: int | None = None,
        ruleset: Ruleset = "main",
        red_agent: RedAgent = "bline",
        episode_length: int = 100,
        max_episode_steps: int | None = None,
        num_threads: int = 0,
        random: Literal["fast", "python"] = "fast",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        networks = load_networks(scenario) if isinstance(scenario, str | Path) else scenario
        if not networks:
            raise ValueError("scenario: expected one network or more, got none")
        one_of("random", random, ("fast", "python"))
        self.networks = networks
        self.ruleset = ruleset
        self.red_agent = red_mix(red_agent)
        self.episode_length = as_integer(
            "episode_length", episode_length if max_episode_steps is None else max_episode_steps, 1
        )
        most = max(len(network.hosts) for network in networks)
        self.rows = most if rows is None else as_integer("rows", rows, most)
        offered = {name.split()[0] for network in networks for name in network.actions}
        self.action_names = (
            "Sleep",
            *(f"{kind} row {row}" for row in range(self.rows) for kind in HOST_KINDS),
        )

        def native(mode: str) -> _rust.Cage2RowsVec:
            return _rust.Cage2RowsVec(
                as_integer("num_envs", num_envs, 1),
                networks=[network.native for network in networks],
                rows=self.rows,
                kinds=[i for i, kind in enumerate(HOST_KINDS) if kind in offered],
                ruleset=ruleset,
                red_agents=list(self.red_agent),
                red_weights=list(self.red_agent.values()),
                episode_length=self.episode_length,
                num_threads=as_integer("num_threads", num_threads, 0),
                autoreset_mode=mode,
                python_random=random == "python",
            )

        super().__init__(
            native,
            Box(0.0, 1.0, (self.rows, len(ROW)), np.float32),
            Discrete(len(self.action_names)),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=(),
        )

    def red_agents(self) -> NDArray[np.uint8]:
        """The red agent of each environment's current episode, uint8 [N]: index into `RED_AGENTS`."""
        return self.episode_info("red_agent").astype(np.uint8)


class Cage2RowsEnv(SingleEnv):
    """One game of CAGE Challenge 2 by rows of hosts. Options as in `Cage2RowsVectorEnv`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    vector_class = Cage2RowsVectorEnv
    vector: Cage2RowsVectorEnv

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [num_actions], see `Cage2RowsVectorEnv.action_masks`."""
        return self.vector.action_masks()[0]
