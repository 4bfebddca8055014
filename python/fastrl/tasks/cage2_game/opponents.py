"""Games of CAGE Challenge 2 in which one side learns, and what plays the other."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.collectors.team_spec import SELF, CompiledTeamSpec
from fastrl.envs.cage2.env import ACTIONS, RED_AGENTS, action_indices
from fastrl.envs.cage2.game import AGENTS, RED_ACTIONS, RED_VIEW, Cage2GameVectorEnv
from fastrl.envs.cage2.memory import MEMORIES, Memory, observation_names
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.opponents import Opponent, OpponentVectorEnv, Turn
from fastrl.play.own_agent import OwnAgent, is_agent
from fastrl.play.play import team_seeds
from fastrl.runs.checkpoint import CheckpointError, using_checkpoint
from fastrl.tasks.cage2_game.settings import Side
from fastrl.training.opposed_spec import policy_state, weighted
from fastrl.utils.config import ConfigError
from fastrl.utils.seeding import agent_streams

BLUE, RED = range(2)


class ScriptedRed:
    """Plays red as the game's `choose_red`."""

    state_size = 0

    def act(self, turn: Turn) -> NDArray[np.int64]:
        """See `Opponent.act`."""
        # Scripts take their next move whoever plays: random numbers of a game do not depend on the others.
        red = cast(Cage2GameVectorEnv, turn.env).choose_red()
        return red[turn.mine.reshape(-1, len(AGENTS))[:, RED]]


class OwnBlue:
    """Plays blue by agents of the user's own, one for each game; see `OwnAgent`.

    They see the challenge's 52 bits, and choose among its 145 actions.

    Args:
        path: import path.

    Raises:
        ConfigError, HookError: it is no agent.
    """

    state_size = 0

    def __init__(self, path: str) -> None:
        self._path, self._agents = path, [OwnAgent(path, len(ACTIONS))]

    def act(self, turn: Turn) -> NDArray[np.int64]:
        """See `Opponent.act`.

        Raises:
            HookError: an agent raised.
            ConfigError: it chose no action of the challenge.
        """
        while len(self._agents) < turn.env.num_envs:
            self._agents.append(OwnAgent(self._path, len(ACTIONS)))
        return np.array([self._action(turn, row) for row in np.flatnonzero(turn.mine).tolist()], np.int64)

    def _action(self, turn: Turn, row: int) -> int:
        agent = self._agents[row // len(AGENTS)]
        if turn.steps[row] == 0:
            agent.start()
        return agent.act_index(turn.obs[row, : len(observation_names("none"))].copy())


@dataclass(frozen=True)
class GameSpec(CompiledTeamSpec):
    """A spec of games.

    Attributes:
        side: that learns.
        opponents: names of scripts of red, run directories and import paths of agents of blue, perhaps with `weighted`
            weights; empty: for blue the scripts that the options name.
    """

    side: Side = "both"
    opponents: Sequence[str] = ()

    @property
    def scored_agents(self) -> int | None:
        """Blue alone where both sides learn: the mean of both is 0."""
        return 1 if self.side == "both" else None

    def shares(self) -> Mapping[str, float]:
        given = dict(map(weighted, self.opponents))
        if self.side != "blue":
            return given
        scripts = [share for name, share in given.items() if name in RED_AGENTS]
        runs = {name: share for name, share in given.items() if name not in RED_AGENTS}
        # The games draw one of the scripts.
        return {"scripts": sum(scripts) or 1.0, **runs} if scripts or not runs else runs

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
    ) -> MultiAgentVectorEnv:
        """See `TeamSpec.make_team`.

        Raises:
            ConfigError: opponents that do not go with the side.
            CheckpointError: a run directory has no policy that can play the other side.
        """
        if SELF in self.shares():
            raise ConfigError(
                f"opponents: {SELF}: one side's policy cannot play the other; train the sides in turn,"
                " each with the runs of the other as --opponents"
            )
        options = dict(self.options) if workers is None else {**self.options, "num_threads": workers}
        if self.side == "both":
            if self.opponents:
                raise ConfigError(
                    "opponents: expected none where both sides learn; --side says which one does"
                )
            return Cage2GameVectorEnv(num_envs, **options, autoreset_mode=autoreset_mode)
        opponents, changes = self._others()
        options = {**options, **changes, "autoreset_mode": AutoresetMode.DISABLED}
        return OpponentVectorEnv(
            num_envs,
            functools.partial(Cage2GameVectorEnv, **options),
            opponents=opponents,
            weights=[*self.shares().values()],
            frozen=[RED if self.side == "blue" else BLUE],
            autoreset_mode=autoreset_mode,
        )

    def _others(self) -> tuple[list[Opponent], dict[str, Any]]:
        """The opponents, and options of the games that they need."""
        shares = dict(map(weighted, self.opponents))
        scripts = {name: share for name, share in shares.items() if name in RED_AGENTS}
        runs = [name for name in shares if name not in RED_AGENTS]
        changes: dict[str, Any] = {}
        opponents: list[Opponent] = []
        if self.side == "red":
            if scripts or not runs:
                raise ConfigError(
                    f"opponents: expected run directories of blue, got {', '.join(scripts) or 'none'}"
                )
            opponents, memory = blues(runs)
            return opponents, {"memory": memory, "actions": None, "observe": "blue"}
        if scripts or not runs:
            opponents.append(ScriptedRed())
        if scripts:
            changes["red_agent"] = scripts
        opponents += [frozen_red(run, policy_state(run)) for run in runs]
        return opponents, changes


