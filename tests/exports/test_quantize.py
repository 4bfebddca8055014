"""int8 exports are kept where they play as well as the plain ones, and are smaller or faster."""

from pathlib import Path

import numpy as np
import pytest

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
    task, settings = (model := fastrl.load(run))._task, model._stage_settings
    found = quantize.quantize(plain, tmp_path / "other.onnx", task, settings, episodes=2)
    assert found.bytes < 0.4 * found.plain_bytes
    other = fastrl.runtime.load(tmp_path / "other.onnx")
    feeds: list[quantize.Feed] = []
    quantize._returns(policy, task, settings, 3, [7], feeds)
    both = [[each._run(["outputs"], feed)[0] for feed in feeds] for each in (other, policy)]
    ours, theirs = map(np.array, both)
    assert np.abs(ours - theirs).max() > 0 and np.abs(ours - theirs).mean() < 0.1 * np.abs(theirs).mean()
    # A worse score: the plain file is written.
    plays = quantize._returns

    def worse(policy: fastrl.runtime.Policy, *arguments: object) -> np.ndarray:
        returns = plays(policy, *arguments)  # type: ignore[arg-type]
        return returns - 100 if policy.metadata.get("quantization") else returns

    monkeypatch.setattr(quantize, "_returns", worse)
    refused = fastrl.export(run, out, quantize="int8", episodes=2)
    assert "int8 was refused" in str(refused.quantization)
    assert "quantization" not in fastrl.runtime.load(out).metadata
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        [run.name, out.name, plain.name, "other.onnx"]
    )


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
