"""DQN learns from transitions of every collector: the same bits, resumed exactly, from all observations."""

import io
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from small_runs import differences, learnt_by, trainer_of
from space_cases import OBS_SPACES

from fastrl import load_policy
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.protocol import Prioritization, ReplaySpec
from fastrl.envs.rows import ObsRows
from fastrl.replay import Replay
from fastrl.rollout.fragment import Fragment
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.runs.errors import TrainError
from fastrl.sources.minibatches import make_sampler
from fastrl.sources.transitions import TransitionSource, store_fragment
from fastrl.training.trainer import Trainer

# Rounds of 4 steps of 4 environments; learning starts in the third.
SMALL = [
    "--algo=dqn",
    "--num-envs=4",
    "--replay.capacity=200",
    "--replay.learning-starts=24",
    "--replay.updates-per-step=0.25",
    "--dqn.batch-size=8",
    "--dqn.hidden=8",
    "--dqn.target-every=3",
    "--dqn.epsilon-steps=100",
    "--total-timesteps=112",
    "--run.row-seconds=0",
    "--run.eval-episodes=2",
    "--device=cpu",
]
RAINBOW = ["--dqn.prioritized", "--dqn.noisy"]
COLLECTORS = ["sequential", "sync", "executor"]


def dqn_of(
    *options: str, obs: str = "vector", console: Console | None = None, masks: bool = False
) -> Trainer:
    env = ["--env=space_cases:AnySpaces", "--env.options", f"obs={obs}", "actions=discrete from 3"]
    if masks:
        env += ["masks=true", "--dqn.action-masks"]
    return trainer_of("gym", *SMALL, *env, *options, console=console)


def source_of(trainer: Trainer) -> TransitionSource:
    assert isinstance(trainer.source, TransitionSource)
    return trainer.source


def test_a_run_alternates_between_steps_and_minibatches() -> None:
    trainer = dqn_of("--collector=sequential")
    rows = [row.record() for row in trainer.rows()]
    # 32 steps came before learning started; then a quarter of a minibatch for each of 80.
    assert (rows[-1]["time/total_timesteps"], trainer.iteration) == (112, 20)
    assert rows[-1]["rollout/exploration_rate"] == pytest.approx(0.01)
    assert 0.4 < rows[-1]["collect/replay_fill"] <= 0.6
    assert trainer.episodes > 8
    assert isinstance(trainer.algorithm, DQN)
    assert trainer.algorithm.updates == 20
    assert trainer.policy_checkpoint()["policy"]["architecture"]["num_actions"] == 3


def test_a_policy_that_explores_by_itself_has_no_share_of_random_actions() -> None:
    rows = [row.record() for row in dqn_of("--collector=sequential", "--dqn.noisy").rows()]
    assert "train/loss" in rows[-1] and "rollout/exploration_rate" not in rows[-1]


def test_collectors_that_wait_learn_the_same_bits() -> None:
    found = []
    for name in COLLECTORS:
        workers = [] if name == "sequential" else ["--n-workers=2"]
        trainer = dqn_of(f"--collector={name}", *workers, *RAINBOW)
        list(trainer.rows())
        found.append(learnt_by(trainer))
    for other in found[1:]:
        assert differences(found[0], other) == []


@pytest.mark.slow
@pytest.mark.parametrize("obs", ["matrix of float64", "dict with image"])
def test_a_stopped_run_resumes_to_the_bit(obs: str, tmp_path: Path) -> None:
    """With masks, priorities and noise; `test_matrix` does without."""
    options = ["--collector=sequential", "--replay.save", *RAINBOW]
    whole = dqn_of(*options, obs=obs, masks=True)
    list(whole.rows())
    out = io.StringIO()
    parts = dqn_of(*options, obs=obs, masks=True)
    for stop in (1, 5, 100):
        rows = parts.rows()
        list(islice(rows, stop))
        rows.close()  # type: ignore[attr-defined]
        save_checkpoint(tmp_path / "state", parts.state_dict())
        parts.source.save_files(tmp_path)
        done, parts = parts, dqn_of(*options, obs=obs, masks=True, console=Console(file=out, width=200))
        state = load_checkpoint(tmp_path / "state")
        parts.source.load_files(tmp_path)
        parts.load_state_dict(state)
    assert differences(learnt_by(done), learnt_by(whole)) == []
    assert "to the bit" not in out.getvalue()


