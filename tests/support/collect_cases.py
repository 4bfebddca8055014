"""Environments and actors for tests of collectors: cheap, known from their seeds, and able to go wrong."""

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import Plan
from fastrl.envs.contract import CONTINUES
from fastrl.envs.spec import as_spec
from fastrl.networks.compiled_actor import RowActor, Rows
from fastrl.rollout.fragment import Fragment
from fastrl.utils import processes
from fastrl.utils.seeding import uniforms

OBS = gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
ACTIONS = gymnasium.spaces.Discrete(3)
FORCES = gymnasium.spaces.Box(np.float32([-1, 0]), np.float32([1, 10]))

STEP_ARRAYS = ("actions", "log_probs", "rewards", "terminations", "truncations")


class Noise(gymnasium.Env[Any, Any]):
    """An episode of 1 to 9 steps: length, observations and rewards follow from its seed and the actions. Every third is
    truncated.

    Args:
        forces: two numbers as an action, instead of one of three.
        scale: of the observations as the space tells them; another one is another space.
        sleep: seconds that a step takes.
    """

    def __init__(self, forces: bool = False, scale: float = np.inf, sleep: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(-scale, scale, (2, 2), np.float64)
        self.action_space = FORCES if forces else ACTIONS
        self.sleep = sleep

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None, "every episode has a seed of its own"
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 10))
        self.cut = self.left % 3 == 0
        return self.np_random.normal(size=(2, 2)), {}

    def step(self, action: Any) -> Any:
        if self.sleep:
            time.sleep(self.sleep)
        assert self.action_space.contains(np.asarray(action))
        self.left -= 1
        over = self.left == 0
        reward = float(np.sum(action)) + self.np_random.normal()
        return self.np_random.normal(size=(2, 2)), reward, over and not self.cut, over and self.cut, {}


class Lives(Noise):
    """A game of up to four lives, each an episode as of `Noise` from what came before it in the game. A seed counts
    only where a game starts."""

    left_lives = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.left_lives:
            return super().reset(seed=int(self.np_random.integers(2**31)))
        obs, info = super().reset(seed=seed)
        self.left_lives = int(self.np_random.integers(1, 5))
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            self.left_lives -= 1
            terminated, truncated = self.left_lives > 0 or terminated, self.left_lives == 0 and truncated
            info = {CONTINUES: 1.0} if self.left_lives else {}
        # Actions have consequences.
        self.np_random.normal(size=np.sum(np.abs(action)).astype(int))
        return obs, reward, terminated, truncated, info


