"""Hindsight in runs: goals that were achieved later, exact resumes, environments without goals refused."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from rich.console import Console
from small_runs import differences, learnt_by, trainer_of

from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.envs.toys.bit_flip import BitFlipEnv
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.runs.errors import TrainError
from fastrl.sources.goals import Goals
from fastrl.sources.transitions import TransitionSource
from fastrl.training.trainer import Trainer

SMALL = [
    "--num-envs=2",
    "--replay.capacity=100",
    "--replay.learning-starts=16",
    "--replay.hindsight=0.75",
    "--total-timesteps=120",
    "--run.row-seconds=0",
    "--run.eval-episodes=0",
    "--device=cpu",
    "--collector=sequential",
    "--replay.save",
]
DQN = ["--algo=dqn", "--dqn.n-step=1", "--dqn.hidden=8", "--dqn.batch-size=8"]
SAC = ["--algo=sac", "--sac.hidden=8", "--sac.batch-size=8", "--replay.updates-per-step=0.25"]
BITS = ["--env=fastrl/BitFlip-v0", "--env.options", "bits=5"]


class Reach(gymnasium.Env[Any, Any]):
    """A point is moved to a goal; its functions take one goal at a time, and goals are float64."""

    def __init__(self, image: bool = False, functions: bool = True) -> None:
        goal = Box(-9, 9, (2,), np.float64)
        spaces: dict[str, Any] = {"observation": Discrete(3), "achieved_goal": goal, "desired_goal": goal}
        if image:
            spaces["observation"] = Box(0, 255, (4, 4), np.uint8)
        self.observation_space = Dict(spaces)
        self.action_space = Box(-1, 1, (2,), np.float32)
        if functions:
            self.compute_reward = lambda achieved, desired, info: -float(np.linalg.norm(achieved - desired))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.goal = self.np_random.uniform(-2, 2, (2, 2))
        self.steps = 0
        return self.obs(), {}

    def obs(self) -> dict[str, Any]:
        part = self.observation_space["observation"].sample()
        return {"observation": part, "achieved_goal": self.at, "desired_goal": self.goal}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + action, -9, 9)
        self.steps += 1
        return self.obs(), -float(np.linalg.norm(self.at - self.goal)), False, self.steps == 6, {}


class MaskedBits(BitFlipEnv):
    """Bits of which each but the last one may be flipped only while the next one is 0."""

    def action_masks(self) -> Any:
        return np.append(self._state[1:] == 0, True)


def source_of(trainer: Trainer) -> TransitionSource:
    assert isinstance(trainer.source, TransitionSource)
    return trainer.source


def test_goals_and_rewards_are_replaced_in_an_exact_share_of_each_minibatch() -> None:
    trainer = trainer_of("gym", *SMALL, *DQN, *BITS)
    list(trainer.rows())
    source = source_of(trainer)
    assert source.goals is not None
    source.goals.open()
    sampler, env = source.minibatches.sampler, BitFlipEnv(5)
    assert sampler is not None
    achieved, desired = slice(0, 5), slice(5, 10)
    reached = 0
    for _ in range(50):
        batch = sampler.sample()
        # Observations have the bits again after the goals; an action flips one bit.
        flipped = (batch.obs[:, achieved] - batch.next_obs[:, achieved]).abs()
        assert torch.equal(flipped, torch.nn.functional.one_hot(batch.actions, 5).float())
        assert torch.equal(batch.obs[:, desired], batch.next_obs[:, desired])
        goals = [batch.next_obs[:, part].numpy() for part in (achieved, desired)]
        assert np.array_equal(batch.rewards.numpy(), env.compute_reward(*goals, {}))
        assert np.array_equal(batch.terminated.numpy(), env.compute_terminated(*goals, {}))
        assert torch.allclose(batch.discounts, 0.99 * (~batch.terminated).float())
        reached += int(batch.terminated[:6].sum())
    assert reached > 60


def test_masks_stay_and_nothing_follows_where_they_are_not_known() -> None:
    env = ["--env=test_hindsight:MaskedBits", "--env.options", "bits=3", "--replay.hindsight-goals=episode"]
    trainer = trainer_of("gym", *SMALL, *DQN, *env, "--dqn.action-masks")
    list(trainer.rows())
    sampler, unknown = source_of(trainer).minibatches.sampler, 0
    assert sampler is not None and source_of(trainer).goals is not None
    source_of(trainer).goals.open()  # type: ignore[union-attr]
    for _ in range(50):
        batch = sampler.sample()
        assert batch.masks is not None and batch.next_masks is not None
        assert batch.masks.gather(1, batch.actions[:, None]).all()
        known = batch.next_masks.any(1)
        for obs, masks, rows in (
            (batch.obs, batch.masks, known | True),
            (batch.next_obs, batch.next_masks, known),
        ):
            assert torch.equal(masks[rows, :2], obs[rows, 1:3] == 0) and masks[rows, 2].all()
        # A step that reached its own goal may not reach another one; what would be allowed then is not known.
        assert torch.equal(batch.discounts > 0, ~batch.terminated & known)
        unknown += int((~batch.terminated & ~known).sum())
    assert unknown > 0


@pytest.mark.parametrize("algo", [DQN, SAC], ids=["dqn", "sac"])
def test_a_stopped_run_resumes_to_the_bit(algo: list[str], tmp_path: Path) -> None:
    whole = trainer_of("gym", *SMALL, *algo, *BITS)
    list(whole.rows())
    out = io.StringIO()
    parts = trainer_of("gym", *SMALL, *algo, *BITS)
    for stop in (2, 6, 100):
        rows = parts.rows()
        list(islice(rows, stop))
        rows.close()  # type: ignore[attr-defined]
        save_checkpoint(tmp_path / "state", parts.state_dict())
        parts.source.save_files(tmp_path)
        done = parts
        parts = trainer_of("gym", *SMALL, *algo, *BITS, console=Console(file=out, width=200))
        state = load_checkpoint(tmp_path / "state")
        parts.source.load_files(tmp_path)
        parts.load_state_dict(state)
    assert differences(learnt_by(done), learnt_by(whole)) == []
    assert "to the bit" not in out.getvalue()


@pytest.mark.parametrize("goals", ["future", "final", "episode"])
def test_functions_of_one_goal_and_continuous_actions(goals: str) -> None:
    options = ["--algo=td3", "--td3.hidden=8", "--td3.batch-size=8", f"--replay.hindsight-goals={goals}"]
    trainer = trainer_of("gym", *SMALL, *options, "--env=test_hindsight:Reach")
    list(trainer.rows())
    assert trainer.steps == 120 and trainer.iteration > 50
    goals_of = Goals(EnvSpec("test_hindsight:Reach"))
    arguments = goals_of.arguments(ObsRows(Reach().observation_space))
    assert (arguments["achieved"], arguments["desired"]) == (slice(0, 2), slice(2, 4))
    assert arguments["terminated_fn"] is None
    goals_of.open()
    rewards = arguments["reward_fn"](torch.zeros(3, 2), torch.tensor([[3.0, 4], [0, 0], [0, 1]]))
    assert rewards.tolist() == [-5, 0, -1]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (["--env=CartPole-v1"], "CartPole-v1: expected single environments with observations of a Dict"),
        (["--env=test_hindsight:Reach", "--env.options", "image=true"], "and no images"),
        (["--env=test_hindsight:Reach", "--env.options", "functions=false"], "has no compute_reward"),
    ],
)
def test_environments_without_goals_are_refused(env: list[str], message: str) -> None:
    algo = DQN if "CartPole" in env[0] else SAC
    with pytest.raises(TrainError, match=message) as error:
        trainer_of("gym", *SMALL, *algo, *env)
    assert "\n" not in str(error.value)


def test_steps_and_priorities_that_hindsight_does_not_have_are_refused() -> None:
    for option in ("--dqn.n-step=3", "--dqn.prioritized"):
        with pytest.raises(TrainError, match=r"replaces the goals of single steps.*set its n_step to 1"):
            trainer_of("gym", *SMALL, *DQN, *BITS, option)


def test_functions_that_fail_are_named_in_one_line() -> None:
    goals = Goals(EnvSpec("fastrl/BitFlip-v0", {"bits": 3}))
    arguments = goals.arguments(ObsRows(BitFlipEnv(3).observation_space))
    goals.open()
    assert goals.env is not None
    inner: Any = goals.env.unwrapped
    inner.compute_reward = lambda achieved, desired, info: np.nan
    with pytest.raises(TrainError, match=r"fastrl/BitFlip-v0: compute_reward.*expected finite numbers"):
        arguments["reward_fn"](torch.zeros(2, 3), torch.zeros(2, 3))