@pytest.mark.parametrize("intrinsic", [[], ["--intrinsic=rnd"]])
def test_several_gradient_steps_in_one_call_learn_the_same_bits(
    intrinsic: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for at_once in (1, 8):
        monkeypatch.setattr("fastrl.algorithms.batch_arrays.AT_ONCE", at_once)
        options = ["--collector=sequential", "--no-dqn.prioritized", "--replay.updates-per-step=0.7"]
        trainer = dqn_of(*options, *intrinsic)
        drawn = [trainer.source.updates for _ in trainer.rows()]
        # 16 steps bring 11 minibatches, or 12 where the parts that are left make one.
        assert trainer.iteration == 56 and max(drawn) == at_once
        found.append(learnt_by(trainer))
    assert differences(*found) == []


def test_without_its_replay_a_run_fills_it_again_and_says_so() -> None:
    first = dqn_of("--collector=sequential")
    list(islice(first.rows(), 4))
    state = first.state_dict()
    out = io.StringIO()
    second = dqn_of("--collector=sequential", console=Console(file=out, width=200))
    second.load_state_dict(state)
    list(second.rows())
    assert second.steps == 112
    assert second.iteration < 20
    assert (
        "not to the bit as if it had never stopped: the replay was not saved, see --replay.save; learning"
        in (out.getvalue())
    )


def test_a_saved_replay_with_other_masks_is_refused(tmp_path: Path) -> None:
    options = ["--collector=sequential", "--replay.save"]
    first = dqn_of(*options, masks=True)
    list(islice(first.rows(), 8))
    first.source.save_files(tmp_path)
    with pytest.raises(
        TrainError, match="replay has other action masks than this run: choose the same action_masks"
    ):
        dqn_of(*options).source.load_files(tmp_path)


def test_experience_may_be_collected_while_the_learner_learns() -> None:
    trainer = dqn_of("--collector=executor", "--n-workers=2", "--replay.overlap")
    last = list(trainer.rows())[-1].record()
    assert trainer.steps >= 112
    assert abs(trainer.iteration - (trainer.steps - 32) / 4) < 5
    assert last["collect/dropped"] == 0


def test_whole_episodes_are_stored_too() -> None:
    trainer = dqn_of("--collector=sequential", "--episodes-per-update=6")
    assert list(trainer.rows()) and trainer.iteration > 5


def test_an_algorithm_that_does_not_learn_from_transitions_is_refused() -> None:
    trainer = dqn_of("--collector=sequential")
    source = source_of(trainer)
    other = trainer_of("gym", "--collector=sequential")
    with pytest.raises(TrainError, match="ppo learns from rollouts, these are transitions"):
        source.attach(other.algorithm)


@pytest.mark.parametrize("network", ["own_networks:Alone"])
def test_a_network_of_the_users_own_gives_values(network: str, tmp_path: Path) -> None:
    options = ["--collector=sequential", f"--dqn.network={network}", "--dqn.network-options", "width=12"]
    small = [option for option in SMALL if "hidden" not in option]
    trainer = trainer_of(
        "gym",
        *small,
        "--env=space_cases:AnySpaces",
        "--env.options",
        "obs=vector",
        "actions=discrete from 3",
        *options,
    )
    list(trainer.rows())
    policy = trainer.policy_checkpoint()["policy"]
    assert policy["architecture"]["path"] == network
    rows = ObsRows(OBS_SPACES["vector"])
    actor = DQN.make_actor(policy, rows.space, trainer.source.action_space)  # type: ignore[attr-defined]
    obs, actions = np.ones((2, 3), np.float32), np.full(2, -1)
    nothing = np.zeros(2, np.uint64), np.zeros(2, np.int64)
    actor.act(obs, *nothing, actions, np.zeros(2, np.float32), greedy=True)
    with torch.no_grad():
        values = trainer.algorithm.network(torch.from_numpy(obs))  # type: ignore[attr-defined]
    assert actions.tolist() == values.argmax(1).tolist()


def fragment_of(rewards: Any, ends: str, masks: bool = False, env_indices: Any = (0, 1)) -> Fragment:
    """Of two environments; observation t of environment r is [t, r].

    Args:
        ends: of environment 0: "t" at a step that terminates, "c" at one that is cut off, else "-".
    """
    steps = len(ends)
    obs = np.stack(np.meshgrid(np.arange(steps + 1), np.arange(2), indexing="ij"), -1).astype(np.float32)
    terminations, truncations = np.zeros((2, steps, 2), np.bool_)
    terminations[:, 0], truncations[:, 0] = ([letter == each for letter in ends] for each in "tc")
    return Fragment(
        obs=obs,
        actions=np.arange(2 * steps).reshape(steps, 2),
        log_probs=np.zeros((steps, 2), np.float32),
        rewards=np.asarray(rewards, np.float32),
        terminations=terminations,
        truncations=truncations,
        final_obs=np.full((steps, 2, 2), 99, np.float32),
        version=3,
        env_indices=np.asarray(env_indices),
        returns=np.zeros(0),
        lengths=np.zeros(0, np.int64),
        episodes=np.zeros((0, 2), np.int64),
        masks=np.ones((steps, 2, 4), np.bool_) if masks else None,
        final_masks=np.tile([True, False, True, False], (steps, 2, 1)) if masks else None,
    )


@pytest.mark.parametrize(
    "prioritized", [None, Prioritization(0.5, lambda steps: 0.4)], ids=["uniform", "prioritized"]
)
def test_episodes_that_are_cut_off_are_bootstrapped_and_those_that_terminate_are_not(
    prioritized: Any,
) -> None:
    replay = Replay(100, (2,), np.float32, num_envs=2, extra={"version": (np.uint32, ())})
    fragment = fragment_of([[1, 0]] * 4, "-c-t")
    store_fragment(replay, fragment, fragment.env_indices)
    assert len(replay) == 4 + 3  # The last step of environment 1 waits for its next observation.
    sampler = make_sampler(ReplaySpec(64, 2, 0.5, prioritized), replay, 0)
    batch = sampler.sample()
    found = {
        tuple(obs): (reward, tuple(after), discount)
        for obs, reward, after, discount in zip(
            batch.obs.tolist(),
            batch.rewards.tolist(),
            batch.next_obs.tolist(),
            batch.discounts.tolist(),
            strict=True,
        )
    }
    assert found == {
        (0, 0): (1.5, (99, 99), 0.25),
        (1, 0): (1, (99, 99), 0.5),
        (2, 0): (1.5, (99, 99), 0),
        (3, 0): (1, (99, 99), 0),
        (0, 1): (0, (2, 1), 0.25),
        (1, 1): (0, (3, 1), 0.25),
        (2, 1): (0, (3, 1), 0.5),
    }


@pytest.mark.parametrize("final_masks", [True, False])
def test_rows_have_masks_beside_observations(final_masks: bool) -> None:
    extra = {"version": (np.uint32, ())}
    replay = Replay(100, (2,), np.float32, num_envs=4, num_masked=4, final_masks=final_masks, extra=extra)
    fragment = fragment_of([[1, 0]] * 3, "c-t", masks=True)
    if not final_masks:
        fragment = replace(fragment, final_masks=None)
    store_fragment(replay, fragment, np.array([3, 1]))
    assert len(replay) == 3 + 2  # The last step of environment 1 waits for its next observation.
    batch = make_sampler(ReplaySpec(64, 1, 0.5, None), replay, 0).sample()
    assert batch.masks is not None and batch.masks.all()
    assert (batch.extra["version"] == 3).all()
    assert (batch.next_masks is not None) == final_masks
    last = {tuple(obs): i for i, obs in enumerate(batch.obs.tolist())}
    # The last observation of an episode that was cut off has a mask, that of one that terminated allows nothing.
    assert batch.next_obs[[last[0, 0], last[2, 0]]].tolist() == [[99, 99]] * 2
    if batch.next_masks is not None:
        assert batch.next_masks[last[0, 0]].tolist() == [True, False, True, False]
        assert not batch.next_masks[last[2, 0]].any() and batch.next_masks[last[1, 0]].all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["dqn"],
        ["dqn", "--dqn.double", "--dqn.dueling", "--dqn.n-step=2"],
        ["dqn", "--dqn.quantiles=5", "--dqn.prioritized"],
        ["sac", "--sac.temperature=0", "--no-sac.learn-temperature"],
    ],
    ids=" ".join,
)
def test_values_are_those_of_allowed_actions_where_episodes_are_cut_off(options: list[str]) -> None:
    algo, *options = options
    shared = [
        f"--{algo}.action-masks",
        f"--{algo}.gamma=0.8",
        f"--{algo}.hidden=32",
        f"--{algo}.batch-size=32",
    ]
    if algo == "dqn":
        shared += ["--dqn.target-every=20", "--dqn.learning-rate=3e-3"]
    else:
        shared += ["--sac.tau=0.05", "--sac.learning-rate=3e-3"]
    trainer = trainer_of(
        "gym",
        f"--algo={algo}",
        "--env=few_allowed:FewAllowed",
        "--collector=sequential",
        "--num-envs=4",
        "--replay.learning-starts=100",
        "--replay.updates-per-step=0.5",
        "--total-timesteps=1500",
        "--run.row-seconds=0",
        "--run.eval-episodes=0",
        "--device=cpu",
        *shared,
        *options,
    )
    rows = [row.record() for row in trainer.rows()]
    assert abs(rows[-1]["train/q"]) < 0.01


