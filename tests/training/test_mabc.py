"""Behaviour cloning of many agents: from recordings to clones, and on with reinforcement learning."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import differences, untimed_state

import fastrl
from fastrl.cli.main import main
from fastrl.runs.errors import TrainError
from fastrl.utils.env_options import parse_options
from fastrl.utils.errors import UserError

# Of Leavers with a perfect expert: agents are there for 3, 6 and 4 steps.
BEST = 13 / 3


def teacher(obs: Any, agent: str) -> int:
    return int(obs[0] > 0)


def steering(obs: Any, agent: str) -> Any:
    return np.float32([0.5 * obs[0]])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes recordings, each once."""
    folder = tmp_path_factory.mktemp("demos")

    def record(env: str, expert: Any = teacher, episodes: int = 30, **options: Any) -> Path:
        out = folder / f"{env.rpartition(':')[2]} {getattr(expert, '__name__', expert)} {len(options)}"
        if not out.exists():
            fastrl.demos.record(env, expert, episodes, out, collector="sequential", env_options=options)
        return out

    return record


def clone_of(env: str, demos: Path, **settings: Any) -> Any:
    own = {"epochs": 20, "hidden": [16], "seed": 0, "device": "cpu", "batch_size": 64, "eval_episodes": 0}
    return fastrl.MABC(env, demos=demos, **(own | settings))


@pytest.mark.parametrize("env", ["parallel_toys:Leavers", "parallel_toys:Differing"])
def test_clones_act_as_their_expert_and_ippo_goes_on_from_them(
    env: str, recorded: Any, tmp_path: Path
) -> None:
    demos = recorded(env)
    model = clone_of(env, demos, normalize_obs=True)
    model.learn(run_dir=tmp_path / "clone")
    assert model.trainer.source.metrics()["dataset/validation_accuracy"] == 1
    assert model.evaluate(episodes=10) == (pytest.approx(BEST), pytest.approx(0))
    names = ("shared",) if env.endswith("Leavers") else ("group0", "group1")
    assert tuple(model.trainer.algorithm.actors) == names
    for algorithm in (fastrl.IPPO, fastrl.MAPPO):
        own = {"hidden": [16], "num_envs": 4, "num_steps": 16, "normalize_obs": True, "eval_episodes": 0}
        learner = algorithm(env, init_from=tmp_path / "clone", seed=1, device="cpu", **own)
        assert learner.evaluate(episodes=10)[0] == pytest.approx(BEST)
        learner.learn(256)
        assert learner.evaluate(episodes=10)[0] == pytest.approx(BEST)
    loaded = fastrl.load(tmp_path / "clone")
    assert loaded.predict({"a": np.float32([1, 0])})[0] == {"a": 1}


def test_each_policy_learns_from_its_agents_alone(recorded: Any) -> None:
    demos = recorded("parallel_toys:Differing")
    model = clone_of("parallel_toys:Differing", demos, normalize_obs=True, validation=0.0, epochs=1)
    model.learn()
    data = fastrl.demos.load(demos)
    for name, agents in (("group0", (0, 2)), ("group1", (1,))):
        own = [each.observations[:-1] for each in data if each.infos["agent"][0] in agents]
        rows = torch.from_numpy(np.concatenate(own)).double()
        norm = model.trainer.algorithm.actors[name].network.obs_norm
        torch.testing.assert_close(norm.mean, rows.mean(0))
        torch.testing.assert_close(norm.var, rows.var(0, correction=0))


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("parallel_toys:Leavers", {"agent_ids": True, "share": False}),
        ("parallel_toys:Leavers", {"env__options": ("continuous=true",), "loss": "mse"}),
        ("parallel_toys:Differing", {"patience": 2, "label_smoothing": 0.1, "entropy_coef": 0.01}),
        ("parallel_toys:Kinds", {"env__options": ('obs="mixed"', 'actions="multi_binary"')}),
    ],
    ids=["a policy each", "continuous", "patience", "images"],
)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(
    env: str, settings: dict[str, Any], recorded: Any
) -> None:
    options = parse_options(settings.get("env__options", ()))
    expert = {"Leavers": steering if options else teacher, "Differing": teacher, "Kinds": "random"}
    demos = recorded(env, expert[env.rpartition(":")[2]], **options)
    own = {"row_seconds": 0, "epochs": 4, **settings}
    straight, first, second = (clone_of(env, demos, **own).trainer for _ in range(3))
    expected = [row.record() for row in straight.rows()]
    stop = len(expected) // 2
    rows = first.rows()
    found = [row.record() for row in islice(rows, stop)]
    rows.close()
    second.load_state_dict(first.state_dict())
    found += [row.record() for row in second.rows()]
    assert differences(*(untimed_state(each.state_dict()) for each in (second, straight))) == []
    losses = [[row["train/loss"] for row in each] for each in (found, expected)]
    assert losses[0] == losses[1]
    if "Kinds" not in env:
        assert losses[0][-1] < losses[0][0]


