"""A conformance kit for Gymnasium vector environments: checks of a ``gymnasium.vector.VectorEnv``.

    from fastrl.testing import check_vector_env

    def make(num_envs, autoreset_mode, num_threads=0):
        return MyVectorEnv(num_envs, autoreset_mode=autoreset_mode, num_threads=num_threads, max_steps=20)

    check_vector_env(make, time_limit=20)

The first violated clause of the contract raises an AssertionError that names the autoreset mode and the clause, the
expected result and the actual one. The clauses (``CLAUSES``):

- spaces: ``num_envs``; the batched spaces are ``batch_space(single, num_envs)``; the same objects each time.
- autoreset mode: the enum, in ``metadata`` and as an attribute, and not shared with other instances.
- before reset: ``step`` before the first ``reset`` raises.
- reset: it returns (observations in the space, info).
- step: five values of the right shapes and dtypes; observations in the space; rewards finite.
- info: every key k has a bool mask ``_k``; arrays have an entry for each environment; dicts are checked recursively.
- arrays: returned arrays are not changed by later calls.
- actions: a batch of the wrong length raises.
- NEXT_STEP: the call after an end ignores the action; reset observation, reward 0, no flags.
- SAME_STEP: ``final_obs`` (dense, or objects) and ``final_info``, with masks of the environments that ended.
- DISABLED: ``reset_mask`` resets those environments and no others; options are not changed; an invalid or empty mask
  raises; so does a step after the end of an episode.
- ends: episodes end; not every end is both a termination and a truncation; ``time_limit`` and ``terminates``.
- seeding: an int gives environment i the seed + i, a list gives each its own; the same seed gives the same trajectory,
  another seed another one; ``reset`` without a seed continues the streams.
- global random state: the generators of ``random`` and ``numpy.random`` are not used.
- batch size: environment i of n behaves like a batch of one with seed + i.
- threads: any ``num_threads`` gives the same results (if ``make`` takes it).
- state: after ``load_state(save_state())`` the trajectory is the same to the bit (if the environment has them).
- close: may be called twice; ``step`` and ``reset`` after it raise.
- modes agree: every autoreset mode gives the same episodes, with the same true last observations.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from fastrl.testing.trajectory import (
    Driver,
    Trajectory,
    batch,
    differ,
    equal,
    expect_same,
    first_difference,
    member,
    sample,
    shapes,
)


class MakeVectorEnv(Protocol):
    """A function that builds the environment under test; it may also take ``num_threads``."""

    def __call__(self, *, num_envs: int, autoreset_mode: AutoresetMode) -> VectorEnv: ...


def check_vector_env(
    make: MakeVectorEnv | Callable[..., VectorEnv],
    *,
    num_envs: int = 3,
    steps: int = 100,
    seed: int = 12345,
    modes: Sequence[AutoresetMode] = tuple(AutoresetMode),
    time_limit: int | None = None,
    terminates: bool | None = None,
    skip: Collection[str] = (),
) -> None:
    """Checks a vector environment against Gymnasium's contract and the stricter one of this package.

    Actions are random samples of the action space. In every environment some episode must end within ``steps``.

    Args:
        make: called as ``make(num_envs=..., autoreset_mode=...)``, with ``num_threads=...`` if it takes that.
        num_envs: environments in the batch, at least 2.
        steps: length of the compared trajectories in calls of ``step``, at least 4.
        seed: of the environments and of the actions.
        modes: the autoreset modes that the environment supports.
        time_limit: the step at which episodes are truncated if they have not terminated. None: not checked.
        terminates: True if some episodes terminate, False if none may. None: not checked.
        skip: names of ``CLAUSES`` to leave out.

    Raises:
        AssertionError: a clause is violated.
        ValueError: an argument of this function is wrong.
    """
    if num_envs < 2:
        raise ValueError(f"num_envs: expected at least 2, so that environments can differ, got {num_envs}")
    if steps < 4:
        raise ValueError(f"steps: expected at least 4, got {steps}")
    if not modes:
        raise ValueError("modes: expected at least one autoreset mode, got none")
    unknown = sorted(set(skip) - set(CLAUSES))
    if unknown:
        raise ValueError(f"skip: expected some of {', '.join(CLAUSES)}, got {unknown[0]!r}")
    kit = _Kit(make, num_envs, steps, seed, tuple(modes), time_limit, terminates, modes[0])
    for mode in modes:
        kit.mode = mode
        for clause, check in _CHECKS_OF_EACH_MODE.items():
            if clause in skip or (clause in AutoresetMode.__members__ and clause != mode.name):
                continue
            with _prefix_errors(clause if clause == mode.name else f"{mode.name}, {clause}"):
                check(kit)
    if _MODES_AGREE not in skip:
        with _prefix_errors(_MODES_AGREE):
            _check_modes_agree(kit)


@dataclass
class _Kit:
    """The common arguments of the checks: a function that makes environments, and their known properties."""

    make: Callable[..., VectorEnv]
    num_envs: int
    steps: int
    seed: int
    modes: tuple[AutoresetMode, ...]
    time_limit: int | None
    terminates: bool | None
    mode: AutoresetMode

    @contextmanager
    def env(self, num_envs: int | None = None, **kwargs: Any) -> Iterator[Any]:
        """A new environment in the mode under test, closed at the end."""
        env = self.make(num_envs=num_envs or self.num_envs, autoreset_mode=self.mode, **kwargs)
        try:
            yield env
        finally:
            env.close()

    @contextmanager
    def running(self) -> Iterator[Driver]:
        """A driver of a new environment, reset with the seed."""
        with self.env() as env:
            driver = self.driver(env)
            driver.reset(self.seed)
            yield driver

    def driver(self, env: VectorEnv, lists: Sequence[int] | None = None) -> Driver:
        return Driver(env, self.mode, self.seed, 2 * self.steps, lists)

    def trajectory(self, env: VectorEnv, seed: Any, lists: Sequence[int] | None = None) -> Trajectory:
        driver = self.driver(env, lists)
        driver.reset(seed)
        return driver.run(self.steps)


@contextmanager
def _prefix_errors(clause: str) -> Iterator[None]:
    """Puts the clause before the message of every error."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{clause}: {error}") from None
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        raise AssertionError(f"{clause}: expected the environment to raise nothing, got {got}") from error


