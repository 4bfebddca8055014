"""Steps single environments with an actor, in any process: the loop of "sequential", "executor" and "ray"."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError, Plan, expect_spaces
from fastrl.collectors.running import RunningEpisode, actions_of, reached, state_of
from fastrl.envs import contract
from fastrl.networks.compiled_actor import Actor, values_of
from fastrl.rollout.fragment import (
    STATE_ARRAYS,
    Fragment,
    all_finite,
    allocate,
    ended_steps,
    first_not_finite,
    first_steps,
)
from fastrl.utils.seeding import NO_ENV, act_stream, env_seed

PARTS = ("environment", "inference", "buffer", "weights", "waiting")
"""Names of the parts of time in `fastrl.collectors.protocol.Report`."""

UNPUBLISHED = "no weights yet: publish some before anything is collected with them"

Arrays = dict[str, NDArray[Any]]


class Stopped(Exception):  # noqa: N818 - no error: the runner ends
    """The collector is closed while its environments are stepped."""


class FragmentMeta(NamedTuple):
    """The parts of a fragment that are not arrays of steps.

    Attributes:
        num_steps: T.
        returns, lengths: of the episodes that ended.
        episodes: their environment indices and numbers.
        info: of each, the values of the plan's ``episode_info`` keys.
    """

    num_steps: int
    returns: list[float]
    lengths: list[int]
    episodes: list[tuple[int, int]]
    info: list[tuple[float, ...]]


def arrays_for(plan: Plan, rows: int) -> Arrays:
    """Allocates the arrays that an `EnvRunner` writes: a fragment's, for whole episodes without those that
    `fragment_of` knows."""
    arrays = allocate_steps(plan, plan.num_steps, rows)
    if plan.unit == "episodes":
        for name in ("final_obs", *STATE_ARRAYS):
            arrays.pop(name, None)
    return arrays


def allocate_steps(plan: Plan, num_steps: int, rows: int) -> Arrays:
    """Allocates a fragment's arrays for so many steps of a plan's environments."""
    actions = plan.actions
    return allocate(
        num_steps,
        rows,
        plan.obs_dim,
        actions.shape,
        actions.dtype,
        obs_dtype=plan.obs_rows.dtype,
        reward_dtype=plan.reward_dtype,
        num_masked=plan.num_masked,
        final_masks=plan.final_masks,
        state_size=plan.state_size,
        values=plan.has_values,
        agents=plan.agents,
    )


def fragment_of(
    plan: Plan, arrays: Arrays, meta: FragmentMeta, version: int, env_indices: NDArray[np.int64]
) -> Fragment:
    """Makes a fragment of the arrays' first steps, without copying them."""
    steps = meta.num_steps
    cut = first_steps(arrays, steps)
    if plan.unit == "episodes":
        cut["final_obs"] = cut["obs"][1:]
        if (states := plan.zero_states(1)) is not None:
            cut |= dict.fromkeys(STATE_ARRAYS, states)
    return Fragment(
        **cut,
        version=version,
        env_indices=env_indices,
        returns=np.asarray(meta.returns, np.float64),
        lengths=np.asarray(meta.lengths, np.int64),
        episodes=np.asarray(meta.episodes, np.int64).reshape(-1, 2),
        episode_info={
            key: np.array([values[i] for values in meta.info], np.float64)
            for i, key in enumerate(plan.episode_info)
        },
    )


def check_finite(
    plan: Plan,
    arrays: Arrays,
    num_steps: int,
    env_indices: Sequence[int],
    numbers: Sequence[int],
    steps: Sequence[int],
) -> None:
    """Refuses rewards and observations that are NaN or infinite.

    Args:
        arrays: of `arrays_for`, filled up to ``num_steps``.
        env_indices: of the environments.
        numbers: of their running episodes at the start of the arrays.
        steps: that had been taken in these episodes.

    Raises:
        CollectError: names the value, and the seed that reproduces the episode.
    """
    if all_finite(arrays, num_steps):
        return
    t, row, what = first_not_finite(arrays, num_steps)
    ends = np.flatnonzero(ended_steps(arrays)[: max(t, 0), row])
    number, step = numbers[row] + len(ends), t - int(ends[-1]) if len(ends) else steps[row] + t + 1
    seed = env_seed(plan.seed, env_indices[row], number)
    raise CollectError(
        f"{plan.env.id}: {what} at step {step} of the episode that reset(seed={seed}) began; rewards and observations"
        " should be finite float32 numbers"
    )


