"""Cost of radio links beside the same worlds without, one core: ``pytest benches/bench_links.py -s``.

All 15 agents live to the end of each measured stretch: 210 directed pairs, and no background radios. The contenders
take turns, so that a busy machine slows all of them.
"""

import time

import numpy as np

from fastrl.envs import make_multi
from results import Case
from rounds import measure_in_turns

NUM_ENVS = 64
AGENTS = 15
STEPS = 12
REPEATS = 12
IDLE, SLOWER = 1, 4
CONTENDERS = {
    "perfect": {"comms": "perfect"},
    "range": {"comms": "range"},
    "37885, no blockage": {"comms": "37885", "comms_options": {"blockage": "none"}},
    "37885": {"comms": "37885"},
    "37885, sensing": {"comms": "37885", "comms_options": {"selection": "sensing"}},
    "37885, probability": {"comms": "37885", "comms_options": {"blockage": "probability"}},
}


class World:
    """Environments of one contender with their arrays."""

    def __init__(self, options):
        self.env = make_multi("fastrl/coop-highway-v0", NUM_ENVS, max_agents=AGENTS, num_threads=1, **options)
        size = NUM_ENVS * AGENTS
        self.obs, self.final_obs = np.zeros((2, size, self.env.single_observation_space.shape[0]), np.float32)
        self.rewards = np.zeros(size, np.float32)
        self.flags = np.zeros((3, size), np.bool_)

    def play(self):
        """CPU-seconds of some steps of careful traffic, and the share of agents that live at their end."""
        terminations, truncations, alive = self.flags
        self.env.reset_into(self.obs, alive, seed=0)
        seconds = 0.0
        for step in range(STEPS):
            actions = np.full(len(alive), SLOWER if step < 3 else IDLE)
            start = time.thread_time()
            self.env.step_into(
                actions, self.obs, self.rewards, terminations, truncations, alive, self.final_obs
            )
            seconds += time.thread_time() - start
        return seconds, alive.mean()


def test_cost_of_links(record):
    worlds = {name: World(options) for name, options in CONTENDERS.items()}
    played = measure_in_turns({name: world.play for name, world in worlds.items()}, REPEATS)
    assert all(alive > 0.95 for each in played.values() for _, alive in each)
    steps, pairs = NUM_ENVS * STEPS, AGENTS * (AGENTS - 1)
    rates = {name: [steps / seconds for seconds, _ in each] for name, each in played.items()}
    best = {name: min(each)[0] for name, each in played.items()}
    extra = [(best[name] - best["perfect"]) / steps / pairs * 1e9 for name in worlds]
    record(
        "Radio links on a highway",
        "environment steps/s",
        [Case(f"{NUM_ENVS} environments, {AGENTS} agents", rates)],
        [name for name in worlds if name != "perfect"],
        about=f"{pairs} directed pairs, one core. A pair costs {', '.join(f'{each:.1f}' for each in extra)} ns"
        " in the order of the table, in the best of the rounds.",
    )


def test_resource_allocation(record):
    env = make_multi("fastrl/v2x-resource-v0", NUM_ENVS, num_threads=1)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    actions = rng.integers(16, size=(100, NUM_ENVS, 4))
    rates = []
    for _ in range(REPEATS):
        start = time.thread_time()
        for step in actions:
            env.step(step)
        rates.append(actions.shape[0] * NUM_ENVS / (time.thread_time() - start))
    case = Case(f"fastrl/v2x-resource-v0, {NUM_ENVS} environments", {"fastrl": rates})
    record("Radio resources", "environment steps/s", [case], ["fastrl"], about="One core.")
