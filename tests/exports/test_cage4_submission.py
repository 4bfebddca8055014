"""Submissions to CAGE Challenge 4 act as their policies, and need NumPy and the challenge's wrapper alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

import fastrl
from fastrl.cli.main import main
from fastrl.envs import Cage4VectorEnv
from fastrl.exports.cage4_agent import Network
from fastrl.exports.cage4_submission import export_submission
from fastrl.exports.graph import ExportError
from fastrl.networks.action_space import Actions
from fastrl.networks.multi_agent import MultiAgentPolicy, PolicyNetwork
from fastrl.play.team_policy import TeamPolicy

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "hidden": (16,), "eval_episodes": 0}

# CybORG's wrapper on the compiled simulator, and a loop like that of the challenge's evaluation.
STAND_IN = """
import numpy as np
from fastrl.envs.cage4.env import AGENTS, Cage4VectorEnv


class BlueFlatWrapper:
    def __init__(self, env, pad_spaces=False):
        assert pad_spaces
        self.env = env

    def reset(self, seed=None):
        obs, _ = self.env.reset(seed=seed)
        return dict(zip(AGENTS, obs[0].astype(int))), {}

    def action_mask(self, name):
        return self.env.action_masks()[AGENTS.index(name)].tolist()

    def step(self, actions, messages):
        self.env.send(np.packbits([messages[name] for name in AGENTS]).reshape(1, 5))
        obs, rewards, *_ = self.env.step([[actions[name] for name in AGENTS]])
        return dict(zip(AGENTS, obs[0].astype(int))), float(rewards[0, 0])
"""
EVALUATION = """
import json, sys
from submission import Submission
from fastrl.envs.cage4.env import Cage4VectorEnv
env = Submission.wrap(Cage4VectorEnv(1, random="numpy", autoreset_mode="disabled"))
rewards = []
for seed in (3, 4):
    observations, _ = env.reset(seed=seed)
    for _ in range(40):
        observations, reward = env.step(
            {name: agent.get_action(observations[name]) for name, agent in Submission.AGENTS.items()}
        )
        rewards.append(reward)
assert not any(name in sys.modules for name in ("torch", "fastrl.exports", "fastrl.networks"))
json.dump([Submission.NAME, rewards], sys.stdout)
"""


def stirred(model: Any) -> Any:
    """A model whose choices depend on what it observes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@pytest.mark.parametrize("view", [{"view": "challenge"}, {"view": "hosts", "messages": 2}])
def test_the_file_plays_as_the_policy_without_pytorch(view: dict[str, Any], tmp_path: Path) -> None:
    model = stirred(fastrl.IPPO("fastrl/Cage4-v0", **view, memory="gru", memory_size=8, **SMALL))
    found = export_submission(model, tmp_path / "submission.py")
    assert (found.actions, found.different, found.ties) == (40 * 5, 0, 0)
    wrappers = tmp_path / "CybORG" / "Agents" / "Wrappers"
    wrappers.mkdir(parents=True)
    (wrappers / "__init__.py").write_text(STAND_IN)
    path = os.pathsep.join([str(Path(fastrl.__file__).parents[1]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", EVALUATION],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    env = Cage4VectorEnv(1, random="numpy", **view, autoreset_mode="disabled")
    act, rewards = model.policy.act_in(env, action_masks=True), []
    for seed in (3, 4):
        (obs, _), states = env.reset(seed=seed), None
        for _ in range(40):
            actions, states = act(obs[0], np.ones(5, np.bool_), states)
            obs, earned, *_ = env.step(actions.reshape(1, -1))
            rewards.append(float(earned[0, 0]))
    assert json.loads(done.stdout) == ["fastrl ippo", rewards]


@pytest.mark.slow
def test_the_check_plays_whole_episodes(tmp_path: Path) -> None:
    model = stirred(fastrl.IPPO("fastrl/Cage4-v0", **SMALL))
    found = export_submission(model, tmp_path / "submission.py", check=True, episodes=1)
    assert (found.actions, found.different, found.ties, found.episodes) == (499 * 5, 0, 0, 1)
    assert found.mean_return < 0


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_equals_are_chosen_among_as_by_compiled_actors(memory: Any, activation: Any) -> None:
    """Outputs that differ by roundings alone: those of other sums would be other choices."""
    generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(2)
    policy = PolicyNetwork(
        9,
        Actions(Discrete(12)),
        num_ids=2,
        hidden=(64, 64),
        activation=activation,
        memory=memory,
        memory_size=64,
        normalize_obs=True,
        generator=generator,
    )
    policy.observe(torch.randn(50, 9, generator=generator))
    with torch.no_grad():
        last = policy.body[-1].weight
        assert isinstance(last, torch.nn.Parameter)
        # The same weights in another order, for features that are alike.
        last.copy_(torch.randn(1, 64, generator=generator).expand_as(last))
        last.mul_(1 + 2**-23 * torch.randint(-1, 2, last.shape, generator=generator))
    team = MultiAgentPolicy(["one", "one"], {"one": policy}, policy.actions)
    weights = np.zeros(policy.actor_nbytes // 4, np.float32)
    policy.actor_weights(weights)
    architecture = policy.actor_architecture()
    assert architecture is not None
    network, compiled = Network(architecture, weights), TeamPolicy(team.state())
    states = np.zeros((2, compiled.state_size), np.float32) if memory != "none" else None
    own, index = [network.start(), network.start()], np.eye(2, dtype=np.float32)
    chosen = []
    for _ in range(100):
        rows = rng.normal(size=(2, 9)).astype(np.float32) * (rng.random((2, 9)) < 0.5)
        theirs = compiled.act(rows, np.ones(2, np.bool_), states=states)
        for agent in (0, 1):
            logits, own[agent] = network.outputs(np.append(rows[agent], index[agent]), own[agent])
            assert logits.dtype == np.float32 and logits.argmax() == theirs[agent]
        chosen += theirs.tolist()
    assert len(set(chosen)) > 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fastrl.PPO("CartPole-v1", num_envs=1), "a run of fastrl train cage4, this one is of gym"),
        (lambda: fastrl.IPPO("fastrl/Cage4-v0", activation="elu", **SMALL), "the activations relu and tanh"),
    ],
)
def test_other_policies_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message):
        export_submission(make(), tmp_path / "submission.py")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected either --out FILE or --cage4-submission FILE"),
        (["--out", "a.onnx", "--cage4-submission", "b.py"], "expected either --out"),
        (["--quantize", "int8", "--cage4-submission", "b.py"], "--quantize: a submission"),
        (["--cage4-submission", "."], ". exists: choose another name, or remove it"),
    ],
)
def test_the_command_refuses_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path), *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("fastrl export: error: ") and message in line
