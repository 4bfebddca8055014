from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gymnasium.spaces import Discrete
from torch import nn

import fastrl
from fastrl.algorithms.protocol import Problem
from fastrl.runs.errors import TrainError
from fastrl.training.device import CPU_WEIGHTS, make_algorithm

PROBLEM = Problem(Discrete(2), Discrete(2), num_envs=1, total_timesteps=1)


def maker(backend: str, units: int, made: list[str], refused: str = "") -> Any:
    def make(problem: Problem) -> Any:
        made.append(problem.device)
        if problem.device == refused:
            raise ValueError("settings that only a GPU takes")
        return SimpleNamespace(update_backend=backend, networks=lambda: [nn.Linear(units, 64)])

    return make


@pytest.mark.parametrize(
    ("backend", "units", "refused", "expected"),
    [
        ("compiled", 64, "", "cpu"),
        ("compiled", CPU_WEIGHTS // 64 + 1, "", "cuda"),
        ("torch", 64, "", "cuda"),
        ("compiled", 64, "cpu", "cuda"),
    ],
)
def test_small_networks_with_compiled_steps_learn_beside_the_gpu(
    backend: str, units: int, refused: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("auto", "cpu", "cuda"):
        made: list[str] = []
        if name == refused:
            continue
        _, device = make_algorithm(name, PROBLEM, maker(backend, units, made, refused))
        assert device == made[-1] == (expected if name == "auto" else name)
        assert len(made) == (2 if name == "auto" and expected == "cuda" else 1)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made: list[str] = []
    assert make_algorithm("auto", PROBLEM, maker("torch", 64, made))[1] == "cpu"
    assert made == ["cpu"]
    with pytest.raises(TrainError, match="finds no CUDA device"):
        make_algorithm("cuda", PROBLEM, maker("torch", 64, made))


def test_a_run_of_ppo_says_where_it_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model = fastrl.Model("CartPole-v1", algo="ppo", num_envs=2, num_steps=8, eval_episodes=0)
    model.learn(16, progress=False)
    assert model.summary is not None and model.summary.device == "cpu"