def check_masks(plan: Plan, arrays: Arrays, num_steps: int) -> None:
    """Refuses states in which no action was allowed: the actor took one that its mask forbids, or is to learn what the
    best one is worth.

    Raises:
        CollectError
    """
    if not plan.action_masks:
        return
    masks, actions = arrays["masks"][:num_steps], plan.actions.choices(arrays["actions"][:num_steps])
    nvec = plan.actions.nvec
    firsts = np.cumsum(nvec) - nvec
    taken = np.take_along_axis(masks, actions.reshape(*masks.shape[:2], -1) + firsts, axis=-1)
    if not taken.all():
        t, row, number = np.argwhere(~taken)[0]
        own = masks[t, row, firsts[number] :][: nvec[number]]
        of_number = f" for number {number}" if len(nvec) > 1 else ""
        raise CollectError(
            f"{plan.env.id}: the action mask of a state allows {own.sum()} of {nvec[number]} actions{of_number}, and"
            f" action {actions[t, row].flat[number]} was taken, which is not one of them; every state needs an allowed"
            " action"
        )
    if plan.final_masks:
        cut = arrays["truncations"][:num_steps] & ~arrays["terminations"][:num_steps]
        if not np.logical_or.reduceat(arrays["final_masks"][:num_steps][cut], firsts, axis=-1).all():
            raise CollectError(
                f"{plan.env.id}: the action mask of the last observation of a truncated episode allows no action; where"
                " none is possible the episode should be terminated"
            )


