"""Demonstrations beside new transitions: an exact share of each minibatch, exact resumes, other data sets refused."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import DemoSet, Episode, cartpole_expert, played, written
from rich.console import Console
from small_runs import differences, learnt_by, rows_of, settings_of

import fastrl
from fastrl.algorithms.dqn import DQN as DQN_CLASS
from fastrl.algorithms.dqn_loss import margin_losses
from fastrl.cli.main import main
from fastrl.replay import MixedSampler, PrioritizedSampler
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.runs.errors import TrainError
from fastrl.sources.transitions import TransitionSource
from fastrl.tasks import find
from fastrl.training.trainer import Trainer

SMALL = [
    "--num-envs=2",
    "--replay.capacity=100",
    "--replay.learning-starts=16",
    "--replay.updates-per-step=0.25",
    "--demos.offline-ratio=0.25",
    "--total-timesteps=120",
    "--run.row-seconds=0",
    "--run.eval-episodes=0",
    "--device=cpu",
    "--collector=sequential",
    "--replay.save",
]
DQN = ["--algo=dqn", "--dqn.hidden=8", "--dqn.batch-size=12", "--env=CartPole-v1"]
SAC = ["--algo=sac", "--sac.hidden=8", "--sac.batch-size=12", "--env=CartPole-v1"]


def cartpole(episodes: int = 3, steps: int = 20) -> DemoSet:
    return played(gymnasium.make("CartPole-v1"), cartpole_expert, episodes, steps=steps)


def trainer_of(demos: DemoSet, *options: str, console: Console | None = None) -> Trainer:
    trainer = find("gym").with_demos(demos).make_trainer(settings_of("gym", *SMALL, *options), console)
    assert isinstance(trainer, Trainer) and isinstance(trainer.source, TransitionSource)
    return trainer


def sampler_of(trainer: Trainer) -> MixedSampler:
    assert isinstance(trainer.source, TransitionSource)
    sampler = trainer.source.minibatches.sampler
    assert isinstance(sampler, MixedSampler)
    return sampler


@pytest.mark.parametrize("options", [DQN, [*DQN, "--dqn.prioritized"], SAC], ids=["dqn", "priorities", "sac"])
def test_an_exact_share_of_each_minibatch_is_of_demonstrations(options: list[str]) -> None:
    demos = cartpole()
    # A reward by which demonstrations are known.
    for episode in demos:
        episode.rewards[:] = 700
    trainer = trainer_of(demos, *options)
    list(trainer.rows())
    assert trainer.iteration > 20
    sampler = sampler_of(trainer)
    for _ in range(20):
        batch = sampler.sample()
        assert batch.obs.shape == (12, 4)
        assert (batch.rewards[:9] < 100).all() and (batch.rewards[9:] >= 700).all()


def test_the_preset_rlpd_learns_from_a_folder_of_demonstrations(tmp_path: Path) -> None:
    env = gymnasium.make("Pendulum-v1")
    demos = played(env, lambda obs: -2 * np.sign(obs[2:]), episodes=2, steps=50)
    written(demos, tmp_path / "demos", "Pendulum-v1")
    options = [
        "--preset=rlpd",
        f"--demos={tmp_path / 'demos'}",
        f"--run-dir={tmp_path / 'run'}",
        "--total-timesteps=22",
        "--sac.hidden=8",
        "--sac.batch-size=16",
        "--replay.learning-starts=20",
        "--run.eval-episodes=0",
        "--collector=sequential",
        "--device=cpu",
    ]
    assert main(["train", "Pendulum-v1", "--algo=sac", *options]) == 0
    model = fastrl.load(tmp_path / "run")
    assert model.settings["demos"]["offline_ratio"] == 0.5
    assert (model.settings["sac"]["critics"], model.settings["sac"]["layer_norm"]) == (10, True)
    # The second-last step is the first one after which the replay has 20 transitions.
    assert sum(row.get("train/gradient_steps", 0) for row in rows_of(tmp_path / "run")) == 20


MASKED = [
    *("--env=few_allowed:FewAllowed", "--demos.offline-ratio=0.5", "--replay.updates-per-step=0.5"),
    *(
        "--total-timesteps=900",
        "--num-envs=4",
        "--run.row-seconds=0",
        "--run.eval-episodes=0",
        "--device=cpu",
    ),
    *("--collector=sequential", "--replay.learning-starts=16"),
]
MASKED_DQN = [
    *("--algo=dqn", "--dqn.action-masks", "--dqn.hidden=32", "--dqn.batch-size=32"),
    *("--dqn.gamma=0.8", "--dqn.learning-rate=3e-3", "--dqn.target-every=20"),
]
MASKED_IQL = ["--algo=iql", "--iql.action-masks", "--iql.hidden=8", "--iql.batch-size=8"]


def masked_demos(path: Path, expert: str = "expert", infos: tuple[str, ...] = ("action_mask",)) -> Any:
    return fastrl.demos.record(
        "few_allowed:FewAllowed", f"few_allowed:{expert}", 8, path, infos=infos, collector="sequential"
    )


@pytest.mark.slow
def test_masked_demonstrations_are_worth_what_their_masks_allow(tmp_path: Path) -> None:
    demos = masked_demos(tmp_path / "demos")
    for each in demos:
        assert each.infos["action_mask"].shape == (5, 50) and (each.infos["action_mask"].sum(1) == 2).all()
    trainer = find("gym").with_demos(demos).make_trainer(settings_of("gym", *MASKED, *MASKED_DQN))
    rows = [row.record() for row in trainer.rows()]
    assert abs(rows[-1]["train/q"]) < 0.01
    batch = sampler_of(trainer).sample()
    for obs, masks in ((batch.obs, batch.masks), (batch.next_obs, batch.next_masks)):
        assert masks is not None and obs.shape == (32, 3)
        assert masks.gather(1, obs.argmax(1)[:, None]).all() and (masks.sum(1) == 2).all()


def test_demonstrations_without_masks_are_refused_where_masks_count(tmp_path: Path) -> None:
    demos, ignorant = masked_demos(tmp_path / "bare", infos=()), masked_demos(tmp_path / "other", "ignorant")

    def make(demos: Any, *options: str) -> Any:
        return find("gym").with_demos(demos).make_trainer(settings_of("gym", *MASKED, *options))

    with pytest.raises(
        TrainError, match=r"has no action masks .* record it with --infos action_mask, or set"
    ):
        make(demos, *MASKED_DQN)
    with pytest.raises(TrainError, match="episode 0: action 0 was taken at step 1, and its mask forbids it"):
        make(ignorant, *MASKED_DQN)
    # Its value function is not asked for actions.
    trainer = make(demos, *MASKED_IQL, "--total-timesteps=40")
    list(trainer.rows())
    batch = sampler_of(trainer).sample()
    assert batch.masks is not None and batch.next_masks is None
    assert (batch.masks[:4].sum(1) == 2).all() and batch.masks[-4:].all()


def test_demonstrations_are_transitions_as_they_were_played() -> None:
    demos = cartpole()
    trainer = trainer_of(demos, *DQN, "--dqn.n-step=1")
    list(trainer.rows())
    sampler, found = sampler_of(trainer), set()
    steps = {
        episode.observations[t].tobytes(): (episode, t)
        for episode in demos
        for t in range(len(episode.rewards))
    }
    for _ in range(400):
        batch = sampler.sample()
        for row in range(9, 12):
            episode, t = steps[batch.obs[row].numpy().tobytes()]
            assert int(batch.actions[row]) == episode.actions[t]
            assert np.array_equal(batch.next_obs[row].numpy(), episode.observations[t + 1])
            # The expert does not fall: the last step is cut off, its value counts.
            assert float(batch.discounts[row]) == np.float32(0.99)
            assert bool(batch.truncated[row]) == (t == len(episode.rewards) - 1)
            found.add(batch.obs[row].numpy().tobytes())
    assert len(found) == len(steps) == 60


def test_an_episode_that_was_recorded_in_part_is_cut_off() -> None:
    demos = cartpole()
    for episode in demos:
        episode.truncated[:] = False
    trainer = trainer_of(demos, *DQN)
    list(trainer.rows())
    assert any(sampler_of(trainer).sample().truncated[9:].any() for _ in range(30))


def test_priorities_go_to_the_replay_that_a_transition_came_from() -> None:
    trainer = trainer_of(cartpole(), *DQN, "--dqn.prioritized", "--dqn.alpha=0.5")
    list(trainer.rows())
    sampler = sampler_of(trainer)
    batch = sampler.sample()
    sampler.update_priorities(batch.indices, torch.arange(12, dtype=torch.float64) + 100)
    highest = [
        part.state_dict()["highest"] for part in sampler.samplers if isinstance(part, PrioritizedSampler)
    ]
    assert highest == pytest.approx([108**0.5, 111**0.5])


@pytest.mark.parametrize("options", [[*DQN, "--dqn.prioritized"], SAC], ids=["dqn", "sac"])
def test_pre_training_is_by_demonstrations_alone_before_the_first_step(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demos = cartpole()
    for episode in demos:
        episode.rewards[:] = 700
    trainer = trainer_of(demos, *options, "--demos.pretrain-steps=15")
    seen, update = list[tuple[int, int, int]](), trainer.algorithm.update
    priorities = []

    def recorded(batch: Any, watch: Any) -> Any:
        assert isinstance(trainer.source, TransitionSource)
        mine = trainer.source.minibatches
        if mine.pretrained == 15 and not priorities:
            priorities.append(sampler_of(trainer).second.state_dict().get("priorities"))
        steps = 0 if mine.replay is None else len(mine.replay)
        seen.append((int((batch.rewards >= 700).sum()), batch.num_second, steps))
        return update(batch, watch)

    monkeypatch.setattr(trainer.algorithm, "update", recorded)
    rows = list(trainer.rows())
    assert seen[:15] == [(12, 12, 0)] * 15
    assert {each[:2] for each in seen[15:]} == {(3, 3)}
    # As many as without pre-training.
    without = trainer_of(demos, *options)
    list(without.rows())
    assert len(seen) - 15 == without.iteration
    assert rows[0].record()["time/total_timesteps"] == 0
    # Priorities of pre-training stay.
    assert options is SAC or len(np.unique(priorities[0])) > 10


def test_pre_training_is_refused_where_statistics_come_from_collected_steps() -> None:
    with pytest.raises(TrainError, match=r"no statistics .* set demos\.pretrain_steps to 0") as error:
        trainer_of(cartpole(), *SAC, "--sac.encoder=simba", "--demos.pretrain-steps=4")
    assert "\n" not in str(error.value)


def test_demonstrations_have_a_bonus_of_priority() -> None:
    trainer = trainer_of(cartpole(), *DQN, "--dqn.prioritized", "--dqn.alpha=0.5", "--demos.priority-bonus=2")
    list(trainer.rows())
    sampler = sampler_of(trainer)
    batch = sampler.sample()
    sampler.update_priorities(batch.indices, torch.full((12,), 100.0))
    highest = [
        part.state_dict()["highest"] for part in sampler.samplers if isinstance(part, PrioritizedSampler)
    ]
    assert highest == pytest.approx([100**0.5, 102**0.5])
    sampler.update_priorities(batch.indices, torch.zeros(12))
    assert np.isclose(sampler.second.state_dict()["priorities"], 2**0.5).any()


@pytest.mark.parametrize(
    "options",
    [
        [*DQN, "--dqn.prioritized"],
        [*DQN, "--dqn.prioritized", "--demos.pretrain-steps=4", "--demos.priority-bonus=0.5"],
        [*SAC, "--demos.pretrain-steps=4"],
    ],
    ids=["dqn", "pre-training", "sac"],
)
def test_a_stopped_run_resumes_to_the_bit(options: list[str], tmp_path: Path) -> None:
    out = io.StringIO()
    whole = trainer_of(cartpole(), *options)
    list(whole.rows())
    parts = trainer_of(cartpole(), *options)
    for stop in (2, 6, 100):
        rows = parts.rows()
        list(islice(rows, stop))
        rows.close()  # type: ignore[attr-defined]
        save_checkpoint(tmp_path / "state", parts.state_dict())
        parts.source.save_files(tmp_path)
        done, parts = parts, trainer_of(cartpole(), *options, console=Console(file=out, width=200))
        state = load_checkpoint(tmp_path / "state")
        parts.source.load_files(tmp_path)
        parts.load_state_dict(state)
    assert differences(learnt_by(done), learnt_by(whole)) == []
    assert "to the bit" not in out.getvalue()


@pytest.mark.parametrize("margin", [0.0, 0.8])
def test_the_loss_of_the_margin_is_that_of_the_paper(margin: float) -> None:
    torch.manual_seed(1)
    values, actions = torch.randn(50, 4), torch.randint(4, (50,))
    chosen = torch.nn.functional.one_hot(actions, 4)
    expected = (values + margin * (1 - chosen)).amax(1) - (values * chosen).sum(1)
    torch.testing.assert_close(margin_losses(values, actions, margin), expected)


@pytest.mark.slow
def test_with_a_margin_demonstrated_actions_get_the_highest_values() -> None:
    demos = cartpole(episodes=4, steps=40)
    obs = torch.from_numpy(np.concatenate([episode.observations[:-1] for episode in demos]))
    actions = torch.from_numpy(np.concatenate([episode.actions for episode in demos]))
    agree = []
    for coefficient in ("0", "1"):
        trainer = trainer_of(
            demos,
            *DQN,
            f"--dqn.margin-coef={coefficient}",
            "--replay.updates-per-step=4",
            "--dqn.learning-rate=3e-3",
            "--dqn.hidden=64",
            # All actions have the same value.
            "--dqn.gamma=0",
            "--dqn.batch-size=64",
            "--demos.offline-ratio=0.5",
        )
        list(trainer.rows())
        assert isinstance(trainer.algorithm, DQN_CLASS)
        with torch.no_grad():
            best = trainer.algorithm.network(obs).argmax(1)
        agree.append(float((best == actions).float().mean()))
    assert agree[1] > 0.85 > agree[0]


def test_bad_demonstrations_and_ratios_are_refused_in_one_line() -> None:
    other = played(gymnasium.make("MountainCar-v0"), lambda _: 0, 1, steps=5)
    with pytest.raises(TrainError, match="it was recorded in another environment"):
        trainer_of(other, *DQN)
    with pytest.raises(TrainError, match="leaves no demonstration or nothing else"):
        trainer_of(cartpole(), *DQN, "--demos.offline-ratio=0.01")
    with pytest.raises(TrainError, match="is for prioritized replay, which --algo sac does not use"):
        trainer_of(cartpole(), *SAC, "--demos.priority-bonus=1")
    damaged = cartpole()
    damaged[1].rewards[3] = np.nan
    with pytest.raises(TrainError, match="episode 1: expected finite rewards, got NaN or infinity at step 3"):
        trainer_of(damaged, *DQN)
    assert isinstance(damaged[1], Episode)


def test_a_policy_acts_without_the_demonstrations_of_its_run(tmp_path: Path) -> None:
    settings = settings_of("gym", *SMALL, *DQN, f"--demos={tmp_path / 'gone'}")
    with pytest.raises(TrainError, match="gone has no data set to learn from"):
        find("gym").make_trainer(settings)
    assert not find("gym").to_act().make_trainer(settings).steps
