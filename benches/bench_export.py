"""Time of one action of an exported policy beside ``predict``. Run: ``pytest benches/bench_export.py -s``.

Both are called in turns with the same single observations, greedily, with one thread; medians of the turns. Times are
of the processor, which other work on the machine matters less to.
"""

import functools
import time

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import fastrl
from results import Case
from rounds import measure_in_turns

ROUNDS, CALLS = 15, 300

# The export's share of predict's time.
BAR = 1 / 3


@pytest.mark.parametrize(
    ("name", "algo", "env", "settings"),
    [
        ("PPO, 64 x 64", "PPO", "CartPole-v1", {"num_steps": 16}),
        ("SAC, 256 x 256", "SAC", "Pendulum-v1", {}),
    ],
    ids=("ppo", "sac"),
)
@pytest.mark.usefixtures("one_thread")
def test_one_action(name, algo, env, settings, tmp_path, record):
    model = getattr(fastrl, algo)(
        env, num_envs=2, collector="sequential", eval_episodes=0, torch_threads=1, **settings
    )
    fastrl.export(model, tmp_path / "policy.onnx")
    policy = fastrl.runtime.load(tmp_path / "policy.onnx")
    space = model.env_spec.make().observation_space
    space.seed(0)
    observations = [space.sample() for _ in range(CALLS)]

    def microseconds(act):
        start = time.process_time()
        for obs in observations:
            act(obs)
        return (time.process_time() - start) / CALLS * 1e6

    contenders = {"predict": lambda obs: model.predict(obs)[0], "export": policy.act}
    calls = {which: functools.partial(microseconds, act) for which, act in contenders.items()}
    case = Case(name, measure_in_turns(calls, ROUNDS))
    title = "One action of an exported policy"
    record(
        title,
        "µs of processor time",
        [case],
        ["export"],
        about="One observation, one thread.",
        lower_is_better=True,
    )
    assert case.ratio("export", "predict").median <= BAR
