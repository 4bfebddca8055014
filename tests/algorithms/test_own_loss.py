"""Losses of a user's own: with every collector, masks, a memory, ranks; they resume exactly."""

import io
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from demo_sets import cartpole_expert, played
from rank_runs import RankProcesses
from rich.console import Console
from small_runs import differences, settings_of, trainer_of, untimed_state

import fastrl
from fastrl.runs.checkpoint import checksum
from fastrl.runs.errors import TrainError
from fastrl.tasks import find
from fastrl.utils.ranks import ALONE, Ranks

COMMON = (
    *("--num-envs=4", "--ppo.num-steps=16", "--ppo.minibatch-size=32", "--ppo.num-epochs=2"),
    *("--total-timesteps=256", "--run.eval-episodes=0", "--run.torch-threads=1", "--device=cpu"),
    *("--run.row-seconds=0", "--run.seed=3"),
)
CARTPOLE, SMALL = "--env=CartPole-v1", "--ppo.hidden=8"
RUNS = {
    "native with masks": ("--env=fastrl/Cage2-v0", "--collector=native", "--ppo.action-masks", SMALL),
    "sequential": (CARTPOLE, "--collector=sequential", SMALL),
    "sync": (CARTPOLE, "--collector=sync", "--n-workers=2", SMALL),
    "executor": (CARTPOLE, "--collector=executor", "--n-workers=2", SMALL),
    "memory": (CARTPOLE, "--collector=sequential", SMALL, "--ppo.memory=gru", "--ppo.memory-size=4"),
    "dropout": (CARTPOLE, "--collector=sequential", SMALL, "--ppo.dropout=0.2"),
    "first policy": (CARTPOLE, "--collector=sequential", SMALL, "--ppo.init-kl-coef=0.5"),
}


def trained(*options: str, algo: str = "", updates: int = 4) -> Any:
    trainer = trainer_of("gym", *COMMON, *options, *([f"--algo=own_losses:{algo}"] if algo else []))
    for _ in islice(trainer.rows(), updates):
        pass
    return trainer


def weights_of(trainer: Any) -> Any:
    return trainer.algorithm.policy_state()["weights"]


@pytest.mark.parametrize("name", RUNS)
def test_a_loss_of_the_users_own_learns_and_resumes_exactly(name: str) -> None:
    plain, same = trained(*RUNS[name], "--ppo.update-backend=torch"), trained(*RUNS[name], algo="Same")
    assert differences(weights_of(plain), weights_of(same)) == []
    calm = trained(*RUNS[name], algo="Calm")
    assert differences(weights_of(calm), weights_of(plain)) != []
    half = trained(*RUNS[name], algo="Calm", updates=2)
    resumed = trainer_of("gym", *COMMON, *RUNS[name], "--algo=own_losses:Calm")
    resumed.load_state_dict(half.state_dict())
    for _ in resumed.rows():
        pass
    states = [untimed_state(each.state_dict())["learner"] for each in (calm, resumed)]
    assert differences(*states) == []


def train_calm(ranks: Ranks) -> Any:
    settings = settings_of("gym", *COMMON, *RUNS["sequential"], "--algo=own_losses:Calm", "--run.shards=2")
    trainer: Any = find("gym").with_ranks(ranks).make_trainer(settings)
    for _ in trainer.rows():
        pass
    return {name: tensor.numpy() for name, tensor in weights_of(trainer).items()}


@pytest.mark.slow
def test_two_ranks_learn_by_it_what_one_learns(on_ranks: RankProcesses) -> None:
    [alone] = on_ranks(1, train_calm)
    for found in on_ranks(2, train_calm):
        assert all(np.array_equal(found[name], alone[name]) for name in alone)


TEAM = ("traffic", "--vehicles=3", "--num-envs=4", "--total-timesteps=192")
OTHERS = {
    "IPPO": (*TEAM, "--collector=native"),
    "IPPO, executor": (*TEAM, "--collector=executor", "--n-workers=2"),
    "MAPPO": (*TEAM, "--collector=native"),
    "MAPPO, sequential": (*TEAM, "--collector=sequential"),
    "REINFORCE": (*TEAM, "--collector=native"),
    "IMPALA": ("gym", CARTPOLE, "--collector=sequential", "--num-envs=4", "--total-timesteps=192"),
    "BC": ("gym", CARTPOLE, "--bc.batch-size=40", "--epochs=2"),
}


