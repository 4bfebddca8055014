"""Exports with weights and activations of 8 bits, kept only where they play as well as the plain ones."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl import runtime
from fastrl.exports.compare import newest, play_run
from fastrl.exports.graph import ExportError
from fastrl.exports.onnx_file import require_onnx, write_model
from fastrl.play.play import episode_seeds
from fastrl.training.task import Task
from fastrl.utils.files import atomic_path

# Observations that ranges of activations are taken from, spread over all steps of the episodes.
_CALIBRATION = 256

# Calls of each export whose times are compared, in turns.
_CALLS = 200

Feed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Quantization:
    """Measurements of an int8 export beside the plain one.

    Attributes:
        plain_returns, returns: of the same episodes played with each, [episodes].
        plain_bytes, bytes: of the files.
        plain_seconds, seconds: medians of one call with one observation.
    """

    plain_returns: NDArray[np.float64]
    returns: NDArray[np.float64]
    plain_bytes: int
    bytes: int
    plain_seconds: float
    seconds: float

    @property
    def standard_error(self) -> float:
        """Standard error of the plain export's mean return."""
        return float(self.plain_returns.std(ddof=1) / len(self.plain_returns) ** 0.5)

    @property
    def fall(self) -> float:
        """The mean return of the plain file minus that of int8."""
        return float(self.plain_returns.mean() - self.returns.mean())

    @property
    def plays_as_well(self) -> bool:
        """True if the score falls by less than one standard error, or, where all returns are equal, does not fall."""
        return self.fall <= 0 or self.fall < self.standard_error

    @property
    def accepted(self) -> bool:
        """True if it plays as well, and its size or latency is smaller."""
        return self.plays_as_well and (self.bytes < self.plain_bytes or self.seconds < self.plain_seconds)

    def __str__(self) -> str:
        if self.accepted:
            verdict = "int8 was written"
        elif not self.plays_as_well:
            verdict = "int8 was refused, for the score falls by a standard error or more; the plain export was written"
        else:
            verdict = "int8 was refused, for it is neither smaller nor faster; the plain export was written"
        return (
            f"{verdict}: mean return {self.returns.mean():.6g} beside {self.plain_returns.mean():.6g} +-"
            f" {self.standard_error:.2g} in {len(self.returns)} episodes, {self.bytes / 1024:,.0f} KiB beside"
            f" {self.plain_bytes / 1024:,.0f}, {self.seconds * 1e6:,.0f} us for an action beside"
            f" {self.plain_seconds * 1e6:,.0f}"
        )


def quantize(
    plain: Path, out: Path, task: Task, settings: Any, *, episodes: int, seed: int = 0
) -> Quantization:
    """Writes an export with its convolutions and linear layers in int8, and measures it beside the plain one.

    Static quantisation of onnxruntime: ranges of activations are those in episodes of the run's evaluation environment
    that the plain export plays; the scores are of other episodes, the same for both.

    Args:
        plain: an export of float32.
        out: of the file of int8.
        task, settings: of the run.
        episodes: of the calibration, and of each score; at least 2.
        seed: of them.

    Raises:
        ExportError: the network has no convolution, or onnxruntime cannot quantise it.
        TrainError, CollectError: the environment cannot be built.
    """
    onnx = require_onnx()
    if episodes < 2:
        raise ExportError("int8: a standard error needs 2 episodes or more")
    model = onnx.load(plain)
    if not any(node.op_type == "Conv" for node in model.graph.node):
        raise ExportError("int8 is for networks with convolutions, of which this policy has none")
    policy = runtime.load(plain, seed=seed)
    feeds: list[Feed] = []
    play_returns(policy, task, settings, episodes, [seed, 2], feeds)
    chosen = np.unique(np.linspace(0, len(feeds) - 1, min(_CALIBRATION, len(feeds))).astype(int))
    calibration = [feeds[i] for i in chosen]
    _write(plain, out, calibration, dict(policy.metadata))
    quantized = runtime.load(out, seed=seed)
    seconds = call_seconds([policy, quantized], calibration[0])
    return Quantization(
        play_returns(policy, task, settings, episodes, [seed, 1]),
        play_returns(quantized, task, settings, episodes, [seed, 1]),
        plain.stat().st_size,
        out.stat().st_size,
        *seconds,
    )


def _write(plain: Path, out: Path, calibration: list[Feed], metadata: dict[str, Any]) -> None:
    onnx = require_onnx()
    try:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    except ImportError as error:
        raise ExportError(f"int8 needs {error.name}, which is not installed") from None

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[Feed] = iter(calibration)

        def get_next(self) -> Any:
            return next(self._left, None)

    try:
        with _quiet(), atomic_path(out) as file:
            quantize_static(
                str(plain),
                str(file),
                Reader(),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=["Conv", "Gemm", "MatMul", "Relu"],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                # Weights of 7 bits: sums of 8 overflow in 16 on processors without VNNI.
                reduce_range=True,
            )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"onnxruntime cannot quantise the network: {reason}") from error
    model = onnx.load(out)
    onnx.helper.set_model_props(model, {runtime.KEY: json.dumps({**metadata, "quantization": "int8"})})
    write_model(model, out)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence of warnings: to preprocess, which exports need not, and of inputs with a default."""
    import onnxruntime

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    try:
        yield
    finally:
        logging.disable(before)
        # What it is at first.
        onnxruntime.set_default_logger_severity(2)


def play_returns(
    policy: runtime.Policy,
    task: Task,
    settings: Any,
    episodes: int,
    seed: list[int],
    feeds: list[Feed] | None = None,
) -> NDArray[np.float64]:
    """Returns of episodes that an export plays greedily, [episodes]; `feeds` are given what it was fed."""

    def act(obs: Any, masks: Any, state: Any) -> tuple[Any, Any]:
        given = newest(policy, obs)
        if feeds is not None:
            feeds.append(policy.feed(given, state, action_masks=masks))
        return policy.predict(given, state, action_masks=masks)

    steps = play_run(act, task, settings, episode_seeds(episodes, *seed))
    return np.array([step.total for step in steps if step.is_last])


def call_seconds(policies: list[runtime.Policy], feed: Feed) -> list[float]:
    """Medians of one call of each, called in turns."""
    times = np.zeros((len(policies), _CALLS))
    for call in range(_CALLS):
        for i, policy in enumerate(policies):
            start = time.perf_counter()
            policy.run(feed)
            times[i, call] = time.perf_counter() - start
    return [float(each) for each in np.median(times[:, _CALLS // 10 :], 1)]