class EnvRunner:
    """Steps some environments of a plan, T steps at a time, or runs whole episodes, by the plan's unit.

    Episodes follow from ``fastrl.utils.seeding`` in any process. Environments and actor are built at the first use, and
    environments again after one has raised: the steps since the last fragment are then lost, and the running episodes
    are restarted.

    A return is the sum of the float32 rewards, in float64. Fragments have actions as the actor drew them, see
    `fastrl.networks.action_space.Actions`.

    Args:
        env_indices: environment indices; empty with unit "episodes", where one environment runs any episode.
        stop: a byte of shared memory; `Stopped` is raised before the next step once it is not 0.

    Attributes:
        env_indices: int64 [R], of the rows.
        numbers: of their running episodes; may be set before the first fragment.
        running: the running episodes to resume; may be set before the first fragment, which then replays them.
        restarted: rows whose running episodes were restarted with the last fragment, as replaying them diverged.
        seconds: by `PARTS`.
        form: of the observations.
        closing: a context in which environments are closed; does nothing unless set.
    """

    def __init__(self, plan: Plan, env_indices: Sequence[int] = (), stop: memoryview | None = None) -> None:
        self.plan = plan
        self.env_indices = np.asarray(env_indices if plan.unit == "steps" else (NO_ENV,), np.int64)
        self.numbers = [0] * len(self.env_indices)
        self.running: Sequence[RunningEpisode] = ()
        self.restarted: tuple[int, ...] = ()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.closing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._stop = memoryview(b"\0") if stop is None else stop
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._actor: Actor | None = None
        row_space = plan.obs_rows.row_space
        self.form = contract.obs_form(plan.env.id, row_space.shape, row_space.dtype)
        self._started = False
        rows = len(self.env_indices)
        self._obs = np.zeros((rows, plan.obs_dim), plan.obs_rows.dtype)
        # Of each environment: its method action_masks(), its present mask, and the values of its reset's info.
        self._mask_methods: list[Callable[[], Any] | None] = []
        self._masks = np.zeros((rows, plan.num_masked), np.bool_)
        self._reset_info: list[tuple[float, ...]] = [()] * rows
        self._returns, self._lengths = [0.0] * rows, [0] * rows
        self._streams, self._steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self._states = plan.zero_states(rows)

    @property
    def actor(self) -> Actor:
        if self._actor is None:
            self._actor = self.plan.make_actor()
        return self._actor

    def build(self) -> None:
        """Builds environments and actor, unless there are some. Collecting does so by itself.

        Raises:
            CollectError: the environment's spaces are not those that the learner expects.
            Exception: whatever environment and actor raise.
        """
        start = perf_counter()
        assert self.actor is not None
        try:
            while len(self._envs) < len(self.env_indices):
                env = self.plan.env.make()
                self._envs.append(env)
                self._mask_methods.append(contract.mask_method(env))
                expect_spaces(self.plan, env.observation_space, env.action_space)
        except BaseException:
            self.close()
            raise
        finally:
            self.seconds["environment"] += perf_counter() - start

    def load(self, weights: Any) -> None:
        """Loads weights into the actor."""
        start = perf_counter()
        self.actor.load(weights)
        self.seconds["weights"] += perf_counter() - start

    def collect_steps(self, version: int = 0, out: Arrays | None = None) -> Fragment:
        """Collects the next T steps of every environment.

        Args:
            version: of the actor's weights.
            out: the fragment's arrays, of `arrays_for`; None allocates them.
        """
        arrays = arrays_for(self.plan, len(self.env_indices)) if out is None else out
        return fragment_of(self.plan, arrays, self.run_steps(arrays), version, self.env_indices.copy())

    def collect_episode(self, number: int, version: int = 0, out: Arrays | None = None) -> Fragment:
        """Collects a whole episode, otherwise as `collect_steps`."""
        arrays = arrays_for(self.plan, 1) if out is None else out
        return fragment_of(
            self.plan, arrays, self.run_episode(number, arrays), version, self.env_indices.copy()
        )

    def run_steps(self, out: Arrays) -> FragmentMeta:
        """Does as `collect_steps`, without making the fragment."""
        self.build()
        numbers = self.numbers.copy()
        self.restarted = ()
        try:
            if not self._started:
                again, self.running = self.running, ()
                for row, each in enumerate(again):
                    self.numbers[row] -= each.lives
                for row in range(len(self.env_indices)):
                    self._reset(row)
                self.restarted = tuple(row for row, each in enumerate(again) if not self._replay(row, each))
                self._started = True
            return self._run(out)
        except BaseException as error:
            self.close()
            self.numbers = numbers
            _refuse(error)
            raise

    def run_episode(self, number: int, out: Arrays) -> FragmentMeta:
        """Does as `collect_episode`, without making the fragment."""
        self.build()
        self.numbers[0] = number
        try:
            self._reset(0)
            return self._run(out)
        except BaseException as error:
            self.close()
            _refuse(error)
            raise

    def close(self) -> None:
        """Closes the environments. Later fragments build new ones and restart the running episodes."""
        self._started = False
        envs, self._envs, self._mask_methods = self._envs, [], []
        if envs:
            with self.closing():
                for env in envs:
                    contract.close(env)

    def _reset(self, row: int) -> None:
        """Starts the row's episode."""
        start = perf_counter()
        plan, env_index, number = self.plan, int(self.env_indices[row]), self.numbers[row]
        obs, info = contract.reset(self._envs[row], self.form, env_seed(plan.seed, env_index, number))
        self._obs[row] = obs.reshape(plan.obs_dim)
        self._read_mask(row, info)
        if plan.episode_info:
            self._reset_info[row] = contract.info_values(plan.env.id, plan.episode_info, info)
        self._returns[row], self._lengths[row] = 0.0, 0
        self._streams[row], self._steps[row] = act_stream(plan.seed, env_index, number), 0
        if self._states is not None:
            self._states[row] = 0
        self.seconds["environment"] += perf_counter() - start

    def _read_mask(self, row: int, info: Mapping[str, Any], out: NDArray[np.bool_] | None = None) -> None:
        """Reads what the row's environment allows now, if the plan asks for it."""
        if self.plan.action_masks:
            masks = self._masks if out is None else out
            masks[row] = contract.action_mask(
                self.plan.env.id, self._mask_methods[row], info, self.plan.num_masked
            )

    def _replay(self, row: int, episode: RunningEpisode) -> bool:
        """Replays the actions of the row's episode, which was just reset, from its first life on. Returns whether it
        reached the same observation; if not, the episode is restarted."""
        start = perf_counter()
        drawn = actions_of(self.plan, episode)
        env = self._envs[row]
        seen = self._obs[row]
        over, lives = False, episode.lives
        info: Mapping[str, Any] = {}
        for action in self.plan.actions.to_envs(drawn):
            if self._stop[0]:
                raise Stopped
            seen, reward, terminated, truncated, info = contract.step(env, self.form, action)
            self._returns[row] += float(np.float32(reward))
            self._lengths[row] += 1
            over = terminated or truncated
            if over and not lives:
                break
            if over:
                lives -= 1
                self.numbers[row] += 1
                self._reset(row)
                seen, over = self._obs[row], False
        self._obs[row] = seen.reshape(self.plan.obs_dim)
        self._steps[row] = self._lengths[row]
        self.numbers[row] += lives
        same = not over and not lives and reached(episode, self._obs[row])
        if same and self._lengths[row]:
            self._read_mask(row, info)
        if same and self._states is not None:
            self._states[row] = state_of(self.plan, episode)
        self.seconds["environment"] += perf_counter() - start
        if not same:
            self._reset(row)
        return same

    def _run(self, out: Arrays) -> FragmentMeta:
        """Takes T steps in all environments, or steps until the end of the episode.

        The clock is read once where one part of time ends and the next starts.
        """
        plan, envs, act, stop = self.plan, self._envs, self.actor.act, self._stop
        whole, dim, longest = plan.unit == "episodes", plan.obs_dim, plan.num_steps
        to_envs, rows = plan.actions.to_envs, range(len(envs))
        take_step, form = contract.step, self.form
        obs, actions, log_probs, rewards = out["obs"], out["actions"], out["log_probs"], out["rewards"]
        terminations, truncations, final_obs = out["terminations"], out["truncations"], out.get("final_obs")
        masks, values, keys = out.get("masks"), out.get("values"), plan.episode_info
        final_masks = out.get("final_masks")
        current, streams, steps, states = self._obs, self._streams, self._steps, self._states
        returns, lengths = self._returns, self._lengths
        numbers_before, lengths_before = self.numbers.copy(), lengths.copy()
        ended = FragmentMeta(longest, [], [], [], [])
        environment = inference = buffer = 0.0
        clock = perf_counter()
        # Last observations may be large, and are few: only those of the fragment before are zeroed.
        old_ends = terminations | truncations
        for last in (final_obs, final_masks):
            if last is not None:
                last[old_ends] = 0
        terminations[...] = truncations[...] = False
        obs[0] = current
        if states is not None and not whole:
            out["states"][...] = states
        for t in range(longest):
            if stop[0]:
                raise Stopped
            if masks is not None:
                masks[t] = self._masks
            act(obs[t], streams, steps, actions[t], log_probs[t], None if masks is None else masks[t], states)
            if values is not None:
                values[t] = values_of(self.actor)
            # Environments get Python numbers, and arrays that are not written to later.
            chosen = to_envs(actions[t])
            steps += 1
            now = perf_counter()
            inference += now - clock
            clock = now
            for row in rows:
                seen, reward, terminated, truncated, info = take_step(envs[row], form, chosen[row])
                now = perf_counter()
                environment += now - clock
                rewards[t, row] = reward
                returns[row] += float(rewards[t, row])
                lengths[row] += 1
                current[row] = seen.reshape(dim)
                if whole and t == longest - 1 and not terminated:
                    truncated = True
                if terminated or truncated:
                    terminations[t, row], truncations[t, row] = terminated, truncated
                    ended.returns.append(returns[row])
                    ended.lengths.append(lengths[row])
                    ended.episodes.append((int(self.env_indices[row]), self.numbers[row]))
                    ended.info.append(
                        contract.info_values(plan.env.id, keys, info, self._reset_info[row]) if keys else ()
                    )
                    if final_masks is not None and not terminated:
                        self._read_mask(row, info, final_masks[t])
                    if not whole:
                        assert final_obs is not None
                        final_obs[t, row] = current[row]
                        self.numbers[row] += 1
                        clock = perf_counter()
                        buffer += clock - now
                        self._reset(row)
                        now = perf_counter()
                elif masks is not None:
                    self._read_mask(row, info)
                clock = perf_counter()
                buffer += clock - now
            obs[t + 1] = current
            if whole and ended.lengths:
                ended = ended._replace(num_steps=t + 1)
                break
        if states is not None and not whole:
            out["next_states"][...] = states
        check_finite(plan, out, ended.num_steps, self.env_indices.tolist(), numbers_before, lengths_before)
        check_masks(plan, out, ended.num_steps)
        now = perf_counter()
        self.seconds["buffer"] += buffer + now - clock
        self.seconds["environment"] += environment
        self.seconds["inference"] += inference
        return ended


def _refuse(error: BaseException) -> None:
    """Ends the run for an environment that violates Gymnasium's interface: a retry would fail again.

    Raises:
        CollectError
    """
    if isinstance(error, contract.ContractError):
        raise CollectError(str(error)) from None


def resumed(state: Mapping[str, Any], env_indices: Iterable[int]) -> list[int]:
    """Returns the episode numbers of environments in a collector's state.

    Raises:
        ValueError: the state is of another plan.
    """
    numbers = state["numbers"]
    env_indices = list(env_indices)
    if set(numbers) != set(env_indices):
        raise ValueError(
            f"the state is of {len(numbers)} environments, the plan of {len(env_indices)}: unit and num_envs should"
            " be as they were"
        )
    return [numbers[env_index] for env_index in env_indices]