def trained_other(ranks: Ranks, name: str, algo: str, *options: str) -> dict[str, Any]:
    """The policy after a whole run of another algorithm than PPO."""
    task_name, *own = OTHERS[name]
    section = name.partition(",")[0].lower()
    task = find(task_name).with_ranks(ranks)
    if section == "bc":
        task = task.with_demos(played(gymnasium.make("CartPole-v1"), cartpole_expert, 6, steps=40))
    else:
        options = (*options, f"--{section}.num-steps=16")
    fixed = ("--run.eval-episodes=0", "--run.torch-threads=1", "--device=cpu", "--run.seed=3")
    trainer: Any = task.make_trainer(
        settings_of(task_name, *own, f"--algo={algo}", f"--{section}.hidden=8", *fixed, *options)
    )
    for _ in trainer.rows():
        pass
    state = trainer.algorithm.policy_state()
    weights = state["weights"] if "weights" in state else state["actors"]["shared"]["weights"]
    return {key: tensor.numpy().copy() for key, tensor in weights.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_of_the_users_own_of_other_algorithms(name: str) -> None:
    algo = name.partition(",")[0]
    backend = () if algo == "IMPALA" else (f"--{algo.lower()}.update-backend=torch",)
    plain = trained_other(ALONE, name, algo.lower(), *backend)
    calm = trained_other(ALONE, name, f"own_losses:Calm{algo}")
    again = trained_other(ALONE, name, f"own_losses:Calm{algo}")
    assert all(np.array_equal(calm[key], again[key]) for key in calm)
    assert any(not np.array_equal(calm[key], plain[key]) for key in plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["IPPO", "MAPPO", "IMPALA", "BC"])
def test_two_ranks_learn_by_it_of_other_algorithms_what_one_learns(
    on_ranks: RankProcesses, name: str
) -> None:
    arguments = (name, f"own_losses:Calm{name}", "--run.shards=2")
    [alone] = on_ranks(1, trained_other, *arguments)
    for found in on_ranks(2, trained_other, *arguments):
        assert all(np.array_equal(found[key], alone[key]) for key in alone)


MASKED = ("pettingzoo", "--env=parallel_toys:Masked", "--num-envs=4", "--total-timesteps=96")
TWO_WORKERS = ("--collector=executor", "--n-workers=2")
# Environment and settings, and two collectors.
CRITICS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "IPPO": ((*TEAM,), (("--collector=native",), TWO_WORKERS)),
    "MAPPO": ((*TEAM,), (("--collector=native",), ("--collector=sequential",))),
    "REINFORCE": ((*TEAM, "--reinforce.critic=own"), (("--collector=native",), ("--collector=sequential",))),
    "IPPO, memory": ((*TEAM, "--ippo.memory=gru"), (("--collector=native",), ("--collector=sequential",))),
    "MAPPO, masks": (
        (*MASKED, "--mappo.action-masks"),
        (("--collector=sequential",), ("--collector=sync", "--n-workers=2")),
    ),
}


def critics_trainer(ranks: Ranks, name: str, algo: str, *options: str) -> Any:
    """A run in small minibatches; an update has several of them for critics."""
    section = name.partition(",")[0].lower()
    task_name, *own = CRITICS[name][0]
    sizes = (f"--{section}.num-steps=8", f"--{section}.hidden=8", f"--{section}.minibatch-size=40")
    fixed = ("--run.eval-episodes=0", "--run.torch-threads=1", "--device=cpu", "--run.seed=3")
    settings = settings_of(task_name, *own, f"--algo={algo}", *sizes, *fixed, "--run.row-seconds=0", *options)
    return find(task_name).with_ranks(ranks).make_trainer(settings)


def networks_after(ranks: Ranks, name: str, algo: str, *options: str) -> Any:
    """Policies and critics after a whole run."""
    trainer = critics_trainer(ranks, name, algo, *options)
    for _ in trainer.rows():
        pass
    state = trainer.algorithm.state_dict()
    return {part: state[part] for part in ("actors", "critics")}