def test_an_environment_that_was_replaced_starts_a_new_sequence() -> None:
    trainer = dqn_of("--collector=sequential", "--dqn.n-step=1")
    source = source_of(trainer)
    with source:
        replay = source.minibatches.replay
        assert replay is not None
        first = fragment_of([[1, 1]] * 2, "--")
        wide = {name: np.repeat(getattr(first, name), 2, -1)[..., :3] for name in ("obs", "final_obs")}
        source.store(replace(first, **wide))
        # Observation 0 does not follow observation 2.
        source.store(replace(first, **wide))
        assert replay.lost == 2


def test_a_defender_is_trained_and_scored_with_masks(tmp_path: Path) -> None:
    options = ["--env.num-envs=4", "--env.episode-length=9", "--dqn.action-masks", "--collector=native"]
    trainer = trainer_of("cage2", *SMALL, *options)
    list(trainer.rows())
    save_checkpoint(tmp_path / "policy", trainer.state_dict())
    policy = load_policy(tmp_path / "policy")
    assert policy.needs_action_mask
    mask = np.zeros((2, policy.num_actions), np.bool_)
    mask[:, policy.actions[[3, 5]]] = True
    chosen = policy.act(np.zeros((2, policy.obs_dim), np.float32), action_mask=mask)
    assert set(chosen.tolist()) <= set(policy.actions[[3, 5]].tolist())
