"""The protocol of algorithms: all of the package follow it, and are found by name."""

import copy
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import fastrl.algorithms
from fastrl.algorithms import AlgorithmError, algorithms, check_takes, declarations, find
from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.protocol import (
    Algorithm,
    DatasetAlgorithm,
    OffPolicyAlgorithm,
    Problem,
    no_exploration,
)

OBS = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
NAMES = [
    "async-ppo",
    "bc",
    "crossq",
    "dqn",
    "impala",
    "ippo",
    "iql",
    "mabc",
    "mappo",
    "ppo",
    "pqn",
    "reinforce",
    "sac",
    "td3",
]


def actions_of(name: str, size: int = 4) -> gymnasium.Space[Any]:
    """Actions that the algorithm takes."""
    return (
        gymnasium.spaces.Box(-1, 1, (size,)) if name in ("crossq", "td3") else gymnasium.spaces.Discrete(size)
    )


def made(name: str, seed: int = 0, **config: Any) -> Algorithm[Any]:
    algorithm = find(name)
    problem = Problem(OBS, actions_of(name), 2, total_timesteps=1000, num_agents=3, seed=seed)
    return algorithm(algorithm.config_type(hidden=(8,), **config), problem)


def test_each_stands_in_the_module_of_its_name() -> None:
    modules = pkgutil.iter_modules(fastrl.algorithms.__path__, "fastrl.algorithms.")
    for module in [importlib.import_module(each.name) for each in modules]:
        for value in vars(module).values():
            if not inspect.isclass(value) or value.__module__ != module.__name__ or inspect.isabstract(value):
                continue
            if issubclass(value, Algorithm) and "name" in dir(value):
                assert module.__name__.endswith(f".{value.name.replace('-', '_')}")
                assert algorithms()[value.name] is value


@pytest.mark.parametrize("name", NAMES)
def test_declarations_say_what_the_algorithms_are(name: str) -> None:
    declared, algorithm = declarations()[name], find(name)
    assert inspect.isabstract(declared)
    assert issubclass(algorithm, declared)
    said = ("name", "summary", "config_type", "many_agents", "network_of", "obs_kinds", "action_kinds")
    assert [getattr(declared, each) for each in said] == [getattr(algorithm, each) for each in said]
    for family in (DatasetAlgorithm, OffPolicyAlgorithm):
        assert issubclass(declared, family) == issubclass(algorithm, family)
    assert getattr(declared, "replay_defaults", {}) == getattr(algorithm, "replay_defaults", {})


# An algorithm in one file, as if it stood among those of the package.
ONE_FILE = """
import sys
import fastrl.algorithms
fastrl.algorithms.__path__.append(sys.argv[1])
from fastrl.algorithms import algorithms, declarations, find
assert "torch" not in sys.modules
print(find("one-file").summary, "one-file" in declarations(), len(algorithms()))
"""


def test_a_new_algorithm_is_one_file(tmp_path: Path) -> None:
    text = 'class OneFile(PPO):\n    name = "one-file"\n    summary = "new"\n'
    (tmp_path / "one_file.py").write_text(f"from fastrl.algorithms.ppo import PPO\n\n\n{text}")
    # A module beside it that is none must not be imported.
    (tmp_path / "helper.py").write_text("raise SystemExit('imported')\n")
    command = [sys.executable, "-c", ONE_FILE, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["new", "True", str(len(NAMES) + 1)], done.stderr


def test_all_are_found_by_name() -> None:
    assert list(algorithms()) == NAMES
    assert find("ppo") is PPO
    assert find("fastrl.algorithms.ppo:PPO") is PPO


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pp0", r"one of async-ppo, .*, td3, or module:Class of your own; got 'pp0'"),
        ("fastrl.nowhere:PPO", "No module named 'fastrl.nowhere'"),
        ("fastrl.algorithms.ppo:PP0", "no attribute 'PP0'"),
        ("fastrl.algorithms.ppo:PPOConfig", "should be a subclass of"),
        ("fastrl.algorithms.actor_critic:ActorCriticLearner", "with all of its methods"),
    ],
)
def test_what_is_no_algorithm_is_refused(name: str, message: str) -> None:
    with pytest.raises(AlgorithmError, match=message):
        find(name)