def memory_of(state: Mapping[str, Any]) -> Memory:
    memory: Memory = state["config"]["env"].get("memory", "none")
    return memory


def blues(names: Sequence[str]) -> tuple[list[Opponent], Memory]:
    """Frozen defenders, and the least memory of games in which all of them can play.

    Args:
        names: runs, as `frozen_blue` takes them, and import paths of agents, as `OwnBlue` does.
    """
    states = {name: policy_state(name) for name in names if not is_agent(name)}
    found = [frozen_blue(name, states[name]) if name in states else OwnBlue(name) for name in names]
    return found, max(map(memory_of, states.values()), key=MEMORIES.index, default="none")


def frozen_blue(run: str, state: Mapping[str, Any]) -> Opponent:
    """The blue side of a run of cage2 or cage2-game, in games of all actions and at least its memory.

    Args:
        run: its directory, for messages.
        state: of its checkpoint.

    Raises:
        CheckpointError: it cannot play there.
    """
    env = state["config"]["env"]
    if env.get("observe", "blue") != "blue":
        raise CheckpointError(f"{run}: its blue sees the true state of the game, which no opponent can see")
    if state.get("kind") == "cage2-game":
        return _of_game(
            run, state, BLUE, len(observation_names(memory_of(state))), action_indices(env["actions"])
        )
    from fastrl.play.opponents import PolicyOpponent
    from fastrl.play.policy import policy_of

    if state.get("kind") != "cage2":
        raise CheckpointError(f"{run} is a run of {state.get('kind')}: expected one of cage2 or cage2-game")
    if env.get("scenario", "none") != "none":
        raise CheckpointError(
            f"{run}: its blue defends the network of {env['scenario']}, not the challenge's"
        )
    policy = policy_of(Path(run), state)
    return PolicyOpponent.from_policy(policy, BLUE, columns=policy.obs_dim)


def frozen_red(run: str, state: Mapping[str, Any]) -> Opponent:
    """The red side of a run of cage2-game; see `frozen_blue`."""
    if state.get("kind") != "cage2-game":
        raise CheckpointError(f"{run} is a run of {state.get('kind')}: expected one of cage2-game")
    return _of_game(run, state, RED, len(RED_VIEW), range(len(RED_ACTIONS)))


def _of_game(
    run: str, state: Mapping[str, Any], agent: int, columns: int, choices: Sequence[int]
) -> Opponent:
    from fastrl.play.opponents import PolicyOpponent

    learned: Side = state["config"]["env"]["side"]
    if learned not in ("both", AGENTS[agent]):
        raise CheckpointError(f"{run} has learned {learned}, and cannot play {AGENTS[agent]}")
    table = state["config"][state["algorithm"]]
    with using_checkpoint(Path(run), "holds no policy that this fastrl can use"):
        return PolicyOpponent.from_team(
            state["policy"],
            {agent: agent if learned == "both" else 0},
            columns=columns,
            choices=np.array(choices, np.int64),
            action_masks=table["action_masks"],
            # As `exploit` measures them: a defender plays as it is scored, an attacker as it has learned to.
            deterministic=agent == BLUE,
        )


def play_sides(sides: Sequence[Opponent], episodes: int, **options: Any) -> Iterator[list[NDArray[Any]]]:
    """Plays an episode of each of K games, in which opponents play both sides, on the seeds of all evaluations. Yields
    the actions of each step, int64 [K, 2], the observations after it, float32 [K, 2, D], and the rewards, float32
    [K, 2]; the next step overwrites them.

    Args:
        sides: of `AGENTS`.
        episodes: K.
        options: of the games.
    """
    options |= {"num_threads": 1, "autoreset_mode": AutoresetMode.DISABLED}
    with contextlib.closing(Cage2GameVectorEnv(episodes, **options)) as game:
        size, seeds = episodes * len(AGENTS), team_seeds(0, episodes)
        obs, alive = (array.reshape(size, *array.shape[2:]) for array in game.reset(seed=seeds))
        rewards, flags = np.zeros(size, np.float32), np.zeros((2, size), np.bool_)
        streams = agent_streams(np.array(seeds, np.uint64), len(AGENTS)).ravel()
        states = np.zeros((size, max(side.state_size for side in sides)), np.float32)
        actions, steps = np.zeros(size, np.int64), np.zeros(size, np.int64)
        while alive.any():
            masks = game.action_masks()
            for index, side in enumerate(sides):
                mine = np.tile(np.arange(len(AGENTS)) == index, episodes)
                actions[mine] = side.act(Turn(game, obs, mine, streams, steps, masks, states))
            game.step_into(actions, obs, rewards, flags[0], flags[1], alive)
            steps += 1
            yield [each.reshape(episodes, len(AGENTS), *each.shape[1:]) for each in (actions, obs, rewards)]