def _expect(holds: bool | np.bool_, what: str, got: Any) -> None:
    if not holds:
        raise AssertionError(f"expected {what}, got {got}")


def _expect_error(what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        call(*args, **kwargs)
    except Exception:
        return
    raise AssertionError(f"expected {what} to raise an exception, got a result")


def _expect_vector(name: str, array: Any, n: int, kind: type[np.generic]) -> None:
    what = f"{name} to be an array of {kind.__name__} with shape ({n},)"
    _expect(isinstance(array, np.ndarray), what, type(array).__name__)
    _expect(np.issubdtype(array.dtype, kind) and array.shape == (n,), what, f"{array.dtype} {array.shape}")


def _expect_observations(env: VectorEnv, obs: Any) -> None:
    like = create_empty_array(env.single_observation_space, env.num_envs)
    _expect(shapes(obs) == shapes(like), f"observations {shapes(like)}", shapes(obs))
    space = env.single_observation_space
    for i in range(env.num_envs):
        own = member(obs, i)
        _expect(space.contains(own), f"the observation of environment {i} to lie in {space}", own)


def _check_spaces(kit: _Kit) -> None:
    n = kit.num_envs
    with kit.env() as env:
        _expect(isinstance(env, VectorEnv), "a gymnasium.vector.VectorEnv", type(env).__name__)
        _expect(env.num_envs == n, f"num_envs {n}", env.num_envs)
        for name in ("observation_space", "action_space"):
            batched, single = getattr(env, name), getattr(env, f"single_{name}")
            _expect(isinstance(single, Space), f"single_{name} to be a Space", repr(single))
            fits = batched == batch_space(single, n)
            _expect(fits, f"{name} to be batch_space(single_{name}, {n})", repr(batched))
            for attribute in (name, f"single_{name}"):
                same = getattr(env, attribute) is getattr(env, attribute)
                _expect(same, f"{attribute} to be the same object each time", "a new one")


def _check_autoreset_attribute(kit: _Kit) -> None:
    with kit.env() as env:
        # The second check comes after environments of other modes were made, in case metadata belongs to the class.
        for when in ("", " after others were made"):
            for name, got in (
                ("metadata['autoreset_mode']", env.metadata.get("autoreset_mode")),
                ("autoreset_mode", getattr(env, "autoreset_mode", None)),
            ):
                _expect(got is kit.mode, f"{name} to be {kit.mode}{when}", repr(got))
            for other in kit.modes:
                kit.make(num_envs=1, autoreset_mode=other).close()


def _check_before_reset(kit: _Kit) -> None:
    with kit.env() as env:
        _expect_error("step() before reset()", env.step, env.action_space.sample())


def _check_reset(kit: _Kit) -> None:
    with kit.env() as env:
        result = env.reset(seed=kit.seed)
        is_pair = isinstance(result, tuple) and len(result) == 2
        _expect(is_pair, "reset() to return (observations, info)", type(result).__name__)
        obs, info = result
        _expect_observations(env, obs)
        _expect(isinstance(info, dict), "info to be a dict", type(info).__name__)


def _check_step(kit: _Kit) -> None:
    with kit.env() as env:
        env.reset(seed=kit.seed)
        _expect_result(env, env.step(env.action_space.sample()))
    with kit.running() as driver:
        for _ in range(kit.steps):
            _expect_result(driver.env, driver.step())


def _expect_result(env: VectorEnv, result: Any) -> None:
    n = env.num_envs
    is_five = isinstance(result, tuple) and len(result) == 5
    _expect(is_five, "step() to return a tuple of five", type(result).__name__)
    obs, rewards, terminations, truncations, info = result
    _expect_observations(env, obs)
    _expect_vector("rewards", rewards, n, np.floating)
    _expect(np.isfinite(rewards).all(), "finite rewards", rewards)
    _expect_vector("terminations", terminations, n, np.bool_)
    _expect_vector("truncations", truncations, n, np.bool_)
    apart = not np.shares_memory(terminations, truncations)
    _expect(apart, "terminations and truncations to be two arrays", "one")
    _expect(isinstance(info, dict), "info to be a dict", type(info).__name__)


def _check_info(kit: _Kit) -> None:
    with kit.env() as env:
        driver = kit.driver(env)
        _expect_masks(driver.reset(kit.seed)[1], kit.num_envs)
        for _ in range(kit.steps):
            _expect_masks(driver.step()[4], kit.num_envs)


def _expect_masks(info: dict[str, Any], n: int, where: str = "info") -> None:
    for key, value in info.items():
        name = f"{where}[{key!r}]"
        if key.startswith("_"):
            _expect(key[1:] in info, f"{where}[{key[1:]!r}] beside its mask {name}", "no such key")
            _expect_vector(name, value, n, np.bool_)
            continue
        _expect(f"_{key}" in info, f"a mask {where}['_{key}'] beside {name}", "no such key")
        if key == "final_obs":
            continue  # The clause SAME_STEP checks it.
        if isinstance(value, dict):
            _expect_masks(value, n, name)
            continue
        what = f"{name} to be a dict or an array of {n} entries"
        _expect(isinstance(value, np.ndarray), what, type(value).__name__)
        _expect(value.ndim > 0 and len(value) == n, what, f"the shape {value.shape}")


def _check_arrays(kit: _Kit) -> None:
    with kit.env() as env:
        driver = kit.driver(env)
        kept: Any = driver.reset(kit.seed)[0]
        for _ in range(kit.steps):
            copied = copy.deepcopy(kept)
            obs, rewards, terminations, truncations, info = driver.step()
            same = equal(kept, copied)
            _expect(same, "the arrays of a call to stay as they are", "a change by the next call")
            final = info.get("final_obs", ())
            if isinstance(final, np.ndarray) and final.dtype == object:
                final = tuple(part for part in final if part is not None)
            kept = (obs, rewards, terminations, truncations, final)


def _check_actions(kit: _Kit) -> None:
    n = kit.num_envs + 1
    with kit.env() as env:
        env.reset(seed=kit.seed)
        space = env.single_action_space
        _expect_error(f"step() with {n} actions", env.step, batch(space, sample(space, kit.seed, n)))


def _check_ends(kit: _Kit) -> None:
    with kit.env() as env:
        events = kit.trajectory(env, kit.seed)
    for i, own in enumerate(events):
        ended = any(event.terminated or event.truncated for event in own)
        what = f"an episode of environment {i} to end within {kit.steps} steps"
        _expect(ended, what, "none: make the episodes shorter, or `steps` more")
    ends = {(event.terminated, event.truncated) for own in events for event in own} - {(False, False)}
    apart = ends != {(True, True)}
    _expect(apart, "either a termination or a truncation", "both flags at every end, as if both were 'done'")
    if kit.terminates is not None:
        what = "some episode to terminate" if kit.terminates else "no episode to terminate"
        terminated = any(terminated for terminated, _ in ends)
        _expect(terminated == kit.terminates, what, "none that did" if kit.terminates else "one that did")
    if kit.time_limit is not None:
        _expect_time_limit(events, kit.time_limit)


def _expect_time_limit(events: Trajectory, limit: int) -> None:
    for i, own in enumerate(events):
        length = 0
        for event in own:
            length = length + 1 if event.kind == "step" else 0
            got = f"terminated={event.terminated}, truncated={event.truncated}"
            where = f"at step {length} of an episode of environment {i}"
            if length < limit:
                _expect(not event.truncated, f"no truncation {where}, since the time limit is {limit}", got)
            elif length == limit:
                _expect(event.terminated or event.truncated, f"an end {where}, the time limit", got)
            else:
                raise AssertionError(f"expected no episode beyond step {limit}, got one in environment {i}")


def _check_next_step(kit: _Kit) -> None:
    with kit.running() as driver, kit.running() as other:
        other.other_actions_at_resets = True
        for _ in range(kit.steps):
            after_an_end = np.flatnonzero(driver.ended)
            _, rewards, terminations, truncations, _ = driver.step()
            other.step()
            for i in after_an_end:
                call = f"the call after an end, environment {i}"
                _expect(rewards[i] == 0, f"reward 0 from {call}", rewards[i])
                got = f"terminated={terminations[i]}, truncated={truncations[i]}"
                _expect(not (terminations[i] or truncations[i]), f"no flags from {call}", got)
        what = "the call after an end, with another action that it should ignore"
        expect_same(driver.events, other.events, what)


def _check_same_step(kit: _Kit) -> None:
    with kit.running() as driver:
        for _ in range(kit.steps):
            info = driver.step()[4]
            _expect_final(driver.env, info, driver.ended)


def _expect_final(env: VectorEnv, info: dict[str, Any], ended: npt.NDArray[np.bool_]) -> None:
    indices = np.flatnonzero(ended)
    for key in ("final_obs", "final_info"):
        if len(indices):
            has = key in info and f"_{key}" in info
            _expect(has, f"info[{key!r}] and info['_{key}'] where an episode ended", f"keys {sorted(info)}")
        mask = info.get(f"_{key}", np.zeros_like(ended))
        fits = np.array_equal(mask, ended)
        _expect(fits, f"info['_{key}'] to mark the environments that ended, {indices}", np.flatnonzero(mask))
    if not len(indices):
        return
    is_dict = isinstance(info["final_info"], dict)
    _expect(is_dict, "info['final_info'] to be a dict", type(info["final_info"]).__name__)
    space = env.single_observation_space
    for i in indices:
        last = member(info["final_obs"], i)
        _expect(space.contains(last), f"info['final_obs'][{i}] to lie in {space}", last)


def _check_disabled(kit: _Kit) -> None:
    n = kit.num_envs
    with kit.running() as driver, kit.running() as other:
        for _ in range(kit.steps):
            obs = driver.step()[0]
            other.step()
            after = _reset_first(driver)
            for i in range(1, n):
                difference = first_difference(member(obs, i), member(after, i))
                what = f"reset_mask of environment 0 to leave the observation of environment {i} as it was"
                _expect(not difference, what, f"another{difference}")
        expect_same(
            other.events[1:], driver.events[1:], "reset_mask of environment 0 should not affect the others"
        )
    with kit.running() as driver, kit.running() as whole:
        driver.step()
        whole.step()
        _reset_first(driver)
        whole.reset()
        expect_same(
            whole.run(kit.steps)[:1], driver.run(kit.steps)[:1], "environment 0, reset by mask or with all"
        )
    with kit.running() as driver:
        env = driver.env
        for what, bad in (
            ("selects no environment", np.zeros(n, np.bool_)),
            ("is too long", np.ones(n + 1, np.bool_)),
            ("holds integers", np.ones(n, np.int64)),
        ):
            _expect_error(f"a reset_mask that {what}", env.reset, options={"reset_mask": bad})
        driver.run_to_an_end(kit.steps)
        actions = env.action_space.sample()
        _expect_error("step() of an episode that has ended and was not reset", env.step, actions)


def _reset_first(driver: Driver) -> Any:
    mask = np.arange(driver.env.num_envs) == 0
    given = mask.copy()
    options = {"reset_mask": given}
    obs, _ = driver.env.reset(options=options)
    unchanged = list(options) == ["reset_mask"] and options["reset_mask"] is given
    _expect(unchanged and np.array_equal(given, mask), "the caller's options to stay unchanged", options)
    driver.record_reset(obs, [0])
    return obs


def _check_seeding(kit: _Kit) -> None:
    n, seed = kit.num_envs, kit.seed
    seeds = list(range(seed, seed + n))
    with kit.env() as env, kit.env() as twin:
        first = kit.trajectory(env, seed)
        expect_same(first, kit.trajectory(env, seed), "the same seed again, same environment")
        expect_same(first, kit.trajectory(twin, seed), "the same seed, another environment")
        expect_same(first, kit.trajectory(twin, seeds), "an int and the list of seed + i")
        backwards = range(n)[::-1]
        reverse = kit.trajectory(twin, seeds[::-1], backwards)
        expect_same(first, reverse[::-1], "a list of seeds and the same backwards")
        others = differ(first, kit.trajectory(twin, seed + 1000 * n))
        _expect(others, "other seeds to give other trajectories", "the same ones")
        _expect_error(f"reset() with {n + 1} seeds", env.reset, seed=[*seeds, 0])
        kit.trajectory(env, seed)
        kit.trajectory(twin, seed)
        continued = kit.trajectory(env, None)
        what = "reset() without a seed"
        _expect(differ(first, continued), f"{what} to continue the streams", "the same episodes")
        expect_same(continued, kit.trajectory(twin, None), f"{what} should continue the streams")


def _check_global_random_state(kit: _Kit) -> None:
    def state() -> bytes:
        return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002 (read, not drawn from)

    before = state()
    with kit.env() as env:
        # A seed that no other clause uses: with it, an environment that seeds them changes the global generators.
        kit.trajectory(env, kit.seed + 1)
        kit.trajectory(env, None)
    _expect(before == state(), "no use of the generators of random and numpy.random", "a changed state")


def _check_batch_size(kit: _Kit) -> None:
    with kit.env() as env:
        together = kit.trajectory(env, kit.seed)
    for i in range(kit.num_envs):
        with kit.env(num_envs=1) as env:
            alone = kit.trajectory(env, kit.seed + i, [i])
        expect_same(alone, together[i : i + 1], f"environment {i} alone, and in a batch of {kit.num_envs}")


def _check_threads(kit: _Kit) -> None:
    if not _takes_num_threads(kit):
        return
    num_envs = 256  # Large enough for a batch to be split.
    with kit.env(num_envs, num_threads=1) as env:
        actions = sample(env.action_space, kit.seed, kit.steps)
        expected = list(_batches(kit, env, actions))
    for threads in (2, 5):
        with kit.env(num_envs, num_threads=threads) as env:
            for t, (one, many) in enumerate(zip(expected, _batches(kit, env, actions), strict=True)):
                same = equal(one, many)
                _expect(same, f"step {t} with {threads} threads to be as with one", "another result")


def _takes_num_threads(kit: _Kit) -> bool:
    parameters = inspect.signature(kit.make).parameters
    if "num_threads" in parameters:
        return True
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return False
    try:
        kit.make(num_envs=1, autoreset_mode=kit.mode, num_threads=1).close()
    except TypeError as error:
        if "num_threads" in str(error):
            return False
        raise
    return True


def _batches(kit: _Kit, env: VectorEnv, actions: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    env.reset(seed=kit.seed)
    for action in actions:
        obs, rewards, terminations, truncations, _ = env.step(action)
        yield copy.deepcopy((obs, rewards, terminations, truncations))
        ended = terminations | truncations
        if kit.mode == AutoresetMode.DISABLED and ended.any():
            env.reset(options={"reset_mask": ended})


def _check_state(kit: _Kit) -> None:
    with kit.env() as env:
        if not (hasattr(env, "save_state") and hasattr(env, "load_state")):
            return
    # Once within an episode, and once right after an end, when a reset may be pending.
    for saved in ("saved within an episode", "saved after an end"):
        with kit.running() as driver, kit.running() as reference, kit.env() as fresh:
            for each in (driver, reference):
                each.step()
                if saved == "saved after an end":
                    each.run_to_an_end(kit.steps)
            _expect_restored(kit, driver, reference, fresh, saved)


def _expect_restored(kit: _Kit, driver: Driver, reference: Driver, fresh: Any, saved: str) -> None:
    env: Any = driver.env
    bookmark = driver.bookmark()
    state = env.save_state()
    _expect(isinstance(state, bytes), "save_state() to return bytes", type(state).__name__)
    expected = reference.future(bookmark, kit.steps)

    def expect_future(of: Driver, what: str) -> None:
        expect_same(expected, of.future(bookmark, kit.steps), f"{saved}{what}")

    expect_future(driver, ": saving should change nothing")
    env.load_state(state)
    expect_future(driver, ", loaded by the same environment")
    fresh.load_state(state)
    expect_future(kit.driver(fresh), ", loaded by a new environment")
    env.load_state(state)
    _expect_error("load_state() of a state that is a byte short", env.load_state, state[:-1])
    _expect_error("load_state() of an empty state", env.load_state, b"")
    expect_future(driver, ": a refused state should change nothing")


def _check_close(kit: _Kit) -> None:
    with kit.env() as env:
        env.reset(seed=kit.seed)
        actions = env.action_space.sample()
        env.close()
        env.close()
        _expect_error("step() after close()", env.step, actions)
        _expect_error("reset() after close()", env.reset)


def _check_modes_agree(kit: _Kit) -> None:
    trajectories: dict[str, Trajectory] = {}
    for mode in kit.modes:
        kit.mode = mode
        with kit.env() as env:
            trajectories[mode.name] = kit.trajectory(env, kit.seed)
    (first, expected), *others = trajectories.items()
    for name, events in others:
        expect_same(expected, events, f"{first}, and {name}")


_CHECKS_OF_EACH_MODE: dict[str, Callable[[_Kit], None]] = {
    "spaces": _check_spaces,
    "autoreset mode": _check_autoreset_attribute,
    "before reset": _check_before_reset,
    "reset": _check_reset,
    "step": _check_step,
    "info": _check_info,
    "arrays": _check_arrays,
    "actions": _check_actions,
    "NEXT_STEP": _check_next_step,
    "SAME_STEP": _check_same_step,
    "DISABLED": _check_disabled,
    "ends": _check_ends,
    "seeding": _check_seeding,
    "global random state": _check_global_random_state,
    "batch size": _check_batch_size,
    "threads": _check_threads,
    "state": _check_state,
    "close": _check_close,
}
_MODES_AGREE = "modes agree"
CLAUSES = (*_CHECKS_OF_EACH_MODE, _MODES_AGREE)
