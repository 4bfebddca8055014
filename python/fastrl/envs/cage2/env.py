"""CAGE Challenge 2 (CybORG 2.1, Scenario 2), compiled: a blue defender of 13 hosts against a red agent.

Blue's observation is that of the challenge's wrapper: 52 bits, four for each host in the order of `HOSTS`. The first
two are the activity of the last step (none 00, scan 10, exploit 11), the other two blue's belief about the host
(safe 00, unknown 10, user 01, privileged 11). `fastrl.envs.cage2.memory` has more values. Its 145 actions are
`ACTIONS`, in the challenge's order. A scenario file (`fastrl.envs.cage2.scenario`) has other hosts, with four bits and
eleven actions each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage2.memory import Memory, Observe, Ruleset, observation_high
from fastrl.envs.single import AgentView, SingleEnv
from fastrl.envs.vector import NativeVectorEnv
from fastrl.utils.arguments import as_integer, one_of

if TYPE_CHECKING:
    from fastrl._native._rust import NativeVec
    from fastrl.envs.cage2.scenario import Cage2Scenario

RedAgent = str | Mapping[str, float]

HOSTS: tuple[str, ...] = tuple(_rust.CAGE2_HOSTS)
ACTIONS: tuple[str, ...] = tuple(_rust.CAGE2_ACTIONS)
RED_AGENTS: tuple[str, ...] = tuple(_rust.CAGE2_RED_AGENTS)
RED_KINDS: tuple[str, ...] = tuple(_rust.CAGE2_RED_KINDS)
# The actions that can have an effect: without decoys that never fit their host, Analyse of Defender (where red gets no
# foothold), and Monitor, which every step does anyway.
EFFECTIVE_ACTIONS: tuple[int, ...] = tuple(_rust.CAGE2_EFFECTIVE_ACTIONS)


def red_mix(red_agent: RedAgent) -> dict[str, float]:
    """Weights by name of one agent, of `"mix"` (B_line and Meander, even) or of a mapping."""
    if isinstance(red_agent, Mapping):
        return {str(name): float(weight) for name, weight in red_agent.items()}
    if red_agent == "mix":
        return {"bline": 0.5, "meander": 0.5}
    return {red_agent: 1.0}


def action_indices(
    actions: Literal["effective"] | Sequence[int] | None, scenario: Cage2Scenario | None = None
) -> tuple[int, ...]:
    """Indices into `ACTIONS`, or into those of a scenario, of an environment's actions, in its order."""
    num_actions = len(ACTIONS) if scenario is None else len(scenario.actions)
    if actions is None:
        return tuple(range(num_actions))
    if isinstance(actions, str):
        if actions != "effective":
            raise ValueError(f"actions: expected None, 'effective' or indices, got {actions!r}")
        return EFFECTIVE_ACTIONS if scenario is None else scenario.effective_actions
    indices = tuple(int(a) for a in actions)
    if not indices or not all(0 <= a < num_actions for a in indices) or len(set(indices)) != len(indices):
        raise ValueError(
            f"actions: expected different indices from 0 to {num_actions - 1}, got {list(actions)}"
        )
    return indices


class GameOptions(TypedDict, total=False):
    """Options of all vector environments of CAGE Challenge 2, see `Cage2VectorEnv`."""

    ruleset: Ruleset
    red_agent: RedAgent
    episode_length: int
    max_episode_steps: int | None
    memory: Memory
    observe: Observe
    actions: Literal["effective"] | Sequence[int] | None
    num_threads: int
    autoreset_mode: AutoresetMode | str
    render_mode: str | None


