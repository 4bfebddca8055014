"""A collecting process: steps several environments with the newest weights and sends their transitions."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.counters import EndedEpisode, SharedCounters, Times
from fastrl.collectors.transport import Sender
from fastrl.collectors.weights import Weights
from fastrl.envs import contract
from fastrl.networks.compiled_actor import ExploringActor


@dataclass(frozen=True)
class Job:
    """The task of a collecting process, which receives it as a pickle.

    Attributes:
        index: its number among the run's collectors.
        envs: indices of its environments in the run, for the rows' field ``env``.
        make_env: makes one of them, with single frames or vectors as observations. With frames, ``info["episode"]``
            has return and length where a game has ended, as `fastrl.envs.pixels.PixelEnv` does.
        has_episode_info: whether it does so; otherwise returns and lengths are summed here.
        make_actor: from a seed.
        row: the rows' type: fields ``env, obs, action, reward, terminated, truncated, end, version``.
        stack: the newest frames that make an observation, channels first; 0: observations are not stacked.
        epsilon: share of random actions, by environment steps of the run.
        powers: float64 [K], to which each environment's epsilon is raised (Horgan et al., "Distributed Prioritized
            Experience Replay", 2018, section 4.1, has environments that explore differently); 1: as it is.
        fragment: rows that are sent at a time.
        weights_every: steps of each environment between checks for newer weights.
        seed: of environments and exploration.
        attempt: how many processes of this job have died before; each has its own seeds.
    """

    index: int
    envs: range
    make_env: Callable[[], gymnasium.Env[Any, Any]]
    has_episode_info: bool
    make_actor: Callable[[int], ExploringActor]
    row: np.dtype[Any]
    stack: int
    epsilon: Callable[[int], float]
    powers: NDArray[np.float64]
    fragment: int
    weights_every: int
    seed: int
    attempt: int = 0


class Stacks:
    """The newest frames of each of K environments, [K, stack, ...], as its actor sees them.

    Before the first frame of an episode there are frames of zeros, as in ``fastrl.replay``.

    Args:
        stack: how many; 0 keeps the observation alone, [K, ...].
    """

    def __init__(self, num_envs: int, stack: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.obs: NDArray[Any] = np.zeros((num_envs, *((stack,) if stack else ()), *shape), dtype)
        self._stacked = stack > 0

    def newest(self, i: int) -> NDArray[Any]:
        """The newest frame of environment i, a view."""
        mine: NDArray[Any] = self.obs[i, -1] if self._stacked else self.obs[i]
        return mine

    def begin(self, i: int, frame: NDArray[Any]) -> None:
        """Starts an episode."""
        self.obs[i] = 0
        self.newest(i)[...] = frame

    def push(self, i: int, frame: NDArray[Any]) -> None:
        """Adds the frame of a step."""
        if self._stacked:
            # numpy copies as if through a buffer where source and target overlap.
            self.obs[i, :-1] = self.obs[i, 1:]
        self.newest(i)[...] = frame


def collect(job: Job, counters: SharedCounters, sender: Sender, weights: Weights | None) -> None:
    """Steps the environments until the counters say stop.

    Args:
        weights: the learner's broadcast; None: the actor keeps its initial weights.

    Raises:
        TransportClosed: the learner takes no more.
        ContractError: an observation or reward is not finite, or not in its space.
    """
    seeds = np.random.SeedSequence([job.seed, job.index, job.attempt]).generate_state(len(job.envs) + 1)
    actor = job.make_actor(int(seeds[-1]))
    buffer = bytearray(actor.weights_nbytes)
    envs = [job.make_env() for _ in job.envs]
    shape, dtype = job.row["obs"].shape, job.row["obs"].base
    stacks = Stacks(len(envs), job.stack, shape, dtype)
    spec = envs[0].spec
    form = contract.obs_form(type(envs[0].unwrapped).__name__ if spec is None else spec.id, shape, dtype)
    for i, env in enumerate(envs):
        stacks.begin(i, contract.reset(env, form, int(seeds[i]))[0])
    # A step of all environments may add two rows for each.
    rows = np.zeros(job.fragment + 2 * len(envs), job.row)
    column = {name: rows[name] for name in job.row.names or ()}
    returns, lengths = np.zeros(len(envs)), np.zeros(len(envs), np.int64)
    steps, version, filled, num_acts = counters.steps_of(job.index), 0, 0, 0
    before = counters.times_of(job.index)
    start = clock = time.perf_counter()
    seconds_of = {"environment": before.environment, "inference": before.inference, "queue": before.queue}

    def passed(part: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds_of[part] += now - clock
        clock = now

    while not counters.stop:
        if weights is not None and num_acts % job.weights_every == 0:
            newer = weights.read(buffer, newer_than=version)
            if newer:
                actor.load(buffer)
                version = newer
        actions = actor.act(stacks.obs, job.epsilon(counters.steps) ** job.powers)
        num_acts += 1
        passed("inference")
        for i, env in enumerate(envs):
            action = int(actions[i])
            column["obs"][filled] = stacks.newest(i)
            frame, reward, terminated, truncated, info = contract.step(env, form, action)
            column["env"][filled] = job.envs[i]
            column["action"][filled] = action
            column["reward"][filled] = reward
            column["terminated"][filled] = terminated
            column["truncated"][filled] = truncated
            column["end"][filled] = False
            column["version"][filled] = version
            filled += 1
            returns[i] += float(reward)
            lengths[i] += 1
            if terminated or truncated:
                rows[filled] = rows[filled - 1]
                column["obs"][filled] = frame
                column["end"][filled] = True
                filled += 1
                ended = info.get("episode")
                if ended is not None:
                    counters.add_episode(job.index, EndedEpisode(float(ended["r"]), int(ended["l"])))
                elif not job.has_episode_info:
                    counters.add_episode(job.index, EndedEpisode(float(returns[i]), int(lengths[i])))
                returns[i], lengths[i] = 0, 0
                stacks.begin(i, contract.reset(env, form)[0])
            else:
                stacks.push(i, frame)
        steps += len(envs)
        passed("environment")
        if filled >= job.fragment:
            contract.expect_finite(form.name, column["reward"][:filled], column["obs"][:filled])
            sender.put(rows[:filled])
            filled = 0
            passed("queue")
            seconds = before.seconds + clock - start
            counters.report(job.index, steps, version, Times(seconds, **seconds_of))
