"""Plays Python environments with an actor: what every collector of such environments does, in whichever process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError, Plan, expect_spaces
from fastrl.collectors.running import Begun, actions_of, reached
from fastrl.envs import contract
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.rollout.fragment import Fragment, all_finite, allocate, first_not_finite
from fastrl.utils.seeding import EPISODES, act_stream, env_seed

PARTS = ("environment", "inference", "buffer", "weights", "waiting")
"""What players spend their time on, as in `fastrl.collectors.protocol.Report`."""

UNPUBLISHED = "no weights yet: publish some before anything is collected with them"

Arrays = dict[str, NDArray[Any]]


class Stopped(Exception):  # noqa: N818 - no error: it is how a player ends
    """Nobody wants what is being played any more."""


class Played(NamedTuple):
    """What a fragment's arrays do not tell.

    Attributes:
        num_steps: T.
        returns, lengths: of the episodes that ended.
        episodes: their lanes and numbers.
        info: of each, its values under the keys of the plan's ``episode_info``.
    """

    num_steps: int
    returns: list[float]
    lengths: list[int]
    episodes: list[tuple[int, int]]
    info: list[tuple[float, ...]]


def arrays_for(plan: Plan, rows: int) -> Arrays:
    """Arrays for a `Player` to write into: those of a fragment, but for ``final_obs`` if it is a whole episode."""
    arrays = allocate(plan.num_steps, rows, plan.obs_dim, plan.action_shape, plan.num_masked)
    if plan.unit == "episodes":
        del arrays["final_obs"]
    return arrays


def fragment_of(
    plan: Plan, arrays: Arrays, played: Played, version: int, lanes: NDArray[np.int64]
) -> Fragment:
    """What was played into the arrays, which it shows, not copies."""
    steps = played.num_steps
    cut = {name: array[:steps] for name, array in arrays.items()}
    cut["obs"] = arrays["obs"][: steps + 1]
    if plan.unit == "episodes":
        cut["final_obs"] = np.zeros_like(cut["obs"][:steps])
        cut["final_obs"][-1] = cut["obs"][-1]
    return Fragment(
        **cut,
        version=version,
        lanes=lanes,
        returns=np.asarray(played.returns, np.float64),
        lengths=np.asarray(played.lengths, np.int64),
        episodes=np.asarray(played.episodes, np.int64).reshape(-1, 2),
        episode_info={
            key: np.array([values[i] for values in played.info], np.float64)
            for i, key in enumerate(plan.episode_info)
        },
    )


def check_finite(
    plan: Plan,
    arrays: Arrays,
    num_steps: int,
    lanes: Sequence[int],
    numbers: Sequence[int],
    steps: Sequence[int],
) -> None:
    """Refuses NaN and infinity in what environments gave.

    Args:
        arrays: of `arrays_for`, filled up to ``num_steps``.
        lanes: of the rows, with the ``numbers`` of the episodes that ran in them at the beginning of the arrays, and
            how many ``steps`` of them had been taken.

    Raises:
        CollectError: says what gave it, and by which seed the episode comes again.
    """
    if all_finite(arrays, num_steps):
        return
    t, row, what = first_not_finite(arrays, num_steps)
    ended = arrays["terminations"][: max(t, 0), row] | arrays["truncations"][: max(t, 0), row]
    ends = np.flatnonzero(ended)
    number, step = numbers[row] + len(ends), t - int(ends[-1]) if len(ends) else steps[row] + t + 1
    seed = env_seed(plan.seed, lanes[row], number)
    raise CollectError(
        f"{plan.env.id}: {what} at step {step} of the episode that reset(seed={seed}) began; rewards and observations"
        " should be finite float32 numbers"
    )


def check_masks(plan: Plan, arrays: Arrays, num_steps: int) -> None:
    """Refuses states in which no action was allowed: the actor took one that its mask forbids.

    Raises:
        CollectError
    """
    if not plan.action_masks:
        return
    masks, actions = arrays["masks"][:num_steps], arrays["actions"][:num_steps]
    taken = np.take_along_axis(masks, actions[..., None], axis=-1)[..., 0]
    if not taken.all():
        t, row = np.argwhere(~taken)[0]
        raise CollectError(
            f"{plan.env.id}: the action mask of a state allows {masks[t, row].sum()} of {masks.shape[-1]} actions, and"
            f" action {actions[t, row]} was taken, which is not one of them; every state needs an allowed action"
        )


class Player:
    """Plays the rows of some lanes, T steps at a time, or whole episodes, as the plan's unit says.

    Episodes are those that ``fastrl.utils.seeding`` tells, whoever plays them. Environments and actor are built at
    the first
    use, and the environments again after one has raised: what was played since the last fragment is then lost, and
    the episodes that ran begin anew.

    A return is the sum of the float32 rewards, in float64. The fragment has actions as the actor drew them, see
    `fastrl.networks.action_space.Actions`.

    Args:
        lanes: the rows to play; with unit "episodes" none, one environment plays whatever number it is given.
        stop: a byte in memory; `Stopped` is raised before the next step once it is not 0.

    Attributes:
        lanes: int64 [R].
        numbers: of the episodes that run in them; may be set before the first fragment.
        begun: what has been played of these; may be set before the first fragment, which then goes on from there.
        anew: rows whose episodes began anew with the last fragment, as playing them again led elsewhere.
        seconds: spent, by `PARTS`.
        form: of what the environments give.
        closing: a context in which environments are closed; does nothing unless set.
    """

    def __init__(self, plan: Plan, lanes: Sequence[int] = (), stop: memoryview | None = None) -> None:
        self.plan = plan
        self.lanes = np.asarray(lanes if plan.unit == "steps" else (EPISODES,), np.int64)
        self.numbers = [0] * len(self.lanes)
        self.begun: Sequence[Begun] = ()
        self.anew: tuple[int, ...] = ()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.closing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._stop = memoryview(b"\0") if stop is None else stop
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._actor: Actor | None = None
        self.form = contract.form_of(plan.env.id, plan.obs_space.shape or (), plan.obs_space.dtype)
        self._running = False
        rows = len(self.lanes)
        self._obs = np.zeros((rows, plan.obs_dim), np.float32)
        # Of the environments: their methods that give masks, what the masks are now, and their resets' infos.
        self._mask_methods: list[Callable[[], Any] | None] = []
        self._masks = np.zeros((rows, plan.num_masked), np.bool_)
        self._reset_info: list[tuple[float, ...]] = [()] * rows
        self._returns, self._lengths = [0.0] * rows, [0] * rows
        self._streams, self._steps = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)

    @property
    def actor(self) -> Actor:
        if self._actor is None:
            self._actor = self.plan.make_actor()
        return self._actor

    def build(self) -> None:
        """Builds environments and actor, if there are none; a fragment does so by itself.

        Raises:
            CollectError: the environment's spaces are not those that the learner expects.
            Whatever environment and actor raise.
        """
        start = perf_counter()
        assert self.actor is not None
        try:
            while len(self._envs) < len(self.lanes):
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
        """Gives the actor weights, a buffer of as many bytes as it says."""
        start = perf_counter()
        self.actor.load(weights)
        self.seconds["weights"] += perf_counter() - start

    def steps(self, version: int = 0, out: Arrays | None = None) -> Fragment:
        """The next T steps of every row.

        Args:
            version: of the actor's weights.
            out: the fragment's arrays, of `arrays_for`; None allocates them.
        """
        arrays = arrays_for(self.plan, len(self.lanes)) if out is None else out
        return fragment_of(self.plan, arrays, self.play_steps(arrays), version, self.lanes.copy())

    def episode(self, number: int, version: int = 0, out: Arrays | None = None) -> Fragment:
        """A whole episode, otherwise as `steps`."""
        arrays = arrays_for(self.plan, 1) if out is None else out
        return fragment_of(self.plan, arrays, self.play_episode(number, arrays), version, self.lanes.copy())

    def play_steps(self, out: Arrays) -> Played:
        """As `steps`, into arrays alone."""
        self.build()
        begun = self.numbers.copy()
        self.anew = ()
        try:
            if not self._running:
                again, self.begun = self.begun, ()
                for row in range(len(self.lanes)):
                    self._reset(row)
                self.anew = tuple(row for row, each in enumerate(again) if not self._play_again(row, each))
                self._running = True
            return self._play(out)
        except BaseException as error:
            self.close()
            self.numbers = begun
            _refuse(error)
            raise

    def play_episode(self, number: int, out: Arrays) -> Played:
        """As `episode`, into arrays alone."""
        self.build()
        self.numbers[0] = number
        try:
            self._reset(0)
            return self._play(out)
        except BaseException as error:
            self.close()
            _refuse(error)
            raise

    def close(self) -> None:
        """Closes the environments. What is played next begins with others, where the running episodes began."""
        self._running = False
        envs, self._envs, self._mask_methods = self._envs, [], []
        if envs:
            with self.closing():
                for env in envs:
                    contract.close(env)

    def _reset(self, row: int) -> None:
        """Begins the row's episode."""
        start = perf_counter()
        plan, lane, number = self.plan, int(self.lanes[row]), self.numbers[row]
        obs, info = contract.reset(self._envs[row], self.form, env_seed(plan.seed, lane, number))
        self._obs[row] = obs.reshape(plan.obs_dim)
        self._read_mask(row, info)
        if plan.episode_info:
            self._reset_info[row] = contract.info_values(plan.env.id, plan.episode_info, info)
        self._returns[row], self._lengths[row] = 0.0, 0
        self._streams[row], self._steps[row] = act_stream(plan.seed, lane, number), 0
        self.seconds["environment"] += perf_counter() - start

    def _read_mask(self, row: int, info: Mapping[str, Any]) -> None:
        """Reads what the row's environment allows now, if the plan asks for it."""
        if self.plan.action_masks:
            self._masks[row] = contract.action_mask(
                self.plan.env.id, self._mask_methods[row], info, self.plan.num_masked
            )

    def _play_again(self, row: int, begun: Begun) -> bool:
        """Plays the actions of the row's episode, which has just begun; whether they lead where they led before. If
        not, it begins anew."""
        start = perf_counter()
        drawn = actions_of(self.plan, begun)
        takes, env = Actions(self.plan.action_space), self._envs[row]
        seen = self._obs[row]
        over = False
        info: Mapping[str, Any] = {}
        for action in takes.to_env(drawn) if takes.is_box else drawn.tolist():
            if self._stop[0]:
                raise Stopped
            seen, reward, terminated, truncated, info = contract.step(env, self.form, action)
            self._returns[row] += float(np.float32(reward))
            over = terminated or truncated
            if over:
                break
        self._obs[row] = seen.reshape(self.plan.obs_dim)
        self._lengths[row] = self._steps[row] = len(drawn)
        same = not over and reached(begun, self._obs[row])
        if same and len(drawn):
            self._read_mask(row, info)
        self.seconds["environment"] += perf_counter() - start
        if not same:
            self._reset(row)
        return same

    def _play(self, out: Arrays) -> Played:
        """T steps of all rows, or until the end of the episode.

        Time is read once where one part ends and the next begins.
        """
        plan, envs, act, stop = self.plan, self._envs, self.actor.act, self._stop
        whole, dim, longest = plan.unit == "episodes", plan.obs_dim, plan.num_steps
        takes, rows = Actions(plan.action_space), range(len(envs))
        take_step, form = contract.step, self.form
        obs, actions, log_probs, rewards = out["obs"], out["actions"], out["log_probs"], out["rewards"]
        terminations, truncations, final_obs = out["terminations"], out["truncations"], out.get("final_obs")
        masks, keys = out.get("masks"), plan.episode_info
        current, streams, steps = self._obs, self._streams, self._steps
        returns, lengths = self._returns, self._lengths
        numbers_before, lengths_before = self.numbers.copy(), lengths.copy()
        ended = Played(longest, [], [], [], [])
        environment = inference = buffer = 0.0
        clock = perf_counter()
        terminations[...] = truncations[...] = False
        if final_obs is not None:
            final_obs[...] = 0
        obs[0] = current
        for t in range(longest):
            if stop[0]:
                raise Stopped
            if masks is not None:
                masks[t] = self._masks
            act(obs[t], streams, steps, actions[t], log_probs[t], None if masks is None else masks[t])
            # Environments get numbers of Python, and arrays that nobody writes to later.
            chosen = takes.to_env(actions[t]) if takes.is_box else actions[t].tolist()
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
                    ended.episodes.append((int(self.lanes[row]), self.numbers[row]))
                    ended.info.append(
                        contract.info_values(plan.env.id, keys, info, self._reset_info[row]) if keys else ()
                    )
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
        check_finite(plan, out, ended.num_steps, self.lanes.tolist(), numbers_before, lengths_before)
        check_masks(plan, out, ended.num_steps)
        now = perf_counter()
        self.seconds["buffer"] += buffer + now - clock
        self.seconds["environment"] += environment
        self.seconds["inference"] += inference
        return ended


def _refuse(error: BaseException) -> None:
    """Ends the run for an environment that does not keep to Gymnasium's interface: to try again is of no use.

    Raises:
        CollectError
    """
    if isinstance(error, contract.ContractError):
        raise CollectError(str(error)) from None


def resumed(state: Mapping[str, Any], lanes: Iterable[int]) -> list[int]:
    """The numbers that a collector's state has for lanes.

    Raises:
        ValueError: it has none, as it is of another plan.
    """
    numbers = state["numbers"]
    lanes = list(lanes)
    if set(numbers) != set(lanes):
        raise ValueError(
            f"the state has {len(numbers)} lanes, the plan {len(lanes)}: unit and num_envs should be as they were"
        )
    return [numbers[lane] for lane in lanes]
