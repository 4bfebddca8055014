"""A defender of CAGE Challenge 2 that is hard to exploit: policy-space response oracles.

    python benches/hard_defender.py runs/hard --rounds 60         # goes on where it was stopped
    python benches/hard_defender.py runs/hard --measure record=runs/record hard=runs/hard/blue059.safetensors
    python benches/hard_defender.py runs/hard --bound "round 59"=runs/hard/red059.safetensors

Each round trains the defender against the scripts and all attackers so far, drawn by prioritised fictitious self-play,
then a best response to it, which joins the attackers. `--measure` adds rows to
docs/benchmarks/results/hard-defender.jsonl: the challenge's total, and the returns against new best responses.
`--bound` adds the returns of defenders that are trained against one attacker alone: no defender's worst case is better
than the best of them.
`python docs/draw_hard_defender.py` draws them.

M. Lanctot et al., A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning, 2017.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastrl
from fastrl.tasks.cage2_game.exploit import TIMESTEPS, exploit
from fastrl.tasks.cage2_game.league import league

ROWS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "results" / "hard-defender.jsonl"
SCRIPTS = ("bline", "meander")
SHARE_OF_SCRIPTS = 0.3
# Bonuses of entropy of the attackers, in turns: those of high entropy visit more of the game.
ENTROPIES = (0.01, 0.03, 0.1)
MEMORIES = ("decoys", "full")
GAME = "fastrl/Cage2Game-v0"


def opponents(attackers: Sequence[Path]) -> list[str]:
    """The defender's opponents with their weights: the scripts, and of the attackers the newest one more often."""
    weights = [1.0] * len(attackers)
    if attackers:
        weights[-1] = max(2.0, len(attackers) / 4)
    share = (1 - SHARE_OF_SCRIPTS) / sum(weights, 1e-9)
    scripts = [f"{name}:{SHARE_OF_SCRIPTS / len(SCRIPTS)}" for name in SCRIPTS]
    return scripts + [f"{each}:{share * weight:.6f}" for each, weight in zip(attackers, weights, strict=True)]


def train(side: str, steps: float, seed: int, file: Path, **settings: Any) -> None:
    """Trains a side and saves its policy."""
    model = fastrl.IPPO(GAME, side=side, seed=seed, eval_episodes=0, device="cpu", **settings)
    model.learn(int(steps))
    model.save(file)


def play_round(folder: Path, number: int, steps: tuple[float, float, float]) -> str:
    """Trains the defender and the attacker of a round; says what became of them."""
    blue, red = (folder / f"{side}{number:03}.safetensors" for side in ("blue", "red"))
    previous, begin = folder / f"blue{number - 1:03}.safetensors", time.perf_counter()
    first, of_defender, of_attacker = steps
    if not blue.exists():
        start = {"init_from": str(previous)} if number else {}
        train(
            "blue",
            of_defender if number else first,
            number,
            blue,
            opponents=opponents(sorted(folder.glob("red*.safetensors"))),
            opponent_priority="hard",
            env__memory="decoys",
            entropy_coef=0.03,
            **start,
        )
    entropy = ENTROPIES[number % len(ENTROPIES)]
    train(
        "red",
        of_attacker,
        1000 + number,
        red,
        opponents=[str(blue)],
        entropy_coef=entropy,
        final_entropy_coef=entropy / 3,
    )
    table = league([str(blue)], [*SCRIPTS, str(red)], episodes=200)
    found = " ".join(f"{value:.1f}" for value in table.returns[0])
    return f"{number}: {found} against {', '.join(SCRIPTS)} and its attacker, {time.perf_counter() - begin:.0f} s"


def measure(
    name: str, run: str, *, seeds: Sequence[int] = (0, 1, 2), steps: int = TIMESTEPS, episodes: int = 1000
) -> dict[str, Any]:
    """The challenge's total of a defender, and its returns against the scripts and against best responses.

    Args:
        seeds: of the best responses.
        steps: of the training of each of them.
    """
    total = sum(
        league([run], [*SCRIPTS, "sleep"], episodes=episodes, episode_length=length).returns.sum()
        for length in (30, 50, 100)
    )
    found = exploit(run, seeds=seeds, total_timesteps=steps, episodes=episodes)
    return {
        "name": name,
        "total": round(float(total), 2),
        "scripts": {each.attacker: round(float(each.returns.mean()), 2) for each in found.scripts},
        "responses": [round(float(each.returns.mean()), 2) for each in found.responses],
        "gain": round(found.exploitability.value, 2),
    }


def bound(
    name: str,
    attacker: str,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int = 10_000_000,
    episodes: int = 1000,
) -> dict[str, Any]:
    """The returns of defenders that know one attacker and meet no other, with each memory of the observation.

    Args:
        seeds: of the defenders.
        steps: of the training of each of them.
    """
    returns: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "blue.safetensors")
        for memory in MEMORIES:
            for seed in seeds:
                train(
                    "blue",
                    steps,
                    seed,
                    file,
                    opponents=[attacker],
                    env__memory=memory,
                    entropy_coef=0.01,
                    final_entropy_coef=0.0,
                )
                table = league([str(file)], [attacker], episodes=episodes)
                returns.setdefault(memory, []).append(round(float(table.returns[0, 0]), 2))
    return {"attacker": name, "bound": returns}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the checkpoints of all rounds")
    parser.add_argument("--rounds", type=int, default=60, metavar="INT", help="rounds in all [60]")
    parser.add_argument(
        "--steps",
        type=float,
        nargs=3,
        default=(10e6, 1.6e6, 1e6),
        metavar="FLOAT",
        help="of the first defender, of a later one, of an attacker [10e6 1.6e6 1e6]",
    )
    parser.add_argument(
        "--measure", nargs="+", metavar="NAME=RUN", help="measure these defenders instead, and add their rows"
    )
    parser.add_argument(
        "--bound", nargs="+", metavar="NAME=RUN", help="train defenders against these attackers alone"
    )
    parser.add_argument(
        "--episodes", type=int, default=1000, metavar="INT", help="episodes of a measurement [1000]"
    )
    options = parser.parse_args(arguments)
    wanted = [(measure, each) for each in options.measure or ()] + [
        (bound, each) for each in options.bound or ()
    ]
    for row_of, each in wanted:
        name, _, run = each.partition("=")
        line = json.dumps(row_of(name, run, episodes=options.episodes))
        print(line, flush=True)
        with ROWS.open("a", encoding="utf-8") as rows:
            rows.write(line + "\n")
    if wanted:
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(list(options.folder.glob("red*.safetensors"))), options.rounds):
        print(play_round(options.folder, number, tuple(options.steps)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
