"""Rock, paper, scissors as a parallel environment of PettingZoo: one move of two players with equal spaces."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

OBS = Box(0, 1, (1,), np.float32)
MOVES = Discrete(3)


class RockPaperScissors(ParallelEnv[str, Any, Any]):
    """The winner of each round gets 1, the loser -1; the observation is the share of the rounds that is over.

    Args:
        rounds: of an episode.
    """

    metadata = {"name": "rock_paper_scissors"}  # noqa: RUF012

    def __init__(self, rounds: int = 1) -> None:
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.rounds = rounds

    def observation_space(self, agent: str) -> Box:
        return OBS

    def action_space(self, agent: str) -> Discrete:
        return MOVES

    def _observed(self) -> dict[str, Any]:
        return {agent: np.array([self.t / self.rounds], np.float32) for agent in self.possible_agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, list(self.possible_agents)
        return self._observed(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.t += 1
        # 1: the move after the other's beats it; 2: the one before it is beaten.
        value = (0.0, 1.0, -1.0)[(int(actions["first"]) - int(actions["second"])) % 3]
        agents, over = self.agents, self.t == self.rounds
        self.agents = [] if over else agents
        no = dict.fromkeys(agents, False)
        rewards = {"first": value, "second": -value}
        return self._observed(), rewards, dict.fromkeys(agents, over), no, {agent: {} for agent in agents}
