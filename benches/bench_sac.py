"""SAC and TD3 beside Stable-Baselines3, sbx (JAX) and RLtools (C++ with MKL), on one core.

Run: ``pytest benches/bench_sac.py -s`` on an otherwise idle machine; ``pip install '.[bench]'`` brings the peers, and
those that are not there are left out. Contenders take turns, and medians are compared.
"""

from collections.abc import Callable
from typing import Any

import pytest

from learners import LIBRARIES, gradient_steps, measured
from results import Benchmark, Case

ROUNDS = 9
PRECISIONS = {f"fastrl, {precision}": {"precision": precision} for precision in ("fp32", "bf16")}


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_gradient_steps(algorithm: str, record: Callable[..., Benchmark]) -> None:
    rates, left_out = measured(gradient_steps(algorithm, PRECISIONS), ROUNDS)
    case, title = Case(algorithm, rates), "Gradient steps of SAC and TD3"
    about = (
        "One core; steps per second of processor time; networks of 256 x 256, minibatches of 256. sbx takes the 40"
        " steps of a round in one call of compiled code."
    )
    record(title, "gradient steps/s", [case], list(PRECISIONS), about=about, left_out=left_out)
    for name, other, bar in (
        ("fastrl, fp32", "Stable-Baselines3", 2.0),
        ("fastrl, fp32", "sbx", 1.1),
        ("fastrl, bf16", "sbx", 1.7),
    ):
        assert other in left_out or case.ratio(name, other).median >= bar, f"{name} beside {other}"


def test_pendulum(record: Callable[..., Benchmark]) -> None:
    peers = {name: ("their pendulum", {"library": library}) for name, library in LIBRARIES.items()}
    ours: dict[str, tuple[str, dict[str, Any]]] = {
        "fastrl": ("our pendulum", {}),
        "fastrl, compiled environment": ("our pendulum", {"compiled": True}),
        "RLtools": ("RLtools' pendulum", {}),
    }
    rates, left_out = measured({**ours, **peers}, ROUNDS)
    case = Case("Pendulum-v1, 64 x 64, minibatches of 100", rates)
    about = (
        "One core; environment steps per second of processor time, each with a gradient step. The environment is"
        " Gymnasium's, but where it is said to be compiled."
    )
    own = [name for name in ours if name.startswith("fastrl")]
    record("Training by SAC on Pendulum", "steps/s", [case], own, about=about, left_out=left_out)
    for name, other, bar in (
        (own[0], "RLtools", 1.0),
        (own[1], "RLtools", 1.05),
        (own[0], "Stable-Baselines3", 2.0),
    ):
        assert other in left_out or case.ratio(name, other).median >= bar, f"{name} beside {other}"
