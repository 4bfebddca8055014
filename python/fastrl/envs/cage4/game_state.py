"""A game of CAGE Challenge 4 at one step, to be shown to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from fastrl._native import _rust

SLOTS = 17
"""Places for hosts of a subnet: a router, 10 users, 6 servers."""
ROUTER, USERS, SERVERS = slice(0, 1), slice(1, 11), slice(11, 17)
PHASES = ("preplanning", "mission A", "mission B")
"""The challenge's names of the phases."""
_ACCESS, _ALERTS = ".u#", ".pcb"
_CAUSES = {"work_failed": "work", "access_failed": "access", "impact": "impact", "action_cost": "cost"}


class GameState(NamedTuple):
    """A game at one step.

    Attributes:
        step: steps taken.
        episode_length: as the environment's option.
        phase: of the last step.
        causes: the episode's sums of rewards by cause.
        truth: the true state as of `Cage4VectorEnv.truth`, of one game.
    """

    step: int
    episode_length: int
    phase: int
    causes: Mapping[str, float]
    truth: Mapping[str, NDArray[Any]]

    @property
    def summary(self) -> str:
        """The step, the return, and its parts by cause."""
        parts = ", ".join(f"{name} {self.causes[cause]:.0f}" for cause, name in _CAUSES.items())
        return f"step {self.step}, return {sum(self.causes.values()):.0f} ({parts})"

    def blocked(self, subnet: int) -> list[str]:
        """Names of the subnets whose traffic a subnet blocks."""
        bits = int(self.truth["blocked"][subnet])
        return [name for i, name in enumerate(_rust.CAGE4_SUBNETS) if bits >> i & 1]

    def blue_action(self, agent: int) -> tuple[str, int]:
        """The action of blue's that an agent has in progress, "" if none, and the steps left."""
        index, left = map(int, self.truth["blue_action"][agent])
        return ("" if index < 0 else _rust.CAGE4_ACTIONS[agent][index]), left

    def red_action(self, agent: int) -> tuple[str, str, int]:
        """The kind of a red agent's action in progress, "" if none, its host or subnet, and the steps left."""
        kind, target, left = map(int, self.truth["red_action"][agent])
        if kind < 0:
            return "", "", 0
        name = _rust.CAGE4_RED_KINDS[kind]
        of_subnet = name == "DiscoverRemoteSystems"
        return name, (_rust.CAGE4_SUBNETS if of_subnet else _rust.CAGE4_HOSTS)[target], left

    def text(self) -> str:
        """A table of the subnets, and the actions in progress. Each has a character for each host: of red's access "."
        none, "u" user, "#" root, and of the last step's alerts "p" process, "c" connection, "b" both."""
        lines = [f"{self.summary}, phase {self.phase}: {PHASES[self.phase]}"]
        head = f"{'servers':<8}{'users':<11}"
        lines.append(f"{'':<20}red: router {head}alerts: {head}blocks")
        for subnet, name in enumerate(_rust.CAGE4_SUBNETS[:8]):
            access, alerts = (
                self._marks("red_access", subnet, _ACCESS),
                self._marks("alerts", subnet, _ALERTS),
            )
            shown = [f"{marks[SERVERS]:<8}{marks[USERS]:<11}" for marks in (access, alerts)]
            line = f"{name:<20}{'':<5}{access[ROUTER]:<7}{shown[0]}{'':<8}{shown[1]}"
            lines.append(line + ", ".join(self.blocked(subnet)))
        for agent in range(len(_rust.CAGE4_ACTIONS)):
            action, left = self.blue_action(agent)
            lines.append(f"blue_agent_{agent}: {_with_steps(action, left)}")
        for agent in range(len(self.truth["red_action"])):
            kind, target, left = self.red_action(agent)
            lines.append(f"red_agent_{agent}: {_with_steps(f'{kind} {target}'.strip(), left)}")
        return "\n".join(map(str.rstrip, lines))

    def _marks(self, values: str, subnet: int, marks: str) -> str:
        """A mark for each slot of a subnet, blank where there is no host."""
        slots = slice(SLOTS * subnet, SLOTS * (subnet + 1))
        pairs = zip(self.truth["hosts"][slots], self.truth[values][slots], strict=True)
        return "".join(marks[value] if exists else " " for exists, value in pairs)


def _with_steps(action: str, left: int) -> str:
    return f"{action}, {left} more step{'s' * (left != 1)}" if action else "-"