def test_the_command_line_records_clones_and_goes_on(tmp_path: Path, capfd: Any) -> None:
    env, demos = "parallel_toys:Leavers", tmp_path / "demos"
    record = ["demos", "record", env, "--expert", "test_mabc:teacher", "--episodes", "20", "--trust"]
    assert main([*record, "--out", str(demos)]) == 0
    assert main(["demos", "replay", str(demos), "--trust"]) == 0
    assert main(["demos", "show", str(demos)]) == 0
    assert "agents, group0" in capfd.readouterr().out
    clone = ["train", env, "--algo=mabc", f"--demos={demos}", "--mabc.hidden=16", "--mabc.epochs=10"]
    assert main([*clone, f"--run-dir={tmp_path / 'clone'}", "--device=cpu"]) == 0
    assert main(["eval", str(tmp_path / "clone"), "--trust", "--episodes=4"]) == 0
    assert "4.33" in capfd.readouterr().out
    on = ["train", env, "--algo=ippo", f"--init={tmp_path / 'clone'}", "--ippo.hidden=16", "--device=cpu"]
    further = ["--total-timesteps=128", "--num-envs=2", "--ippo.num-steps=16", "--run.eval-episodes=0"]
    assert main([*on, *further, f"--run-dir={tmp_path / 'agent'}"]) == 0
    assert "critics differ and start with new weights" in capfd.readouterr().out


def test_a_clone_starts_policies_without_a_memory_alone(recorded: Any, tmp_path: Path) -> None:
    env, options = "parallel_toys:Leavers", {"hidden": [8], "num_envs": 2, "device": "cpu"}
    clone_of(env, recorded(env), hidden=[8], epochs=1).learn(run_dir=tmp_path / "clone")
    line = (
        r"its policy 'shared' has memory none, not gru: set memory to none; clones of many agents have none"
    )
    with pytest.raises(TrainError, match=line):
        fastrl.IPPO(env, init=tmp_path / "clone", memory="gru", **options)
    fastrl.IPPO(env, memory="gru", **options).save(tmp_path / "gru.safetensors")
    with pytest.raises(TrainError, match="has memory gru, not none: set memory to gru"):
        fastrl.IPPO(env, init=tmp_path / "gru.safetensors", **options)


class Calm(fastrl.algorithms.MABC):
    """Adds a term to the loss."""

    def loss(self, batch: Any) -> Any:
        return super().loss(batch) + 10 * batch.outputs.square().mean()


def test_a_subclass_changes_the_loss(recorded: Any) -> None:
    env, sizes = "parallel_toys:Leavers", []
    for algorithm in ("mabc", Calm):
        own = {"epochs": 20, "hidden": [16], "seed": 0, "device": "cpu", "batch_size": 64, "eval_episodes": 0}
        model = fastrl.Model(env, algo=algorithm, demos=recorded(env), **own)
        model.learn()
        network = model.trainer.algorithm.actors["shared"].network
        sizes.append(float(network(torch.tensor([[1.0, 0.5]]), torch.tensor([0])).abs().max()))
    assert sizes[1] < sizes[0] / 2


def test_vehicles_are_cloned(tmp_path: Path) -> None:
    own: dict[str, Any] = {"vehicles": 2, "duration": 4.0, "seed": 0, "device": "cpu", "hidden": [8]}
    run = fastrl.IPPO("fastrl/coop-merge-v0", num_envs=2, num_steps=8, eval_episodes=0, **own)
    run.learn(total_episodes=4, run_dir=tmp_path / "run")
    demos = fastrl.demos.record(None, tmp_path / "run", 30, tmp_path / "demos")
    assert len(demos) == 60
    clone = fastrl.MABC("fastrl/coop-merge-v0", demos=demos, epochs=100, eval_episodes=0, **own)
    clone.learn()
    assert clone.trainer.source.metrics()["dataset/validation_accuracy"] > 0.9
    assert np.isfinite(clone.evaluate(episodes=2)[0])


@pytest.mark.parametrize(
    ("env", "settings", "line"),
    [
        ("parallel_toys:Masked", {}, "was recorded in parallel_toys:Leavers, not in parallel_toys:Masked"),
        ("parallel_toys:Leavers", {"patience": 3, "validation": 0.0}, "set validation above 0"),
        ("parallel_toys:Leavers", {"policies": ["one"]}, "name the policy of each of 3 agents, got 1 names"),
        ("parallel_toys:Leavers", {"loss": "mse"}, "loss mse is for continuous actions"),
    ],
)
def test_what_does_not_go_together_is_refused(
    env: str, settings: dict[str, Any], line: str, recorded: Any
) -> None:
    with pytest.raises(UserError, match=line):
        clone_of(env, recorded("parallel_toys:Leavers"), **settings)


def test_demonstrations_of_one_agent_are_refused(recorded: Any, tmp_path: Path) -> None:
    demos = fastrl.demos.load(recorded("parallel_toys:Leavers"))
    facts = {"env": demos.meta["env"]}
    with fastrl.demos.EpisodeWriter(tmp_path / "one", facts, demos.obs_space, demos.action_space) as writer:
        writer.write_all(demos)
    with pytest.raises(TrainError, match=r"has no names of agents, parallel_toys:Leavers has a, b, late"):
        clone_of("parallel_toys:Leavers", tmp_path / "one")
    facts, lives = facts | {"agents": demos.meta["agents"]}, [replace(each, infos=None) for each in demos]
    with fastrl.demos.EpisodeWriter(tmp_path / "any", facts, demos.obs_space, demos.action_space) as writer:
        writer.write_all(lives)
    with pytest.raises(TrainError, match=r"episode 0: it does not say which agent's it is"):
        clone_of("parallel_toys:Leavers", tmp_path / "any").learn()
    with pytest.raises(UserError, match="mabc does not learn in CartPole-v1; these do"):
        fastrl.MABC("CartPole-v1", demos=tmp_path / "one")
    with pytest.raises(UserError, match="makes a PettingZoo ParallelEnv, which ippo"):
        fastrl.BC("parallel_toys:Leavers", demos=tmp_path / "one")
