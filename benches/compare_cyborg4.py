"""A team of CAGE Challenge 4 in the real CybORG, by its submission file, beside its policy in the compiled simulator.

Run it where CybORG 4.0 can be imported::

    fastrl export RUN --cage4-submission submission.py
    python benches/compare_cyborg4.py RUN submission.py --episodes 10

Both play the episodes that the challenge's ``evaluation.py`` plays after its seed: one network is drawn and thrown
away, then one generator runs through all episodes. The file's agents see CybORG alone, and the run's policy sees the
simulator alone. Their choices and the rewards should be equal in every step; so should CybORG's observations, masks and
ends be with a third game, of the challenge's view, which takes the file's actions.
"""

import argparse
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np

import fastrl
from cyborg4 import make_cyborg
from fastrl.envs.cage4.env import AGENTS, Cage4VectorEnv


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="run directory or checkpoint file")
    parser.add_argument(
        "submission", metavar="FILE", help="that fastrl export --cage4-submission wrote of it"
    )
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the results")
    options = parser.parse_args()
    result = compare(options.run, options.submission, options.episodes, options.seed)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2))


def compare(run: str, submission: str, episodes: int, seed: int) -> dict[str, Any]:
    if (cyborg := make_cyborg(seed)) is None:
        raise SystemExit("CybORG 4.0 cannot be imported: it is a checkout of cage-challenge/cage-challenge-4")
    file = runpy.run_path(submission)["Submission"]
    real, model = file.wrap(cyborg), fastrl.load(run)
    own, raw = (
        Cage4VectorEnv(1, random="numpy", autoreset_mode="disabled", **view)
        for view in ({name: model.settings["env"][name] for name in ("view", "messages")}, {})
    )
    own.reset(seed=seed)
    raw.reset(seed=seed)
    act = model.policy.act_in(own, action_masks=True)
    scores, steps, different = (
        [],
        0,
        dict.fromkeys(("choices", "observations", "masks", "rewards", "ends"), 0),
    )
    for episode in range(episodes):
        observations, _ = real.reset()
        (obs, _), (seen, _), states, rewards, has_ended = own.reset(), raw.reset(), None, [], False
        while not has_ended:
            ours, states = act(obs[0], np.ones(len(AGENTS), np.bool_), states)
            agents = [file.AGENTS[name] for name in AGENTS]
            theirs = [agent.choose(observations[f"blue_agent_{agent.number}"])[0] for agent in agents]
            actions = [agent.view.act(choice) for agent, choice in zip(agents, theirs, strict=True)]
            masks = [real.action_mask(name) for name in AGENTS]
            pairs = {
                "choices": (theirs, ours.ravel()),
                "observations": ([observations[name] for name in AGENTS], seen[0]),
                "masks": (masks, raw.action_masks()),
            }
            observations, earned, _, truncated, _ = real.step(dict(zip(AGENTS, actions, strict=True)))
            obs, own_rewards, *_ = own.step(ours.reshape(1, -1))
            raw.send(np.packbits([agent.view.message for agent in agents]).reshape(1, -1))
            seen, raw_rewards, _, ends, *_ = raw.step([actions])
            paid = np.array([earned[name] for name in AGENTS])
            pairs["rewards"] = ([paid, paid], [own_rewards[0], raw_rewards[0]])
            pairs["ends"] = ([truncated[name] for name in AGENTS], ends[0])
            for name, (there, here) in pairs.items():
                different[name] += not np.array_equal(there, here)
            rewards.append(int(paid.mean()))
            steps, has_ended = steps + 1, all(truncated.values())
        # The challenge's evaluation leaves an episode before it counts the last reward.
        scores.append(sum(rewards[:-1]))
        counts = ", ".join(f"{name} {count}" for name, count in different.items())
        print(f"episode {episode}: {scores[-1]}; of {steps:,} steps differ: {counts}", flush=True)
    print(
        f"mean {np.mean(scores):.2f}, standard deviation {np.std(scores, ddof=1) if episodes > 1 else 0:.2f}"
    )
    return {"run": run, "seed": seed, "scores": scores, "steps": steps, "different": different}


if __name__ == "__main__":
    main()
