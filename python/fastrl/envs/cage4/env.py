"""CAGE Challenge 4 (CybORG 4.0), compiled: five blue defenders of a network that is new in every episode.

Each of the agents `AGENTS` defends a zone: one subnet, the last agent three. An observation has the values of the
challenge's `BlueFlatWrapper`, and an action is an index into `ACTIONS` of its agent. Both are padded to the largest, as
`EnterpriseMAE(pad_spaces=True)` does: observations with zeros to 210 values, actions to 242 with ones that are masked
and do nothing.

**Reward**: the team's, the same for each agent. An episode is truncated after `episode_length - 1` steps, as in the
original, and never terminates.

`view="hosts"` has other observations and actions: a zone's hosts in rows, with what the agent remembers of them, see
`fastrl.envs.cage4.host_view`.

**Actions take 1 to 5 steps** (Restore 5, Remove 3, Analyse and DeployDecoy 2, all others 1). Until its action has ended
an agent is busy: the game ignores what it chooses, but charges for a Restore, as the original does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage4.game_state import GameState
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.vector import as_autoreset_mode
from fastrl.utils.arguments import as_integer, one_of

RedAgent = Literal["fsm", "discovery"]

AGENTS: tuple[str, ...] = tuple(f"blue_agent_{i}" for i in range(len(_rust.CAGE4_ACTIONS)))
ACTIONS: tuple[tuple[str, ...], ...] = tuple(map(tuple, _rust.CAGE4_ACTIONS))
"""Names of each agent's actions, in the challenge's order."""
OBS_LENGTHS: tuple[int, ...] = tuple(_rust.CAGE4_OBS_LENGTHS)
"""Values of each agent's observation; zeros follow."""
HOSTS: tuple[str, ...] = tuple(_rust.CAGE4_HOSTS)
"""Names of hosts by slot: 17 a subnet, of which an episode has some."""
SUBNETS: tuple[str, ...] = tuple(_rust.CAGE4_SUBNETS)
RED_AGENTS: tuple[str, ...] = tuple(_rust.CAGE4_RED_AGENTS)
RED_KINDS: tuple[str, ...] = tuple(_rust.CAGE4_RED_KINDS)
_MOST_STEPS = 1000
View = Literal["challenge", "hosts"]
Rewards = Literal["team", "zone"]
ZONES: tuple[str, ...] = (*AGENTS, "contractor")
"""Zones of the agents, then the contractor's network, which nobody defends."""
RULES: tuple[str, ...] = tuple(_rust.CAGE4_RULES)
"""Names of mended rules."""
MESSAGE_BITS: int = _rust.CAGE4_MESSAGE_BITS
"""Bits that an agent may tell the others with each action, at most."""
CAUSES = ("work_failed", "access_failed", "impact", "action_cost")
"""Causes of rewards: green's local work failed, green's access to a service failed, red's Impact, prices of Restore."""