@pytest.mark.parametrize("name", CRITICS)
def test_a_loss_of_the_users_own_of_critics_of_many_agents(name: str) -> None:
    algo = name.partition(",")[0]
    own, (collector, other) = f"own_losses:Critic{algo}", CRITICS[name][1]
    torchs = f"--{algo.lower()}.update-backend=torch"
    plain = networks_after(ALONE, name, algo.lower(), *collector, torchs)
    changed = networks_after(ALONE, name, own, *collector)
    assert differences(plain["critics"], changed["critics"])
    assert differences(changed, networks_after(ALONE, name, own, *other)) == []
    half, resumed = (critics_trainer(ALONE, name, own, *collector) for _ in range(2))
    for _ in islice(half.rows(), 2):
        pass
    resumed.load_state_dict(half.state_dict())
    for _ in resumed.rows():
        pass
    state = resumed.algorithm.state_dict()
    assert half.algorithm.updates < resumed.algorithm.updates
    assert differences(changed, {part: state[part] for part in changed}) == []


@pytest.mark.parametrize(("name", "agents"), [("IPPO", None), ("MAPPO", 3), ("MAPPO, masks", 3)])
def test_the_batch_of_critics_has_each_step_of_living_agents_once(name: str, agents: int | None) -> None:
    section = name.partition(",")[0].lower()
    options = (f"--{section}.learning-rate=0", f"--{section}.critic-epochs=1", CRITICS[name][1][0][0])
    algorithm = critics_trainer(ALONE, name, section, *options, f"--{section}.update-backend=torch")
    learner, batches = algorithm.algorithm, []
    known = learner.critic_loss

    def critic_loss(batch: Any) -> Any:
        batches.append(batch)
        return known(batch)

    learner.critic_loss = critic_loss
    next(algorithm.rows())
    rollout = learner.rollout
    for batch in batches:
        assert batch.obs.shape[1:] == ((agents,) if agents else ()) + rollout.obs.shape[2:]
        # Its values have gradients, and do not change without a learning rate.
        torch.testing.assert_close(batch.values.detach(), batch.old_values, rtol=1e-4, atol=1e-5)
    found = [torch.cat([getattr(batch, field) for batch in batches]) for field in ("returns", "agents")]
    alive = rollout.alive[:-1]
    numbers = np.broadcast_to(np.arange(rollout.num_rows) % 3, alive.shape)
    for values, expected in zip(found, (rollout.returns, numbers), strict=True):
        np.testing.assert_array_equal(values.sort().values, np.sort(expected[alive]))


def checksum_of_networks(ranks: Ranks, name: str, algo: str, *options: str) -> str:
    return checksum(networks_after(ranks, name, algo, *options))


@pytest.mark.slow
@pytest.mark.parametrize("name", CRITICS)
def test_critics_learn_by_it_on_two_ranks_what_they_learn_on_one(on_ranks: RankProcesses, name: str) -> None:
    arguments = (
        name,
        f"own_losses:Critic{name.partition(',')[0]}",
        *CRITICS[name][1][0],
        "--run.shards=2",
    )
    assert set(on_ranks(2, checksum_of_networks, *arguments)) == set(
        on_ranks(1, checksum_of_networks, *arguments)
    )


@pytest.mark.parametrize("algo", ["IPPO", "REINFORCE"])
def test_pytorch_takes_the_steps_of_changed_critics(algo: str) -> None:
    trainer = critics_trainer(ALONE, algo, f"own_losses:Critic{algo}", "--collector=native")
    why = f"compiled ones are for {algo}'s own critic_loss"
    assert trainer.algorithm.remarks() == [f"PyTorch takes the gradient steps: {why}"]
    compiled = f"--{algo.lower()}.update-backend=compiled"
    with pytest.raises(TrainError, match="update_backend compiled is for"):
        critics_trainer(ALONE, algo, f"own_losses:Critic{algo}", "--collector=native", compiled)


PENDULUM = "--env=Pendulum-v1"
REPLAYS: dict[str, tuple[str, ...]] = {
    "SAC": (PENDULUM,),
    "SAC, discrete with masks": ("--env=few_allowed:FewAllowed", "--sac.action-masks"),
    "TD3": (PENDULUM,),
    "IQL": (PENDULUM,),
    "IQL, discrete": (CARTPOLE,),
    "DQN": (CARTPOLE,),
}


