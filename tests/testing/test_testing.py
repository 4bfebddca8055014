"""The conformance kit: a correct environment passes, and each broken one fails with its own message."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from walk_env import EDGE, TIME_LIMIT, WalkVectorEnv

from fastrl.testing import CLAUSES, check_vector_env

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def check(env: Any, **kwargs: Any) -> None:
    check_vector_env(env, **{"steps": 60, "time_limit": TIME_LIMIT, "terminates": True} | kwargs)


@pytest.mark.slow
def test_a_correct_environment_passes() -> None:
    check(WalkVectorEnv)


@pytest.mark.slow
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_single_mode_can_be_checked(mode: AutoresetMode) -> None:
    check(WalkVectorEnv, modes=[mode], num_envs=2)


@pytest.mark.slow
def test_object_arrays_of_final_obs_are_accepted() -> None:
    class Objects(WalkVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, info = super().step(actions)
            if "final_obs" in info:
                objects = np.full(self.num_envs, None, object)
                for i in np.flatnonzero(info["_final_obs"]):
                    objects[i] = info["final_obs"][i]
                info["final_obs"] = objects
            return *rest, info

    check(Objects)


class Countdown(gymnasium.Env):
    """Dict observations; episodes terminate after a random number of steps."""

    observation_space = gymnasium.spaces.Dict(
        {"left": gymnasium.spaces.Discrete(20), "noise": Box(0, 1, (2, 2))}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 15))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self.observe(), float(action), self.left == 0, False, {"left": self.left}

    def observe(self) -> Any:
        return {"left": np.int64(self.left), "noise": self.np_random.random((2, 2), np.float32)}


@pytest.mark.slow
def test_gymnasiums_own_vector_environment_passes_the_clauses_that_it_promises() -> None:
    def make(num_envs: int, autoreset_mode: AutoresetMode) -> SyncVectorEnv:
        return SyncVectorEnv([Countdown] * num_envs, autoreset_mode=autoreset_mode)

    # It allows a step before the reset and after close(), removes reset_mask from the caller's options, and in older
    # versions of Gymnasium its instances share their metadata.
    check_vector_env(make, terminates=True, skip=["autoreset mode", "before reset", "DISABLED", "close"])


# Broken environments, and the expected beginnings of their failures.
BROKEN: list[tuple[str, type[WalkVectorEnv]]] = []


def broken(failure: str) -> Any:
    def register(cls: type[WalkVectorEnv]) -> type[WalkVectorEnv]:
        BROKEN.append((failure, cls))
        return cls

    return register


@broken("NEXT_STEP, spaces: expected action_space to be batch_space")
class UnbatchedActions(WalkVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_space = MultiDiscrete([2] * self.num_envs)


@broken("NEXT_STEP, spaces: expected single_observation_space to be the same object each time")
class NewSpaceEachTime(WalkVectorEnv):
    single_observation_space = property(  # type: ignore[assignment]
        lambda self: Box(-1, 1, (2,), np.float32), lambda self, space: None
    )


@broken("NEXT_STEP, spaces: expected num_envs 3, got 4")
class WrongCount(WalkVectorEnv):
    def __init__(self, num_envs: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_envs + 1, *args, **kwargs)


@broken(
    "NEXT_STEP, autoreset mode: expected metadata['autoreset_mode'] to be AutoresetMode.NEXT_STEP, got 'N"
)
class ModeAsString(WalkVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.metadata["autoreset_mode"] = self.autoreset_mode.value


@broken("NEXT_STEP, autoreset mode: expected metadata['autoreset_mode'] to be AutoresetMode.NEXT_STEP after")
class ModeInTheClass(WalkVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        type(self).metadata["autoreset_mode"] = self.autoreset_mode
        self.metadata = type(self).metadata


@broken("NEXT_STEP, before reset: expected step() before reset() to raise an exception, got a result")
class StepsUnreset(WalkVectorEnv):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.was_reset = True


@broken("NEXT_STEP, reset: expected reset() to return (observations, info), got ndarray")
class ResetReturnsObsOnly(WalkVectorEnv):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0]


@broken("NEXT_STEP, reset: expected observations float32 (3, 2), got float64 (3, 2)")
class DoubleObservations(WalkVectorEnv):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


@broken("NEXT_STEP, step: expected the observation of environment")
class UnscaledObservations(WalkVectorEnv):
    def observe(self) -> Any:
        return np.stack([self.position / EDGE, self.age], 1).astype(np.float32)


@broken("NEXT_STEP, step: expected rewards to be an array of floating with shape (3,), got int64 (3,)")
class IntegerRewards(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        return super().move(actions, mask).astype(np.int64)


@broken("NEXT_STEP, step: expected rewards to be an array of floating with shape (3,), got float64 (3, 1)")
class RewardColumn(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, rewards[:, None], *rest


@broken("NEXT_STEP, step: expected finite rewards")
class NanReward(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        rewards = super().move(actions, mask)
        return np.where(rewards == 2, np.nan, rewards)


@broken("NEXT_STEP, step: expected terminations and truncations to be two arrays, got one")
class OneDone(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, info = super().step(actions)
        done = terminations | truncations
        return obs, rewards, done, done, info


@broken("NEXT_STEP, info: expected a mask info['_age'] beside info['age'], got no such key")
class NoMask(WalkVectorEnv):
    def info(self) -> dict[str, Any]:
        return {"age": self.age.copy()}


@broken("NEXT_STEP, info: expected info['age'] to be a dict or an array of 3 entries, got list")
class InfoList(WalkVectorEnv):
    def info(self) -> dict[str, Any]:
        return super().info() | {"age": self.age.tolist()}


@broken("NEXT_STEP, arrays: expected the arrays of a call to stay as they are")
class ReusedBuffer(WalkVectorEnv):
    buffer: Any = None

    def observe(self) -> Any:
        obs = super().observe()
        self.buffer = obs if self.buffer is None else self.buffer
        self.buffer[:] = obs
        return self.buffer


@broken("NEXT_STEP, actions: expected step() with 4 actions to raise an exception")
class TakesAnyActions(WalkVectorEnv):
    def check_actions(self, actions: Any) -> None:
        pass


@broken("NEXT_STEP, ends: expected either a termination or a truncation, got both flags at every end")
class DoneInBoth(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, info = super().step(actions)
        done = terminations | truncations
        return obs, rewards, done, done.copy(), info


@broken("NEXT_STEP, ends: expected no truncation at step")
class SwappedFlags(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, info = super().step(actions)
        return obs, rewards, truncations, terminations, info


@broken("NEXT_STEP, ends: expected an end at step 9 of an episode")
class LateTruncation(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        rewards = super().move(actions, mask)
        self.age -= (self.age == TIME_LIMIT) & (np.abs(self.position) == 1)
        return rewards


@broken("NEXT_STEP, ends: expected some episode to terminate, got none that did")
class NeverTerminates(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        rewards = super().move(actions, mask)
        self.position = self.position.clip(-1, 1)
        return rewards


@broken("NEXT_STEP, ends: expected an episode of environment 0 to end within 60 steps, got none")
class NeverEnds(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        rewards = super().move(actions, mask)
        self.position = self.position.clip(-1, 1)
        self.age = self.age.clip(0, 1)
        return rewards


@broken("NEXT_STEP: expected reward 0 from the call after an end")
class RewardAtReset(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        return super().move(actions, mask) + ~mask


@broken("NEXT_STEP: expected no flags from the call after an end")
class FlagsAtReset(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        pending = self.ended.copy()
        obs, rewards, terminations, truncations, info = super().step(actions)
        return obs, rewards, terminations, truncations | pending, info


@broken("NEXT_STEP: the call after an end, with another action that it should ignore")
class ActsAtReset(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        pending = self.ended.copy()
        result = super().step(actions)
        if self.autoreset_mode == NEXT_STEP:
            self.position = np.where(pending, actions - 1, self.position)
            return self.observe(), *result[1:]
        return result


@broken("SAME_STEP: expected info['final_obs'] and info['_final_obs'] where an episode ended")
class NoFinalObs(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        *rest, info = super().step(actions)
        return *rest, {key: value for key, value in info.items() if not key.endswith("final_obs")}


@broken("SAME_STEP: expected info['final_info'] and info['_final_info'] where an episode ended")
class NoFinalInfo(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        *rest, info = super().step(actions)
        return *rest, {key: value for key, value in info.items() if not key.endswith("final_info")}


@broken("SAME_STEP: expected info['_final_obs'] to mark the environments that ended")
class FinalMaskOfAll(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        *rest, info = super().step(actions)
        if "final_obs" in info:
            info["_final_obs"] = np.ones(self.num_envs, np.bool_)
        return *rest, info


@broken("modes agree: NEXT_STEP, and SAME_STEP: environment")
class FinalObsOfTheNextEpisode(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        obs, *rest, info = super().step(actions)
        if "final_obs" in info:
            info["final_obs"] = obs.copy()
        return obs, *rest, info


@broken("DISABLED: expected the caller's options to stay unchanged, got {}")
class TakesTheMask(WalkVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        if options is not None:
            options.pop("reset_mask")
        return result


@broken("DISABLED: expected reset_mask of environment 0 to leave the observation of environment 1")
class ResetsAll(WalkVectorEnv):
    def checked_mask(self, options: Any) -> Any:
        return np.ones_like(super().checked_mask(options))


@broken(
    "DISABLED: expected reset_mask of environment 0 to leave the observation of environment 1 as it was, got another["
)
class BlanksTheOthers(WalkVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        return obs * self.checked_mask(options)[:, None] if options else obs, info


@broken("DISABLED: reset_mask of environment 0 should not affect the others")
class DrawsForAll(WalkVectorEnv):
    def checked_mask(self, options: Any) -> Any:
        mask = super().checked_mask(options)
        for i in np.flatnonzero(~mask):
            self.generators[i].random()
        return mask


@broken("DISABLED: environment 0, reset by mask or with all: environment 0")
class ResetsTheObservationAlone(WalkVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        age = self.age.copy()
        result = super().reset(seed=seed, options=options)
        if options is not None and not self.age[0] and 0 < age[0] < TIME_LIMIT:
            self.age[0] = age[0]
        return result


@broken("DISABLED: expected a reset_mask that selects no environment to raise an exception")
class TakesEmptyMasks(WalkVectorEnv):
    def checked_mask(self, options: Any) -> Any:
        mask = options["reset_mask"]
        return super().checked_mask(options) if mask.any() or mask.shape != (self.num_envs,) else mask


@broken("DISABLED: expected a reset_mask that holds integers to raise an exception")
class TakesIntegerMasks(WalkVectorEnv):
    def checked_mask(self, options: Any) -> Any:
        return super().checked_mask({"reset_mask": options["reset_mask"].astype(np.bool_)})


@broken("DISABLED: expected step() of an episode that has ended and was not reset to raise an exception")
class StepsOn(WalkVectorEnv):
    def step(self, actions: Any) -> Any:
        if self.autoreset_mode == DISABLED:
            self.ended[:] = False
        return super().step(actions)


@broken(
    "NEXT_STEP, seeding: the same seed again, same environment: environment 0, the reset after 0 steps, obs"
)
class IgnoresSeed(WalkVectorEnv):
    def seed(self, seeds: list[int]) -> None:
        pass


@broken("NEXT_STEP, seeding: expected other seeds to give other trajectories, got the same ones")
class OneSeedForAll(WalkVectorEnv):
    def seed(self, seeds: list[int]) -> None:
        super().seed([7] * self.num_envs)


@broken("NEXT_STEP, seeding: an int and the list of seed + i: environment 1")
class SpawnsFromTheInt(WalkVectorEnv):
    def seeds(self, seed: Any) -> list[int]:
        return [seed, *range(90, 89 + self.num_envs)] if isinstance(seed, int) else super().seeds(seed)


@broken("NEXT_STEP, seeding: a list of seeds and the same backwards: environment 0")
class SeedsByTheFirst(WalkVectorEnv):
    def seed(self, seeds: list[int]) -> None:
        super().seed([seeds[0] + i for i in range(self.num_envs)])


@broken("NEXT_STEP, seeding: expected reset() with 4 seeds to raise an exception")
class TakesManySeeds(WalkVectorEnv):
    def seeds(self, seed: Any) -> list[int]:
        return super().seeds(seed if isinstance(seed, int) else seed[: self.num_envs])


@broken("NEXT_STEP, seeding: expected reset() without a seed to continue the streams, got the same episodes")
class SeedsAgain(WalkVectorEnv):
    last: list[int] | None = None

    def seed(self, seeds: list[int]) -> None:
        self.last = seeds
        super().seed(seeds)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        partial = options is not None
        return super().reset(seed=self.last if seed is None and not partial else seed, options=options)


@broken("NEXT_STEP, seeding: reset() without a seed should continue the streams")
class FreshEntropy(WalkVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is None and options is None:
            seed = np.random.default_rng().integers(2**31, size=self.num_envs).tolist()
        return super().reset(seed=seed, options=options)


@broken("NEXT_STEP, global random state: expected no use of the generators of random and numpy.random")
class TouchesTheGlobalGenerator(WalkVectorEnv):
    def seed(self, seeds: list[int]) -> None:
        np.random.seed(seeds[0])  # noqa: NPY002
        super().seed(seeds)


@broken("NEXT_STEP, batch size: environment 0 alone, and in a batch of 3: environment 0")
class DependsOnBatchSize(WalkVectorEnv):
    def seed(self, seeds: list[int]) -> None:
        super().seed([10 * seed + self.num_envs for seed in seeds])


@broken("NEXT_STEP, threads: expected step 0 with 2 threads to be as with one")
class DependsOnThreads(WalkVectorEnv):
    def move(self, actions: Any, mask: Any) -> Any:
        return super().move(actions, mask) + self.num_threads - 1


@broken("NEXT_STEP, state: expected save_state() to return bytes, got dict")
class StateAsDict(WalkVectorEnv):
    def save_state(self) -> Any:
        return self.saved()


@broken("NEXT_STEP, state: saved within an episode: saving should change nothing")
class SavingDraws(WalkVectorEnv):
    def save_state(self) -> bytes:
        self.generators[0].random()
        return super().save_state()


@broken("NEXT_STEP, state: saved within an episode, loaded by the same environment")
class StateWithoutGenerators(WalkVectorEnv):
    def saved(self) -> dict[str, Any]:
        return {key: value for key, value in super().saved().items() if key != "generators"}


@broken("NEXT_STEP, state: saved within an episode, loaded by a new environment")
class StateWithoutWasReset(WalkVectorEnv):
    def load_state(self, state: bytes) -> None:
        fresh = not self.was_reset
        super().load_state(state)
        if fresh:
            self.age += 1


@broken("NEXT_STEP, state: saved after an end, loaded by the same environment")
class StateWithoutPendingResets(WalkVectorEnv):
    def load_state(self, state: bytes) -> None:
        super().load_state(state)
        self.ended[:] = False


@broken("NEXT_STEP, state: expected load_state() of a state that is a byte short to raise an exception")
class TakesDamagedStates(WalkVectorEnv):
    def load_state(self, state: bytes) -> None:
        try:
            super().load_state(state)
        except ValueError:
            self.reset_envs(np.ones(self.num_envs, np.bool_))


@broken("NEXT_STEP, state: saved within an episode: a refused state should change nothing")
class HalfLoads(WalkVectorEnv):
    def load_state(self, state: bytes) -> None:
        self.reset_envs(np.ones(self.num_envs, np.bool_))
        super().load_state(state)


@broken("NEXT_STEP, close: expected the environment to raise nothing, got RuntimeError: closed already")
class ClosesOnce(WalkVectorEnv):
    def close(self, **kwargs: Any) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        super().close(**kwargs)


@broken("NEXT_STEP, close: expected step() after close() to raise an exception")
class RunsAfterClose(WalkVectorEnv):
    def refuse_if_closed(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("failure", "cls"), BROKEN, ids=lambda x: getattr(x, "__name__", ""))
def test_a_broken_environment_fails_with_its_own_message(failure: str, cls: type[WalkVectorEnv]) -> None:
    with pytest.raises(AssertionError, match=re.escape(failure)) as raised:
        check(cls)
    assert str(raised.value).startswith(failure)


def test_every_clause_is_broken_by_some_environment() -> None:
    clauses = {re.split(r"[:,] ", failure.removeprefix("NEXT_STEP, "))[0] for failure, _ in BROKEN}
    assert clauses == set(CLAUSES)


def test_an_environment_without_num_threads_is_checked_without() -> None:
    def make(num_envs: int, **kwargs: Any) -> WalkVectorEnv:
        if "num_threads" in kwargs:
            raise TypeError("unexpected keyword argument 'num_threads'")
        return WalkVectorEnv(num_envs, **kwargs)

    check(make, modes=[NEXT_STEP])


@pytest.mark.slow
def test_skip_leaves_a_clause_out() -> None:
    with pytest.raises(AssertionError, match="before reset"):
        check(StepsUnreset)
    check(StepsUnreset, skip=["before reset"])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_envs": 1}, "num_envs: expected at least 2"),
        ({"steps": 3}, "steps: expected at least 4"),
        ({"modes": []}, "modes: expected at least one"),
        ({"skip": ["closing"]}, "skip: expected some of spaces, .*, got 'closing'"),
    ],
)
def test_its_own_arguments_are_checked(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(WalkVectorEnv, **kwargs)
