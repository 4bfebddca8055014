"""Compiled environments in lockstep and each at its own pace: the cases in which it pays not to wait.

Run: ``pytest benches/bench_async_vec.py -s`` on an otherwise idle machine. Steps per second of the collector "native",
acting included, with a barrier at each step and without. A ring starts its episodes with 750 steps of warm-up, so that
a step which ends an episode takes a thousand times as long as the others. In lockstep all rings do that in the same
step, which suits it; highways end when they crash, each at its own time.
"""

from fastrl.benchmarks.plans import make_plan, random_weights
from fastrl.collectors.synchronous import native_collector
from fastrl.envs.spec import EnvSpec
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from rounds import number_table, rate

CASES = {
    "CAGE 2": ("fastrl/Cage2-v0", {}),
    "highway, 20 vehicles": ("fastrl/highway-fast-v0", {}),
    "highway, 50 vehicles": ("fastrl/highway-v0", {}),
    "ring, long resets": ("fastrl/ring-v0", {"horizon": 100, "warmup_steps": 750}),
}
NUM_ENVS = (8, 32, 128)
SECONDS = 1.5


def steps_per_second(collector):
    with collector:
        collector.publish(random_weights(collector.plan))
        collector.collect()
        return rate(lambda: sum(map(len, collector.collect())), SECONDS)


def test_lockstep_and_not():
    shares = (1, 4, 2)
    columns = ("environments", "lockstep", "one ready", "a quarter", "half", "best / lockstep")
    table = number_table("steps/s", "environment", *columns)
    for name, (env_id, options) in CASES.items():
        for num_envs in NUM_ENVS:
            plan = make_plan(EnvSpec(env_id, options), num_envs, 64, (64, 64), "relu")
            lockstep = steps_per_second(native_collector(plan))
            counts = [1 if share == 1 else num_envs // share for share in shares]
            rates = [steps_per_second(native_collector(plan, asynchronous=count)) for count in counts]
            numbers = [f"{each:,.0f}" for each in (lockstep, *rates)]
            table.add_row(name, str(num_envs), *numbers, f"{max(rates) / lockstep:.2f}")
    show(plain_console(), table)
