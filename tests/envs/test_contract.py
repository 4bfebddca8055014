"""Environments that break Gymnasium's interface end a run, with a message that says what they returned."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import OBS, WRONG, Noise, Wrong, plan, updates

from fastrl.collectors.factory import make_collector
from fastrl.collectors.probe import probe
from fastrl.collectors.protocol import CollectError
from fastrl.envs import contract
from fastrl.envs.process_vector import ProcessVectorEnv
from fastrl.envs.worker_error import WorkerError
from fastrl.utils.seeding import NO_ENV, env_seed

NAME = "collect_cases:Wrong"
FORM = contract.obs_form(NAME, OBS.shape, OBS.dtype)
STEP = "step() should return (obs, reward, terminated, truncated, info), got "
OBS_OF = (
    "() gave an observation that its observation_space does not have: expected numbers of shape (2, 2), got "
)
WRAP = "change it, or wrap the environment in shimmy.GymV21CompatibilityV0"
MESSAGES = {
    "nan reward": "step() gave the reward nan at step 3 of the episode that reset(seed=",
    "large reward": "step() gave the reward inf, or a number beyond 3.4e+38 that float32 cannot hold, at step 3 of the",
    "infinite obs": "step() gave an observation with -inf at step 3 of the episode that reset(seed=",
    "4 values": f"{STEP}4 values, as in the old Gym: {WRAP}",
    "no values": f"{STEP}None: {WRAP}",
    "no reward": "step() should give a number as reward, got None",
    "text": "step() should give a number as reward, got '1.0'",
    "two rewards": "step() should give a number as reward, got an array of float64 of shape (2,)",
    "no flag": "step() should give True or False as terminated, got None",
    "info as flag": "step() should give True or False as truncated, got a dict",
    "flat obs": f"step{OBS_OF}an array of float64 of shape (4,)",
    "short obs": f"step{OBS_OF}an array of float64 of shape (1, 2)",
    "no obs": f"step{OBS_OF}None",
    "ragged obs": f"step{OBS_OF}a list",
    "text obs": f"step{OBS_OF}an array of <U32 of shape (2, 2)",
    "complex obs": f"step{OBS_OF}an array of complex128 of shape (2, 2)",
    "reset without info": "reset(seed=..., options=...) should return (obs, info), got an array of float64 of shape"
    f" (2, 2), as in the old Gym: {WRAP}",
    "reset obs": f"reset{OBS_OF}an array of float64 of shape (2,)",
    "reset nan": "reset() gave an observation with nan at step 0 of the episode that reset(seed=",
}


def message_of(collector: str, unit: str, what: str) -> str:
    """The one-line error of a collector, raised before a learner gets the data."""
    options: dict[str, Any] = {} if collector == "sequential" else {"n_workers": 1}
    with (
        make_collector(collector, plan(unit, Wrong, num_envs=1, what=what), **options) as made,
        pytest.raises(CollectError) as caught,
    ):
        updates(made, 9)
    assert caught.value.traceback == ""
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("what", WRONG)
def test_a_broken_step_or_reset_ends_the_run_with_a_message(what: str) -> None:
    message = message_of("sequential", "steps", what)
    assert message.startswith(f"{NAME}: {MESSAGES[what]}")
    assert "\n" not in message
    assert message_of("sequential", "episodes", what).startswith(f"{NAME}: {MESSAGES[what]}")


def test_the_message_names_the_seed_of_the_episode() -> None:
    for unit, env_index in (("steps", 0), ("episodes", NO_ENV)):
        same = plan(unit, num_envs=1)
        seed = int(re.findall(r"seed=(\d+)", message_of("sequential", unit, "nan reward"))[0])
        lengths = []
        # Find the first episode with a third step.
        while not lengths or lengths[-1] < 3:
            env = Noise()
            env.reset(seed=env_seed(same.seed, env_index, len(lengths)))
            lengths.append(env.left)
        assert seed == env_seed(same.seed, env_index, len(lengths) - 1)


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("collector", ["sync", "executor"])
def test_collectors_report_the_same_error(collector: str, unit: str) -> None:
    assert message_of(collector, unit, "nan reward") == message_of("sequential", unit, "nan reward")


def test_workers_report_it_in_one_line() -> None:
    expected = f"{NAME}: {MESSAGES['flat obs']}"
    assert (
        message_of("executor", "steps", "flat obs") == message_of("sync", "episodes", "flat obs") == expected
    )
    with pytest.raises(CollectError) as caught:
        probe(plan("steps", Wrong, what="flat obs"))
    assert str(caught.value) == expected
    env = ProcessVectorEnv(Wrong, 1, autoreset_mode="disabled", what="reset obs")
    with pytest.raises(WorkerError) as died:
        env.reset(seed=1)
    env.close()
    [death] = died.value.deaths
    assert (death.cause, death.traceback, death.refused) == (f"{NAME}: {MESSAGES['reset obs']}", "", True)


class Scripted(gymnasium.Env[Any, Any]):
    """An environment that returns the given results."""

    def __init__(self, *results: Any) -> None:
        self.results = iter(results)

    def reset(self, **arguments: Any) -> Any:  # type: ignore[override]
        return next(self.results)

    def step(self, action: Any) -> Any:
        return next(self.results)


@pytest.mark.parametrize(
    ("reward", "flag"),
    [
        (1, 1),
        (np.float32(1), np.bool_(True)),
        (np.array(1.0), np.array([True])),
        (np.array([1]), np.int8(1)),
        (True, True),
    ],
)
def test_rewards_and_flags_may_have_any_numeric_type(reward: Any, flag: Any) -> None:
    env = Scripted([[0, 1], [2, 3]], ([[0, 1], [2, 3]], {}), ([[0, 1], [2, 3]], reward, flag, False, {}))
    with pytest.raises(contract.ContractError, match=re.escape("should return (obs, info), got a list")):
        contract.reset(env, FORM)
    obs, _ = contract.reset(env, FORM, 3)
    assert obs.tolist() == [[0, 1], [2, 3]]
    _, number, terminated, truncated, _ = contract.step(env, FORM, 0)
    assert (float(number), bool(terminated), bool(truncated)) == (1.0, True, False)


def test_floats_are_refused_for_a_space_of_integers() -> None:
    form = contract.obs_form("it", (2,), np.uint8)
    env = Scripted((np.zeros(2, np.int64), {}), (np.zeros(2), {}))
    contract.reset(env, form)
    with pytest.raises(
        contract.ContractError, match=r"expected integers of shape \(2,\), got an array of float64"
    ):
        contract.reset(env, form)


def test_integers_that_do_not_fit_the_dtype_are_refused() -> None:
    form = contract.obs_form("it", (2,), np.uint8)
    env = Scripted(
        (np.array([0, 255]), {}), (np.array([0, 256]), {}), (np.array([-1, 0]), 0.0, False, False, {})
    )
    obs, _ = contract.reset(env, form)
    assert obs.dtype == np.uint8
    assert obs.tolist() == [0, 255]
    with pytest.raises(
        contract.ContractError, match=r"reset.* expected uint8, got 256 in an array of int64$"
    ):
        contract.reset(env, form)
    with pytest.raises(contract.ContractError, match=r"step.* expected uint8, got -1 in an array of int64$"):
        contract.step(env, form, 0)


class OldGym(Noise):
    """The old Gym's interface: no seed for ``reset``, four values of ``step``."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset(seed=1)[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


def test_the_old_gym_is_recognised_through_wrappers_and_other_errors_are_not_replaced() -> None:
    wrapped = gymnasium.wrappers.TimeLimit(OldGym(), 5)
    message = "got an unexpected keyword argument 'seed'\", as in the old Gym: change it"
    for env in (wrapped, OldGym()):
        with pytest.raises(contract.ContractError, match=re.escape(message)):
            contract.reset(env, FORM, 1)
    wrapped = gymnasium.wrappers.TimeLimit(OldGym(), 5)
    wrapped.unwrapped.left = 5
    message = f"{STEP}another number of values (not enough values to unpack (expected 5, got 4)): {WRAP}"
    with pytest.raises(contract.ContractError, match=re.escape(message)):
        contract.step(wrapped, FORM, 0)

    class Broken(Noise):
        def step(self, action: Any) -> Any:
            _, _, _, _, _ = range(4)

    with pytest.raises(ValueError, match="expected 5, got 4"):
        contract.step(Broken(), FORM, 0)