def problem_of(obs: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> Problem:
    return Problem(obs, actions, 2, total_timesteps=1000)


class ImagesOnly(PPO):
    name = "images-only"
    obs_kinds = frozenset({"image"})


class BoxesOnly(PPO):
    name = "boxes-only"
    action_kinds = frozenset({"box"})


def test_what_an_algorithm_does_not_take_is_refused_with_those_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    discrete, box = gymnasium.spaces.Discrete(4), gymnasium.spaces.Box(-1, 1, (2,))
    image = gymnasium.spaces.Box(0, 255, (9, 9), np.uint8)
    check_takes(PPO, problem_of(OBS, discrete))
    check_takes(ImagesOnly, problem_of(image, discrete))
    check_takes(BoxesOnly, problem_of(OBS, box))
    expected = r"^images-only does not take vector observations such as Box\(-1\.0, 1\.0, \(3,\), float32\);"
    with pytest.raises(
        AlgorithmError, match=f"{expected} these algorithms do: async-ppo, dqn, impala, iql, ppo, pqn, sac$"
    ):
        check_takes(ImagesOnly, problem_of(OBS, discrete))
    with pytest.raises(
        AlgorithmError,
        match=r"^dqn does not take box actions such as Box.*; .* do: async-ppo, crossq, impala, iql, ppo, sac, td3$",
    ):
        check_takes(find("dqn"), problem_of(OBS, box))
    # The environment's own space is shown, not the flat one.
    flat, own = gymnasium.spaces.MultiDiscrete([2, 2]), gymnasium.spaces.MultiBinary(2)
    with pytest.raises(
        AlgorithmError, match=r"^dqn does not take multi-binary actions such as MultiBinary\(2\);"
    ):
        check_takes(find("dqn"), problem_of(OBS, flat), own)
    monkeypatch.setattr("fastrl.algorithms.declarations", lambda: {"images-only": ImagesOnly})
    with pytest.raises(
        AlgorithmError, match=r"^boxes-only does not take discrete actions .*; no algorithm does$"
    ):
        check_takes(BoxesOnly, problem_of(OBS, discrete))


def test_problems_have_rows_of_their_observations() -> None:
    space = gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(3), b=OBS)
    problem = problem_of(space, gymnasium.spaces.Discrete(4))
    assert problem.obs_space is space
    assert (problem.obs_dim, problem.obs_rows.dtype) == (6, np.float32)


@pytest.mark.parametrize("name", NAMES)
class TestEach:
    def test_describes_itself(self, name: str) -> None:
        algorithm = made(name)
        assert algorithm.summary and "\n" not in algorithm.summary
        assert isinstance(algorithm.config, algorithm.config_type)
        assert algorithm.steps == 0
        assert algorithm.max_staleness == (2 if name in ("async-ppo", "impala") else 0)
        assert not algorithm.action_masks

    def test_weights_reach_an_actor(self, name: str) -> None:
        algorithm = made(name)
        buffer = bytearray(algorithm.weights_nbytes)
        algorithm.write_weights(buffer)
        spec = pickle.loads(pickle.dumps(algorithm.actor_spec()))
        actor = spec()
        assert actor.weights_nbytes == algorithm.weights_nbytes
        actor.load(bytes(buffer))
        if hasattr(actor, "write_weights"):
            again = bytearray(actor.weights_nbytes)
            actor.write_weights(again)
            assert again == buffer
        with pytest.raises(ValueError):
            algorithm.write_weights(bytearray(4))

    def test_weights_of_another_run_are_loaded(self, name: str) -> None:
        first, second = made(name, seed=1), made(name, seed=2)
        assert weights_of(first) != weights_of(second)
        assert second.load_policy(first.state_dict()) == []
        assert weights_of(first) == weights_of(second)
        other = find(name)(first.config, Problem(OBS, actions_of(name, 5), 2, 1000, num_agents=3))
        with pytest.raises(ValueError, match=r"its (actions are|network has) "):
            other.load_policy(first.state_dict())

    def test_a_state_that_does_not_fit_its_settings_is_refused(self, name: str) -> None:
        algorithm = made(name)
        state = algorithm.state_dict()
        algorithm.check_state(algorithm.config, state)
        widths = "policy_hidden" if name == "crossq" else "hidden"
        with pytest.raises(ValueError, match="the saved hidden layers are"):
            algorithm.check_state(algorithm.config_type(**{widths: (10**9,)}), state)
        if hasattr(algorithm.config, "policy_hidden"):
            # Widths of the critics alone.
            given = {
                "policy_hidden": tuple(state["policy"]["architecture"]["hidden"]),
                "hidden": (10**6, 10**6),
            }
            with pytest.raises(ValueError, match=r"of 2 hidden layers, of or for .* numbers, is claimed"):
                algorithm.check_state(algorithm.config_type(**given), state)
        copied = made(name, seed=3)
        copied.load_state_dict(copy.deepcopy(state))
        assert weights_of(copied) == weights_of(algorithm)


def weights_of(algorithm: Algorithm[Any]) -> bytearray:
    buffer = bytearray(algorithm.weights_nbytes)
    algorithm.write_weights(buffer)
    return buffer


@pytest.mark.parametrize("size", ["num_envs", "num_agents", "total_timesteps"])
def test_a_problem_has_sizes(size: str) -> None:
    sizes = {"num_envs": 1, "total_timesteps": 1, size: 0}
    with pytest.raises(ValueError, match=f"{size} must be at least 1, got 0"):
        Problem(OBS, OBS, **sizes)


def test_replay_and_exploration_are_described() -> None:
    plain: Any = made("dqn", batch_size=32, n_step=2, gamma=0.9)
    spec = plain.replay_spec()
    assert (spec.batch_size, spec.n_step, spec.gamma, spec.prioritized) == (32, 2, 0.9, None)
    assert pickle.loads(pickle.dumps(plain.exploration()))(0) == 1
    other: Any = made("dqn", noisy=True, prioritized=True, alpha=0.3, beta=0.2)
    assert (other.replay_spec().prioritized.alpha, other.replay_spec().prioritized.beta(0)) == (0.3, 0.2)
    assert other.exploration() is no_exploration