class Cage2Games(NativeVectorEnv):
    """The common base of the vector environments of CAGE Challenge 2: options and red agents.

    `action_masks` is False for a decoy whose port is taken or whose operating system is another, and for actions
    outside of `EFFECTIVE_ACTIONS`. Sleep is always True. The masks reveal nothing about red. `episode_info` knows the
    key ``red_agent``, see `red_agents`.

    Args:
        compiled: builds the compiled games from the options under their compiled names, and from ``own``.
        own: options of the subclass.
        code_len: entries from 0 to 1 that observations have after the challenge's.
        scenario: the one that is played; None for Scenario 2.
        render_modes, info_of: as in `NativeVectorEnv`.
        num_envs, and all others: as in `Cage2VectorEnv`.
    """

    def __init__(
        self,
        compiled: Callable[..., NativeVec],
        own: Mapping[str, Any],
        num_envs: int,
        *,
        render_modes: Sequence[str] = ("ansi",),
        info_of: Callable[[], dict[str, Any]] | None = None,
        code_len: int = 0,
        scenario: Cage2Scenario | None = None,
        ruleset: Ruleset = "main",
        red_agent: RedAgent = "bline",
        episode_length: int = 100,
        max_episode_steps: int | None = None,
        memory: Memory = "none",
        observe: Observe = "blue",
        actions: Literal["effective"] | Sequence[int] | None = None,
        num_threads: int = 0,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        self.ruleset = ruleset
        self.red_agent = red_mix(red_agent)
        self.episode_length = as_integer(
            "episode_length", episode_length if max_episode_steps is None else max_episode_steps, 1
        )
        self.memory = memory
        self.observe = observe
        self.actions = action_indices(actions, scenario)
        self._scenario = scenario
        self.hosts = HOSTS if scenario is None else scenario.hosts
        names = ACTIONS if scenario is None else scenario.actions
        self.action_names = tuple(names[action] for action in self.actions)
        self.num_threads = as_integer("num_threads", num_threads, 0)
        num_envs = as_integer("num_envs", num_envs, 1)

        def native(mode: str) -> NativeVec:
            return compiled(
                num_envs,
                ruleset=ruleset,
                red_agents=list(self.red_agent),
                red_weights=list(self.red_agent.values()),
                episode_length=self.episode_length,
                memory=memory,
                observe=observe,
                actions=list(self.actions) if scenario is None else scenario.places(self.actions),
                num_threads=self.num_threads,
                autoreset_mode=mode,
                **own,
            )

        game = observation_high(memory, self.episode_length, observe, scenario)
        high = np.append(game, np.ones(code_len, np.float32))
        super().__init__(
            native,
            Box(np.zeros_like(high), high, dtype=np.float32),
            Discrete(len(self.actions)),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=render_modes,
            info_of=info_of,
        )

    @property
    def network(self) -> Cage2Scenario:
        """The scenario that is played, the challenge's own where no other one was given."""
        from fastrl.envs.cage2.scenario import challenge  # what playing Scenario 2 does not need

        return self._scenario or challenge()

    def red_agents(self) -> NDArray[np.uint8]:
        """The red agent of each environment's current episode, uint8 [N]: index into `RED_AGENTS`."""
        return self.episode_info("red_agent").astype(np.uint8)


class Cage2VectorEnv(Cage2Games):
    """N games of CAGE Challenge 2, stepped natively.

    Args:
        num_envs: number of games, N.
        ruleset: `"main"` (today's repository, the default), `"leaderboard"` (commit 606813b, on which the final
            leaderboard was scored) or `"plusplus"` (as CybORG++ has mended `"main"`). They score the same policy very
            differently.
        red_agent: `"bline"` (the default), `"meander"`, `"sleep"`, `"mix"` (B_line and Meander, even), or a mapping of
            names to weights from which each episode's agent is drawn.
        episode_length: steps after which an episode is truncated, by default 100. It never terminates.
        max_episode_steps: Gymnasium's name for the same; it takes precedence.
        memory: values after the 52 bits of what blue remembers of the episode: `"none"` (the default), `"scan"` (62 in
            all), `"decoys"` (103) or `"full"` (240), see `fastrl.envs.cage2.memory`.
        observe: `"blue"`, the default, or `"truth"`, which adds 390 values of the true state of the game, which no
            defender can see.
        actions: `None` for the 145, `"effective"` for those that can ever have an effect, or indices into `ACTIONS`;
            action a of the environment is then the a-th of them.
        num_threads: threads that step the games; 0 for one a core.
        autoreset_mode: see `NativeVectorEnv`.
        scenario: a scenario file in CybORG's YAML, or one that `load_scenario` has read; None for Scenario 2. Its
            observations have 4 bits for each of `hosts` and the ``memory`` of these, its actions are `action_names`,
            and it takes ``observe`` `"blue"` alone.
        info_state: adds the true state to `info`: red_access uint8 [N, hosts] (0 none, 1 user, 2 root), red_sessions
            and processes uint8 [N, hosts] (255 stands for more), red_action int8 [N, 3] (kind, target, success); as
            `truth`.
        random: `"fast"`, or `"python"` for the generator of CPython's `random`: then `seed=s` gives the episodes of the
            real CybORG after `random.seed(s)`, and the stream continues through an environment's episodes. It needs a
            single red agent.
        render_mode: `"ansi"`: `render()` gives a table of blue's view and of the true state for each game.

    Raises:
        ValueError: an option out of its range; the message says what was expected.
    """

    _native: _rust.Cage2Vec

    def __init__(
        self,
        num_envs: int = 1,
        *,
        scenario: str | Path | Cage2Scenario | None = None,
        info_state: bool = False,
        random: Literal["fast", "python"] = "fast",
        **games: Unpack[GameOptions],
    ) -> None:
        one_of("random", random, ("fast", "python"))
        if isinstance(scenario, str | Path):
            from fastrl.envs.cage2.scenario import load_scenario  # what Scenario 2 does not need

            scenario = load_scenario(scenario)
        super().__init__(
            _rust.Cage2Vec,
            {"python_random": random == "python"}
            | ({} if scenario is None else {"scenario": scenario.native}),
            num_envs,
            scenario=scenario,
            info_of=self.truth if info_state else None,
            **games,
        )

    def truth(self) -> dict[str, NDArray[Any]]:
        """The true state, which ``info_state`` adds to `info`."""
        n, hosts = self.num_envs, len(self.hosts)
        truth: dict[str, NDArray[Any]] = {
            "red_access": np.empty((n, hosts), np.uint8),
            "red_sessions": np.empty((n, hosts), np.uint8),
            "processes": np.empty((n, hosts), np.uint8),
            "red_action": np.empty((n, 3), np.int8),
        }
        self._native.truth(**truth)
        return truth

    def alerts(self) -> NDArray[np.bool_]:
        """Bool [N, hosts]: hosts on which Monitor named a suspicious process in the last step.

        The alerts are part of CybORG's raw observation, which the challenge's scripted defenders read, not of the 52
        bits.
        """
        out = np.empty((self.num_envs, len(self.hosts)), np.bool_)
        self._native.alerts(out)
        return out


class Cage2Env(SingleEnv):
    """One game of CAGE Challenge 2. Options as in `Cage2VectorEnv`.

    The info of `reset` has ``red_agent``, the index into `RED_AGENTS` of the episode's red agent. With the render mode
    ``rgb_array`` `render` gives a picture of the network, uint8 [512, 576, 3], or larger for a larger network: hosts in
    the colour of red's access, the one with a frame that blue's last action was for, and the return so far.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    vector_class = Cage2VectorEnv
    vector: Cage2VectorEnv

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        # The picture shows what the vector environment does not keep.
        super().__init__(render_mode=None if render_mode == "rgb_array" else render_mode, **options)
        self.render_mode = render_mode
        self._blue_action, self._steps, self._total = "", 0, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        self._blue_action, self._steps, self._total = "", 0, 0.0
        return obs, info | {"red_agent": int(self.vector.red_agents()[0])}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        result = _, reward, *_ = super().step(action)
        self._blue_action = self.vector.action_names[int(action)]
        self._steps += 1
        self._total += reward
        return result

    def render(self) -> Any:
        if self.render_mode != "rgb_array":
            return super().render()
        # The import is slow and needed for drawing only.
        from fastrl.envs.cage2.network_picture import NetworkState, network_picture

        access = self.vector.truth()["red_access"][0]
        title = f"attacker {RED_AGENTS[self.vector.red_agents()[0]]}"
        state = NetworkState(title, access, self._blue_action, self._total)
        return network_picture(state, note=f"step {self._steps}", dpi=160, network=self.vector.network)

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [num_actions], see `Cage2VectorEnv.action_masks`."""
        return self.vector.action_masks()[0]

    @property
    def agent_view(self) -> AgentView:
        """The challenge's 52 bits and 145 actions, or those of a scenario; actions that never have an effect do what
        Sleep does."""
        network = self.vector.network
        own = {action: place for place, action in enumerate(self.vector.actions)}
        sleep = own.get(network.actions.index("Sleep"), -1) if "Sleep" in network.actions else -1
        other = (-1 if i in network.effective_actions else sleep for i in range(len(network.actions)))
        bits = 4 * len(network.hosts)
        return AgentView(bits, tuple(own.get(action, place) for action, place in enumerate(other)))

    def alerts(self) -> NDArray[np.bool_]:
        """Bool [hosts], see `Cage2VectorEnv.alerts`."""
        return self.vector.alerts()[0]
