"""Trained defenders in the real CybORG of CAGE Challenge 2 beside the same in the compiled simulator.

Run it where CybORG can be imported, of the ruleset that is compared (``main`` is today's repository)::

    python benches/compare_cyborg.py RUN [RUN ...] --episodes 300

Each run plays ``--episodes`` episodes against each red agent, as the challenge's ``evaluation.py`` plays them. Two
comparisons follow. The same seeds: the simulator, with Python's random generator, plays the same episodes, whose
observations, actions and rewards should be equal in every step. Other seeds: the mean is compared with that of the
simulator's fast generator over many more episodes, in standard errors of the difference.
"""

import argparse
import inspect
import json
import math
import random
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fastrl import load_policy
from fastrl.envs.adapters.cyborg import RED_AGENT_CLASSES, Cage2Agent, import_cyborg
from fastrl.envs.cage2.env import ACTIONS, Cage2VectorEnv
from fastrl.envs.cage2.memory import Ruleset
from fastrl.play.policy import Policy
from fastrl.runs.metrics import mean_and_error, plus_minus
from fastrl.tasks.cage2.evaluate import Contender, evaluate

# A column for each step of an episode.
Steps = tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.float64]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories or checkpoint files")
    parser.add_argument("--episodes", type=int, default=300, help="in CybORG, against each red agent")
    parser.add_argument("--steps", type=int, default=100, help="of an episode")
    parser.add_argument(
        "--red-agents", nargs="+", default=["bline", "meander"], choices=list(RED_AGENT_CLASSES)
    )
    parser.add_argument("--ruleset", default="main", choices=get_args(Ruleset), help="of CybORG here")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--many", type=int, default=10_000, help="episodes with the simulator's fast generator"
    )
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    results = []
    for run in options.runs:
        for red_agent in options.red_agents:
            results.append({"run": run, **compare(load_policy(run), red_agent, options)})
            print(line(results[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2))


def compare(policy: Policy, red_agent: str, options: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    real = play_cyborg(policy, red_agent, options.ruleset, options.steps, options.episodes, options.seed)
    seconds = time.perf_counter() - start
    ours = play_simulator(policy, red_agent, options.ruleset, options.steps, options.episodes, options.seed)
    differs = np.logical_or.reduce([(real[0] != ours[0]).any(-1), real[1] != ours[1], real[2] != ours[2]])
    [many] = evaluate(
        Contender.from_policy(policy, "policy"),
        ruleset=options.ruleset,
        episodes=options.many,
        seed=options.seed + 1,
        horizons=[options.steps],
        red_agents=[red_agent],
    ).scores
    mean, error = mean_and_error(real[2].sum(-1))
    return {
        "red_agent": red_agent,
        "ruleset": options.ruleset,
        "steps": options.steps,
        "episodes": options.episodes,
        "cyborg": {"mean": mean, "standard_error": error},
        "same_seeds": {
            "mean": float(ours[2].sum(-1).mean()),
            "steps": differs.size,
            "different_steps": int(differs.sum()),
            "different_episodes": int(differs.any(-1).sum()),
        },
        "other_seeds": {"mean": many.mean, "standard_error": many.standard_error, "episodes": many.episodes},
        "standard_errors_apart": (mean - many.mean) / math.hypot(error, many.standard_error),
        "seconds": seconds,
    }


def line(result: dict[str, Any]) -> str:
    real, same, other = result["cyborg"], result["same_seeds"], result["other_seeds"]
    return (
        f"{result['run']} {result['red_agent']} {result['ruleset']}: CybORG"
        f" {plus_minus(real['mean'], real['standard_error'])} ({result['episodes']} episodes);"
        f" same seeds here {same['mean']:.2f}, {same['different_steps']} of {same['steps']:,} steps differ; other seeds"
        f" here {plus_minus(other['mean'], other['standard_error'])} ({other['episodes']:,} episodes),"
        f" {result['standard_errors_apart']:+.2f} standard errors apart"
    )


def play_cyborg(
    policy: Policy, red_agent: str, ruleset: Any, num_steps: int, episodes: int, seed: int
) -> Steps:
    """Observations before each action [episodes, steps, 52], actions and rewards [episodes, steps] of the loop of the
    challenge's ``evaluation.py``."""
    cyborg, agents, wrappers = import_cyborg()
    scenario = str(Path(inspect.getfile(cyborg.CybORG)).parent / "Shared" / "Scenarios" / "Scenario2.yaml")
    env = cyborg.CybORG(scenario, "sim", agents={"Red": getattr(agents, RED_AGENT_CLASSES[red_agent])})
    wrapped = wrappers.ChallengeWrapper(env=env, agent_name="Blue")
    names = [str(action) for action in wrapped.get_attr("possible_actions")]
    if names != list(ACTIONS):
        raise SystemExit(f"the wrapper has other actions: {names}")
    agent = Cage2Agent(policy, ruleset=ruleset)
    random.seed(seed)
    observation = _first(wrapped.reset())
    action_space = wrapped.get_action_space("Blue")
    seen, chosen, rewards = [], [], []
    for _ in range(episodes):
        for _ in range(num_steps):
            action = agent.get_action(observation, action_space)
            seen.append(observation)
            observation, reward, *_ = wrapped.step(action)
            chosen.append(action)
            rewards.append(reward)
        agent.end_episode()
        observation = _first(wrapped.reset())
    shape = episodes, num_steps
    return (
        np.array(seen, np.bool_).reshape(*shape, -1),
        np.array(chosen, np.int64).reshape(shape),
        np.array(rewards, np.float64).reshape(shape),
    )


def _first(result: Any) -> Any:
    """The first observation of an episode; the wrapper of CybORG++ gives an info too."""
    return result[0] if isinstance(result, tuple) else result


def play_simulator(
    policy: Policy, red_agent: str, ruleset: Any, num_steps: int, episodes: int, seed: int
) -> Steps:
    """Episodes in the compiled simulator, with the same seed."""
    env = Cage2VectorEnv(
        1,
        ruleset=ruleset,
        red_agent=red_agent,
        episode_length=num_steps,
        memory=policy.memory,
        random="python",
        autoreset_mode="same_step",
    )
    obs, _ = env.reset(seed=seed)
    states = np.zeros((1, policy.state_size), np.float32) if policy.state_size else None
    seen, chosen, rewards = np.empty((episodes * num_steps, 52), np.bool_), [], []
    for step in range(episodes * num_steps):
        if states is not None and step % num_steps == 0:
            states[:] = 0
        seen[step] = obs[0, :52]
        masks = env.action_masks() if policy.needs_action_mask else None
        action = policy.act(obs, True, masks, states)
        obs, reward, _, _, _ = env.step(action)
        chosen.append(int(action[0]))
        rewards.append(float(reward[0]))
    shape = episodes, num_steps
    return (
        seen.reshape(*shape, -1),
        np.array(chosen, np.int64).reshape(shape),
        np.array(rewards, np.float64).reshape(shape),
    )


if __name__ == "__main__":
    main()
