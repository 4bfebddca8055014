"""Time of one action of an exported policy beside ``predict``. Run: ``pytest benches/bench_export.py -s``.

Both are called in turns with the same single observations, greedily, with one thread; medians of the turns.
"""

import statistics
import time

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import fastrl

ROUNDS, CALLS = 15, 300

# The export's share of predict's time.
BAR = 1 / 3


@pytest.mark.parametrize(
    ("name", "algo", "env", "settings"),
    [
        ("PPO, 64 x 64", "PPO", "CartPole-v1", {"num_steps": 16}),
        ("SAC, 256 x 256", "SAC", "Pendulum-v1", {}),
    ],
)
def test_one_action(name, algo, env, settings, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = getattr(fastrl, algo)(
        env, num_envs=2, collector="sequential", eval_episodes=0, torch_threads=1, **settings
    )
    fastrl.export(model, tmp_path / "policy.onnx")
    policy = fastrl.runtime.load(tmp_path / "policy.onnx")
    space = model.env_spec.make().observation_space
    space.seed(0)
    observations = [space.sample() for _ in range(CALLS)]
    contenders = {"predict": lambda obs: model.predict(obs)[0], "export": policy.act}
    times = {which: [] for which in contenders}
    for _ in range(ROUNDS):
        for which, act in contenders.items():
            start = time.perf_counter()
            for obs in observations:
                act(obs)
            times[which].append((time.perf_counter() - start) / CALLS * 1e6)
    torch.set_num_threads(threads)
    medians = {which: statistics.median(values) for which, values in times.items()}
    ratio = medians["export"] / medians["predict"]
    lows = {which: np.min(values) for which, values in times.items()}
    for which, median in medians.items():
        print(f"\n{name}: {which} {median:.1f} us an action, lowest {lows[which]:.1f}", end="")
    print(f"\n{name}: the export takes {ratio:.2f} of predict's time")
    assert ratio <= BAR
