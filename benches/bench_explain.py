"""Time of a thousand continuations of a game of CAGE 2 to its end. Run: ``pytest benches/bench_explain.py -s``.

The policy acts in all games at once; games and policy have one thread. Times are of the processor.
"""

import statistics
import time

import numpy as np
import pytest

import fastrl
from fastrl.envs import Cage2VectorEnv
from fastrl.play.policy import Policy
from fastrl.tasks.cage2.explain import continued
from results import Case
from rounds import measure_in_turns

ROUNDS, GAMES, STEPS = 15, 1000, 30

# Seconds.
BAR = 1.0


@pytest.mark.usefixtures("one_thread")
def test_continuations(record):
    model = fastrl.PPO("fastrl/Cage2-v0", num_envs=2, action_masks=True)
    policy = Policy(model.policy_checkpoint)
    env = Cage2VectorEnv(1, episode_length=STEPS, memory=policy.memory, num_threads=1)
    env.reset(seed=0)
    state = env.save_state(0)

    def seconds():
        start = time.process_time()
        games = env.branch(state, GAMES, seed=0)
        continued(policy, games, None, np.zeros(GAMES, np.int64))
        return time.process_time() - start

    case = Case(f"{GAMES} continuations of {STEPS} steps", measure_in_turns({"fastrl": seconds}, ROUNDS))
    about = f"Policy and games on one thread. {policy.obs_dim} inputs."
    record(
        "Continuations of a game",
        "s of processor time",
        [case],
        ["fastrl"],
        about=about,
        lower_is_better=True,
    )
    assert statistics.median(case.rates["fastrl"]) <= BAR