def replay_trainer(ranks: Ranks, name: str, algo: str, *options: str) -> Any:
    section = algo.removeprefix("own_losses:Calm").lower()
    fixed = (f"--{section}.hidden=8", f"--{section}.batch-size=20", "--num-envs=4", "--total-timesteps=160")
    rate = (f"--{section}.learning-rate=1e-3", f"--{section}.final-learning-rate=1e-3")
    replay = (
        *("--replay.learning-starts=32", "--replay.train-freq=8", "--replay.updates-per-step=0.25"),
        *("--replay.save", "--no-replay.overlap"),
    )
    common = ("--run.eval-episodes=0", "--run.torch-threads=1", "--device=cpu", "--run.seed=3")
    collector = () if any("collector" in each for each in options) else ("--collector=sequential",)
    given = (f"--algo={algo}", *REPLAYS[name], *fixed, *rate, *replay, *common, *collector, *options)
    return find("gym").with_ranks(ranks).make_trainer(settings_of("gym", "--run.row-seconds=0", *given))


def state_after(ranks: Ranks, name: str, algo: str, *options: str) -> Any:
    """State of the algorithm after a whole run."""
    trainer = replay_trainer(ranks, name, algo, *options)
    for _ in trainer.rows():
        pass
    assert trainer.algorithm.updates > 8
    return trainer.algorithm.state_dict()


def checksum_after(ranks: Ranks, name: str, algo: str, *options: str) -> str:
    return checksum(state_after(ranks, name, algo, *options))


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYS)
def test_losses_of_the_users_own_of_algorithms_with_a_replay(name: str, tmp_path: Path) -> None:
    algo = name.partition(",")[0]
    own = f"own_losses:Calm{algo}"
    plain, calm = state_after(ALONE, name, algo.lower()), state_after(ALONE, name, own)
    parts = ("explorer",) if algo == "DQN" else ("policy", "critics")
    assert all(differences(plain[part], calm[part]) for part in parts)
    assert differences(calm, state_after(ALONE, name, own, "--collector=executor", "--n-workers=2")) == []
    half, resumed = replay_trainer(ALONE, name, own), replay_trainer(ALONE, name, own)
    rows = half.rows()
    while half.algorithm.updates < 10:
        next(rows)
    rows.close()
    assert half.algorithm.updates < calm["updates"]
    half.source.save_files(tmp_path)
    resumed.source.load_files(tmp_path)
    resumed.load_state_dict(half.state_dict())
    for _ in resumed.rows():
        pass
    assert differences(calm, resumed.algorithm.state_dict()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYS)
def test_two_ranks_learn_by_them_what_one_learns(on_ranks: RankProcesses, name: str) -> None:
    arguments = (name, f"own_losses:Calm{name.partition(',')[0]}", "--run.shards=2")
    assert set(on_ranks(2, checksum_after, *arguments)) == set(on_ranks(1, checksum_after, *arguments))


@pytest.mark.parametrize(
    ("algo", "why"), [("Calm", "PPO's own loss"), ("More", "PPO's own settings, without weight")]
)
def test_pytorch_takes_the_steps_of_what_compiled_ones_do_not_know(algo: str, why: str) -> None:
    said = f"PyTorch takes the gradient steps: compiled ones are for {why}"
    model = fastrl.Model("CartPole-v1", algo=f"own_losses:{algo}", num_envs=4, collector="sequential")
    assert model.trainer.algorithm.remarks() == [said]
    with pytest.raises(TrainError, match=f"update_backend compiled is for {why}"):
        fastrl.Model("CartPole-v1", algo=f"own_losses:{algo}", update_backend="compiled")


def test_a_run_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastrl.training import run

    out, task = io.StringIO(), find("gym")
    settings = settings_of("gym", *COMMON, *RUNS["sequential"], "--algo=own_losses:Calm")
    run.train(task, task.make_trainer(settings), settings, None, Console(file=out, width=200))
    assert (
        out.getvalue().count("PyTorch takes the gradient steps: compiled ones are for PPO's own loss\n") == 1
    )


def test_compiled_steps_know_every_setting_of_ppo() -> None:
    for name in ("ppo", "async-ppo"):
        model = fastrl.Model("CartPole-v1", algo=name, num_envs=4, collector="sequential")
        assert model.trainer.algorithm.remarks() == []
        assert model.trainer.algorithm.compiled_update is not None