class Cage4VectorEnv(MultiAgentVectorEnv):
    """N games of CAGE Challenge 4, stepped natively; the module documents observations, actions and rewards.

    `action_masks` is False for actions on hosts that this episode's network does not have, and for padding. The spaces
    of `fastrl.envs.adapters.parallel_env` are the challenge's: padded with `pad_spaces=True`, else of each agent's own.

    Args:
        num_envs: number of games, N.
        red_agent: "fsm" (`FiniteStateRedAgent`, of the challenge's evaluation, the default) or "discovery"
            (`DiscoveryFSRed`).
        episode_length: steps of an episode, 2 to 1,000, by default 500; it ends one step earlier.
        random: "fast", or "numpy" for NumPy's generator: then `seed=s` gives the episodes of the real CybORG after
            `reset(seed=s)`, and the generator runs on through an environment's episodes.
        view: "challenge", or "hosts" for the observations and actions of `fastrl.envs.cage4.host_view`.
        messages: with `view="hosts"` the bits, 0 to `MESSAGE_BITS`, that an agent tells the others with each action.
        rewards: "team", or "zone": each agent gets the rewards of its zone and its own actions alone. Their sum is the
            team's but for the contractor's network.
        rules: "original", or names of `RULES` joined by "+" for rules that do what the original's authors most likely
            meant. "impact": an Impact costs only if it succeeds. "green-service": an access fails where the server's
            service is stopped or, by chance, degraded. "red-session": red acts through sessions that live.
            "restore-cost": a Restore costs when it starts, and not again while the agent is busy.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        info_state: adds `state` to the info of a step, the true state as `truth` gives it.
        num_threads: threads that step the games, 0 for one a core.

    Raises:
        ValueError: an option out of its range; the message says what was expected.
    """

    message_bits = 8
    _native: _rust.Cage4Vec

    def __init__(
        self,
        num_envs: int = 1,
        *,
        red_agent: RedAgent = "fsm",
        episode_length: int = 500,
        random: Literal["fast", "numpy"] = "fast",
        info_state: bool = False,
        view: View = "challenge",
        messages: int = 0,
        rewards: Rewards = "team",
        rules: str = "original",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
    ) -> None:
        one_of("red_agent", red_agent, RED_AGENTS)
        one_of("random", random, ("fast", "numpy"))
        one_of("view", view, get_args(View))
        if as_integer("messages", messages, 0, MESSAGE_BITS) and view != "hosts":
            raise ValueError(f"messages: expected 0 without view='hosts', got {messages}")
        one_of("rewards", rewards, get_args(Rewards))
        if not isinstance(rules, str):
            raise TypeError(f"rules: expected a str, got {rules!r}")
        self.red_agent = red_agent
        self.episode_length = as_integer("episode_length", episode_length, 2, _MOST_STEPS)
        self.rules = rules
        native = _rust.Cage4Vec(
            as_integer("num_envs", num_envs, 1),
            red_agent=red_agent,
            episode_length=self.episode_length,
            num_threads=as_integer("num_threads", num_threads, 0),
            autoreset_mode=as_autoreset_mode(autoreset_mode).name.lower(),
            numpy_random=random == "numpy",
            host_view=view == "hosts",
            messages=messages,
            zone_rewards=rewards == "zone",
            rules=rules,
        )
        super().__init__(
            lambda mode: native,
            Box(0.0, 2.0, (native.obs_dim,), np.float32),
            Discrete(native.num_masked),
            autoreset_mode=autoreset_mode,
            name="fastrl/Cage4-v0",
            fps=4.0,
        )
        self.agents = AGENTS
        self._has_state, self._has_hosts_view = info_state, view == "hosts"
        if self._has_hosts_view:
            self.message_bits = 0  # Policies send theirs with their actions.

    def send(self, messages: NDArray[np.uint8]) -> None:
        """Sets the messages, uint8 [N, 5] with the first of 8 bits highest, that the agents send with the next step;
        the others observe them after it. Without this call they are zeros. NotImplementedError with `view="hosts"`."""
        if not self.message_bits:
            super().send(messages)
        self._native.send(messages)

    def agent_spaces(self, *, padded: bool) -> list[tuple[Space[Any], Space[Any]]]:
        """Spaces of each agent; of the challenge's view those of the phase and bits, int64, and of indices into
        `ACTIONS`."""
        if self._has_hosts_view:
            return super().agent_spaces(padded=padded)
        sizes = list(zip(OBS_LENGTHS, map(len, ACTIONS), strict=True))
        if padded:
            sizes = [max(sizes)] * len(sizes)
        return [(MultiDiscrete([3] + [2] * (length - 1)), Discrete(n)) for length, n in sizes]

    def info(self) -> dict[str, Any]:
        return {"state": self.truth()} if self._has_state else {}

    def busy(self) -> NDArray[np.uint8]:
        """The steps that the agents' actions in progress still take, uint8 [N, 5]; 0: the agent chooses."""
        out = np.empty((self.num_envs, self.num_agents), np.uint8)
        self._native.busy(out)
        return out

    def causes(self) -> dict[str, NDArray[np.float64]]:
        """The present episodes' sums of rewards by cause, [N] each, by the names of `CAUSES`."""
        return dict(zip(CAUSES, self.ledger().sum((1, 2), dtype=np.float64).T, strict=True))

    def states(self) -> list[GameState]:
        """Each game as it is now, for people to read."""
        truth, causes = self.truth(), self.causes()
        step, phase = np.empty(self.num_envs), np.empty(self.num_envs)
        self._native.episode_info("time", step)
        self._native.episode_info("phase", phase)
        return [
            GameState(
                int(step[i]),
                self.episode_length,
                int(phase[i]),
                {name: float(sums[i]) for name, sums in causes.items()},
                {name: values[i] for name, values in truth.items()},
            )
            for i in range(self.num_envs)
        ]

    @property
    def render_modes(self) -> Sequence[str]:
        return ("rgb_array", "ansi")

    def render(self, mode: str = "rgb_array") -> tuple[Any, ...]:
        """A picture of each game, uint8 [496, 1050, 3]: the network, hosts in the colour of red's access, alerts,
        blocks, and actions in progress. With the mode "ansi" a text of each."""
        if one_of("mode", mode, self.render_modes) == "ansi":
            return tuple(state.text() for state in self.states())
        # The import is slow and needed for drawing only.
        from fastrl.envs.cage4.network_picture import network_picture

        title = f"CAGE Challenge 4, red agent {self.red_agent}"
        return tuple(network_picture(state, title) for state in self.states())

    def ledger(self) -> NDArray[np.int32]:
        """The present episodes' sums of rewards, int32 [N, 3, 6, 4] by phase, zone (`ZONES`) and cause (`CAUSES`)."""
        out = np.empty((self.num_envs, 3, len(ZONES), len(CAUSES)), np.int32)
        self._native.ledger(out)
        return out

    def truth(self) -> dict[str, NDArray[Any]]:
        """The true state of each game, which no agent can see. By slot of `HOSTS`, [N, 136]: `hosts` bool, whether
        it exists; uint8 `red_access` (0 none, 1 user, 2 root), `red_sessions` and `processes` (up to 255), and `alerts`
        of the last step (1 process, 2 connection, 3 both). `blocked` uint16 [N, 8]: the subnets, a bit each,
        whose traffic each subnet blocks. Actions in progress, int16: `red_action` [N, 6, 3], of each red agent the
        index into `RED_KINDS` (-1: none), slot or subnet, and steps left; `blue_action` [N, 5, 2], of each agent the
        index into `ACTIONS` (-1: none) and steps left."""
        n, slots = self.num_envs, len(HOSTS)
        arrays: dict[str, NDArray[Any]] = {
            "hosts": np.empty((n, slots), np.bool_),
            "red_access": np.empty((n, slots), np.uint8),
            "red_sessions": np.empty((n, slots), np.uint8),
            "processes": np.empty((n, slots), np.uint8),
            "alerts": np.empty((n, slots), np.uint8),
            "blocked": np.empty((n, 8), np.uint16),
            "red_action": np.empty((n, 6, 3), np.int16),
            "blue_action": np.empty((n, self.num_agents, 2), np.int16),
        }
        self._native.truth(**arrays)
        return arrays
