"""int8 exports are kept where they play as well as the plain ones, and are smaller or faster."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import fastrl
from fastrl.cli.main import main
from fastrl.exports import quantize
from fastrl.exports.graph import ExportError
from fastrl.exports.quantize import Quantization


def measured(returns: list[float], size: int = 50, seconds: float = 2e-6) -> Quantization:
    # A mean of 10 with a standard error of 1.
    return Quantization(np.array([9.0, 11.0]), np.array(returns), 100, size, 1e-6, seconds)


def test_the_score_may_fall_by_less_than_a_standard_error() -> None:
    assert measured([9.1, 9.1]).accepted and measured([20, 20]).accepted
    assert not measured([9, 9]).accepted and not measured([0, 0]).accepted
    assert not measured([10, 10], size=100).accepted and measured([10, 10], 100, 0.5e-6).accepted
    same = np.array([3.0, 3.0])
    assert Quantization(same, same, 100, 50, 1, 1).accepted
    assert not Quantization(same, same - 1e-3, 100, 50, 1, 1).accepted


@pytest.mark.slow
def test_int8_of_convolutions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out, plain = tmp_path / "catch", tmp_path / "small.onnx", tmp_path / "plain.onnx"
    fastrl.DQN("fastrl/Catch-v0", num_envs=2, eval_episodes=0, capacity=2000).save(run)
    fastrl.export(run, plain)
    assert main(["export", str(run), "--out", str(out), "--quantize", "int8", "--episodes=4"]) == 0
    printed = capsys.readouterr().out
    small, policy = fastrl.runtime.load(out), fastrl.runtime.load(plain)
    accepted = "int8 was written" in printed
    assert accepted == (small.metadata.get("quantization") == "int8")
    # Outputs in other episodes than those of the calibration are near; of all images they need not be.
    task, settings = (model := fastrl.load(run)).task, model.stage_settings
    found = quantize.quantize(plain, tmp_path / "other.onnx", task, settings, episodes=2)
    assert found.bytes < 0.4 * found.plain_bytes
    other = fastrl.runtime.load(tmp_path / "other.onnx")
    feeds: list[quantize.Feed] = []
    quantize.play_returns(policy, task, settings, 3, [7], feeds)
    both = [[each.outputs(feed["obs"]) for feed in feeds] for each in (other, policy)]
    ours, theirs = map(np.array, both)
    assert np.abs(ours - theirs).max() > 0 and np.abs(ours - theirs).mean() < 0.1 * np.abs(theirs).mean()
    chosen = np.array([[each.predict(feed["obs"])[0] for feed in feeds] for each in (other, policy)])
    best = np.sort(theirs, -1)
    is_sure = best[..., -1] - best[..., -2] > 2 * np.abs(ours - theirs).max(-1)
    assert is_sure.any() and (chosen[0] == chosen[1])[is_sure].all()
    # A worse score: the plain file is written.
    plays = quantize.play_returns

    def worse(policy: fastrl.runtime.Policy, *arguments: object) -> np.ndarray:
        returns = plays(policy, *arguments)  # type: ignore[arg-type]
        return returns - 100 if policy.metadata.get("quantization") else returns

    monkeypatch.setattr(quantize, "play_returns", worse)
    refused = fastrl.export(run, out, quantize="int8", episodes=2)
    assert "int8 was refused" in str(refused.quantization)
    assert "quantization" not in fastrl.runtime.load(out).metadata
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [run.name, out.name, plain.name, "other.onnx"]
    )


class Halves(gymnasium.Env[Any, Any]):
    """Pays for saying which half of a picture is the brighter one; 16 pictures."""

    observation_space: Any = Box(0, 255, (12, 12, 1), np.uint8)
    action_space: Any = Discrete(2)

    def _picture(self) -> np.ndarray:
        self.half = int(self.np_random.integers(2))
        picture = np.full((12, 12, 1), self.np_random.integers(200), np.uint8)
        picture[:, 6 * self.half :][:, :6] += np.uint8(40)
        return picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._picture(), {}

    def step(self, action: Any) -> Any:
        reward, self.t = float(int(action) == self.half), self.t + 1
        return self._picture(), reward, self.t == 16, False, {}


class Net(torch.nn.Module):
    def __init__(self, obs_space: Any, action_space: Any, channels: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, channels, 4, 2)
        self.body = torch.nn.Linear(25 * channels, 64)
        self.action, self.value = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)

    def forward(self, obs: torch.Tensor) -> Any:
        features = self.conv(obs.permute(0, 3, 1, 2) / 64).relu().flatten(1)
        features = self.body(features).relu()
        return self.action(features), self.value(features).squeeze(-1)


def trained(channels: int) -> Any:
    """A policy that makes no mistake."""
    model = fastrl.PPO(
        Halves,
        network=Net,
        network_options=(f"channels={channels}",),
        num_envs=8,
        num_steps=64,
        collector="sequential",
        device="cpu",
        eval_episodes=0,
        learning_rate=4e-3,
        gamma=0.0,
        gae_lambda=0.0,
        seed=0,
    )
    model.learn(20_000)
    assert model.evaluate(20) == (16, 0)
    return model


@pytest.mark.slow
def test_int8_of_a_trained_network_is_written_or_refused(tmp_path: Path) -> None:
    out = tmp_path / "policy.onnx"
    # The trained network keeps its score, and is smaller.
    model = trained(channels=16)
    found = fastrl.export(model, out, quantize="int8", episodes=6).quantization
    assert found.accepted and found.plays_as_well and found.bytes < 0.6 * found.plain_bytes
    assert fastrl.runtime.load(out).metadata["quantization"] == "int8"
    # The channel that says least is 10,000 times as large, which the next layer takes back: the same policy, but one
    # range for all channels leaves nothing of the others in 8 bits.
    net, env = model.trainer.algorithm.policy.own.module, Halves()
    pictures = torch.from_numpy(np.stack([env.reset(seed=seed)[0] for seed in range(100)])).float()
    with torch.no_grad():
        largest = net.conv(pictures.permute(0, 3, 1, 2) / 64).amax((0, 2, 3))
        least = int(torch.where(largest > 0, largest, torch.inf).argmin())
        net.conv.weight[least] *= 1e4
        net.conv.bias[least] *= 1e4
        net.body.weight[:, 25 * least : 25 * (least + 1)] /= 1e4
    assert model.evaluate(20) == (16, 0)
    found = fastrl.export(model, out, quantize="int8", episodes=6).quantization
    assert found.plain_returns.tolist() == [16] * 6 and found.returns.mean() < 15
    assert not found.accepted and not found.plays_as_well and found.bytes < found.plain_bytes
    line = str(found)
    assert line.startswith(
        "int8 was refused, for the score falls by a standard error or more; the plain export was written"
    )
    assert f"mean return {found.returns.mean():.6g} beside 16 +- 0 in 6 episodes" in line
    policy = fastrl.runtime.load(out)
    assert "quantization" not in policy.metadata and out.stat().st_size == found.plain_bytes
    obs = model.env_spec.make().reset(seed=0)[0]
    assert policy.act(obs) == model.predict(obs)[0]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_int8_that_is_neither_smaller_nor_faster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Times of a busy machine differ; sizes do not.
    monkeypatch.setattr(quantize, "call_seconds", lambda policies, feed: [1e-6, 1e-6])
    found = fastrl.export(
        trained(channels=1), tmp_path / "policy.onnx", quantize="int8", episodes=6
    ).quantization
    assert found.plays_as_well and not found.accepted and found.bytes >= found.plain_bytes
    assert "int8 was refused, for it is neither smaller nor faster; the plain export was written" in str(
        found
    )
    assert "quantization" not in fastrl.runtime.load(tmp_path / "policy.onnx").metadata


def test_bad_use_is_one_line(tmp_path: Path) -> None:
    model = fastrl.PPO("CartPole-v1", num_envs=2, eval_episodes=0)
    with pytest.raises(
        ExportError, match=r"^int8 is for networks with convolutions, of which this policy has none$"
    ):
        fastrl.export(model, tmp_path / "policy.onnx", quantize="int8")
    with pytest.raises(ExportError, match="a standard error needs 2 episodes"):
        fastrl.export(model, tmp_path / "policy.onnx", quantize="int8", episodes=1)
    with pytest.raises(ExportError, match="expected 'int8' or None"):
        fastrl.export(model, tmp_path / "policy.onnx", quantize="int4")
    assert not any(tmp_path.iterdir())