class Broken(Noise):
    """Does something bad in some episodes, known by the first number of their first observation.

    Args:
        share: of the episodes.
        what: "raise", "hang", "kill", "exit" (as sys.exit does) or "build": the constructor raises.
        once: a folder, in which is noted what has happened and should not again; empty: it happens each time.
    """

    def __init__(self, share: float, what: str, once: str = "") -> None:
        super().__init__()
        self.share, self.what, self.once = share, what, once
        if what == "build" and self._first("build"):
            raise RuntimeError("this one cannot be built")

    def _first(self, name: str) -> bool:
        if not self.once:
            return True
        try:
            (Path(self.once) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        self.bad = np.random.default_rng(seed).random() < self.share and f"episode {seed}"
        return obs, info

    def step(self, action: Any) -> Any:
        if self.bad and self.what != "build" and self._first(self.bad):
            if self.what == "raise":
                raise ValueError("this game is broken")
            if self.what == "exit":
                sys.exit("this game is over")
            if self.what == "kill":
                os.kill(os.getpid(), 9)
            this_game_hangs()
        return super().step(action)


class Stuck(Noise):
    """Waits for ever in the third step of its process, unless the file ``once`` says that this has happened.

    Args:
        once: path of that file; empty: it happens in each process.
    """

    def __init__(self, once: str = "") -> None:
        super().__init__()
        self.once, self.taken = once, 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == 3 and not (self.once and Path(self.once).exists()):
            if self.once:
                Path(self.once).touch()
            this_game_waits()
        return super().step(action)


def this_game_waits() -> None:
    threading.Event().wait()


class Forking(Noise):
    """Forks where ``where`` says ("build", "reset", "step", "close"), and its copies leave by ``how`` ("exit", "raise",
    "return"); the original waits for them, and raises if one has not ended so."""

    def __init__(self, where: str, how: str) -> None:
        super().__init__()
        self.where, self.how = where, how
        self.fork("build")

    def fork(self, where: str) -> None:
        if where != self.where:
            return
        pid = os.fork()
        if pid:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == {"exit": 3, "raise": 1, "return": 0}[self.how]
        elif self.how != "return":
            raise SystemExit(3) if self.how == "exit" else RuntimeError("a copy has failed")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.fork("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.fork("step")
        return super().step(action)

    def close(self) -> None:
        self.fork("close")


class Wrong(Noise):
    """Gives something wrong at the third step of each episode that has as many; ``what`` says what of `WRONG`."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.taken = what, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        obs, info = super().reset(seed=seed)
        return WRONG[self.what](obs, info) if self.what.startswith("reset") else (obs, info)

    def step(self, action: Any) -> Any:
        self.taken += 1
        result = super().step(action)
        return WRONG[self.what](*result) if self.taken == 3 and not self.what.startswith("reset") else result


# Wrong results of an environment, by name: functions of the result of ``step``, or of ``reset``.
WRONG: dict[str, Callable[..., Any]] = {
    "nan reward": lambda obs, reward, *rest: (obs, np.nan, *rest),
    "large reward": lambda obs, reward, *rest: (obs, 1e300, *rest),
    "infinite obs": lambda obs, *rest: (np.where(obs > 9, obs, -np.inf), *rest),
    "4 values": lambda obs, reward, terminated, truncated, info: (obs, reward, terminated or truncated, info),
    "no values": lambda *result: None,
    "no reward": lambda obs, reward, *rest: (obs, None, *rest),
    "text": lambda obs, reward, *rest: (obs, "1.0", *rest),
    "two rewards": lambda obs, reward, *rest: (obs, np.zeros(2), *rest),
    "no flag": lambda obs, reward, terminated, *rest: (obs, reward, None, *rest),
    "info as flag": lambda obs, reward, terminated, truncated, info: (
        obs,
        reward,
        terminated,
        info,
        truncated,
    ),
    "flat obs": lambda obs, *rest: (obs.reshape(4), *rest),
    "short obs": lambda obs, *rest: (obs[:1], *rest),
    "no obs": lambda obs, *rest: (None, *rest),
    "ragged obs": lambda obs, *rest: ([[1.0, 2.0], [3.0]], *rest),
    "text obs": lambda obs, *rest: (obs.astype(str), *rest),
    "complex obs": lambda obs, *rest: (obs + 1j, *rest),
    "reset without info": lambda obs, info: obs,
    "reset obs": lambda obs, info: (obs[0], info),
    "reset nan": lambda obs, info: (obs * np.nan, info),
}


class Unclosed(Broken):
    """One whose ``close()`` never returns. With something else that it does, its process waits half a second for that,
    where fastrl would wait longer."""

    def __init__(self, share: float, what: str, once: str = "") -> None:
        super().__init__(share, what, once)
        if what:
            processes.CLOSE_TIMEOUT = 0.5

    def close(self) -> None:
        this_game_hangs()


def this_game_hangs() -> None:
    time.sleep(1000)


class Chooser(RowActor):
    """Adds its one weight to a random number; row by row the same, whatever is beside it."""

    weights_nbytes = 4

    def __init__(self, forces: bool = False, megabytes: float = 0.0) -> None:
        self.forces = forces
        self.weight = np.zeros(1, np.float32)
        self.weights_nbytes = 4 + 4 * int(megabytes * 2**18)

    def load(self, weights: Any) -> None:
        self.weight = np.frombuffer(weights, np.float32, 1).copy()

    def choose(self, rows: Rows) -> tuple[Any, Any]:
        drawn, masks = uniforms(rows.streams, rows.steps), rows.masks
        if self.forces:
            actions = (drawn * 4 - 2)[:, None]
        elif masks is not None:
            actions = (masks.cumsum(1) > (drawn * masks.sum(1)).astype(np.int64)[:, None]).argmax(1)
        else:
            actions = (drawn * 3 + self.weight + np.abs(rows.obs[:, 0])).astype(np.int64) % 3
        return actions, drawn + self.weight


class Remembering(Chooser):
    """A `Chooser` whose actions depend on the steps of the episode so far."""

    state_size = 2

    def choose(self, rows: Rows) -> tuple[Any, Any]:
        obs, states = rows.obs, rows.states
        assert states is not None and states.shape == (len(obs), 2)
        assert ((rows.steps == 0) == (states[:, 0] == 0)).all(), "states are zeros at the start of episodes"
        states[:, 1] = np.float32(0.5) * states[:, 1] + np.abs(obs[:, 0])
        states[:, 0] += 1
        return super().choose(rows._replace(obs=states[:, 1:]))


def chooser(weight: float) -> NDArray[np.float32]:
    """Weights for `Chooser`."""
    return np.array([weight], np.float32)


def plan(
    unit: Any = "steps",
    env: Callable[..., gymnasium.Env[Any, Any]] = Noise,
    *,
    num_envs: int = 5,
    num_steps: int = 12,
    episodes: int = 17,
    seed: int = 3,
    forces: bool = False,
    memory: bool = False,
    **options: Any,
) -> Plan:
    return Plan(
        as_spec(env, **options, **({"forces": True} if forces else {})),
        functools.partial(Remembering if memory else Chooser, forces),
        OBS,
        FORCES if forces else ACTIONS,
        num_envs=num_envs,
        num_steps=num_steps,
        unit=unit,
        episodes=episodes if unit == "episodes" else 0,
        seed=seed,
    )


def rows(fragments: list[Fragment]) -> dict[int, Any]:
    """The bytes of the arrays, by environment index, or by number for whole episodes."""
    found: dict[int, Any] = {}
    for fragment in fragments:
        ended = fragment.terminations | fragment.truncations
        cut = fragment.truncations & ~fragment.terminations
        for row, env_index in enumerate(fragment.env_indices.tolist()):
            key = env_index if env_index < 2**32 else int(fragment.episodes[0, 1])
            assert key not in found
            mine = fragment.episodes[:, 0] == env_index
            found[key] = (
                fragment.version,
                fragment.obs[:, row].tobytes(),
                fragment.final_obs[ended[:, row], row].tobytes(),
                *(getattr(fragment, name)[:, row].tobytes() for name in STEP_ARRAYS),
                fragment.returns[mine].tobytes(),
                fragment.lengths[mine].tobytes(),
                fragment.episodes[mine].tobytes(),
                None if fragment.masks is None else fragment.masks[:, row].tobytes(),
                None if fragment.final_masks is None else fragment.final_masks[cut[:, row], row].tobytes(),
                None if fragment.states is None else fragment.states[row].tobytes(),
                None if fragment.next_states is None else fragment.next_states[row].tobytes(),
                {key: values[mine].tobytes() for key, values in fragment.episode_info.items()},
            )
    return found


def updates(collector: Any, count: int = 3) -> list[dict[int, Any]]:
    """Contents of some updates, each with other weights."""
    found = []
    for update in range(count):
        collector.publish(chooser(update))
        found.append(rows(collector.collect()))
    return found


def take_many(collector: Any, count: int, env_indices: set[int]) -> list[int]:
    """Takes ``count`` fragments, and more until there is one of each environment: one worker may start when another has
    collected many. From the tenth on, each tenth time new weights are published. Checks that no version comes before it
    was published, and that no episode ends twice. Returns the versions."""
    ended: Counter[tuple[int, int]] = Counter()
    versions: list[int] = []
    missing = set(env_indices)
    while len(versions) < count or (missing and len(versions) < 100_000):
        if len(versions) % 10 == 9:
            collector.publish(chooser(len(versions)))
        fragment = collector.take(60.0)
        assert fragment is not None
        assert fragment.version <= collector.version
        assert env_indices.issuperset(fragment.env_indices.tolist())
        missing.difference_update(fragment.env_indices.tolist())
        versions.append(fragment.version)
        ended.update(map(tuple, fragment.episodes.tolist()))
    assert not missing
    assert set(ended.values()) == {1}
    return versions
