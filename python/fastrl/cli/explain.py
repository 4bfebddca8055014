"""The command ``fastrl explain``: what a defender of CAGE Challenge 2 might have done."""

import argparse
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import (
    Arg,
    Count,
    Picture,
    Seed,
    TrustRuns,
    at_least,
    check_folders,
    command,
    import_from_here,
    present,
)
from fastrl.play.own_agent import is_agent
from fastrl.runs.curves import SUFFIXES
from fastrl.tasks import find, load_saved
from fastrl.utils.config import ConfigError
from fastrl.utils.progress import Progress, load_torch


def _steps(text: str) -> range:
    """Converts a number or two, such as 5 or 5-12."""
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise argparse.ArgumentTypeError(
            f"should be a step or a first and a last one such as 5-12, got {text!r}"
        )
    return range(int(first), int(last) + 1)


@command("{prog} runs/mine --seed 7 --figure game.png\n{prog} runs/mine --steps 10-20 --all --json game.json")
def explain(
    arguments: list[str],
    run: Annotated[Path, Arg("a run of cage2, or a checkpoint file", "RUN")],
    *,
    seed: Annotated[Seed, Arg("seed of the game")] = 0,
    continuations: Annotated[
        int, at_least(2, 1_000_000), Arg("games that are played to the end from each alternative")
    ] = 200,
    steps: Annotated[
        range | None, _steps, Arg("the steps that are explained, such as 5 or 5-12 [all]", "FIRST-LAST")
    ] = None,
    most: Annotated[
        Count, Arg("alternatives of each step, the most probable ones, the taken one among them")
    ] = 8,
    all: Annotated[bool, Arg("compare all actions that the game's masks allow, in place of --most")] = False,  # noqa: A002
    episode_length: Annotated[Count | None, Arg("steps of the game [the run's]")] = None,
    json: Annotated[Path | None, Arg("also write everything that was found, as JSON", "FILE")] = None,
    figure: Annotated[
        Picture | None, Arg(f"also draw the game over time, {' or '.join(SUFFIXES)}", "FILE")
    ] = None,
    trust: TrustRuns = False,
) -> int:
    """Explains a game of CAGE Challenge 2, which the policy of a run plays without exploration: at each step what the
    defender saw and did, and the return of each alternative, from continuations of the game with common random
    numbers in which the policy acts again. The regret is what the best alternative would have brought more."""
    import_from_here(None, trust=trust)
    load_torch(arguments)
    from fastrl.play.policy import Policy
    from fastrl.runs.checkpoint import to_play, using_checkpoint
    from fastrl.tasks.cage2.explain import explain as explain_game
    from fastrl.training.run import load_run

    if is_agent(str(run)):
        raise ConfigError(
            f"{run}: expected a run, whose policy says how probable its actions are; fastrl eval and fastrl exploit"
            " take agents of your own"
        )
    kind = load_saved(run)[0]
    if kind != "cage2":
        raise ConfigError(f"{run} is a run of {kind}: only runs of cage2 can be explained")
    check_folders(json, figure)
    checkpoint = to_play(run)
    settings, state = load_run(find(kind), checkpoint, trust=trust)
    if settings.env.rows is not None:
        raise ConfigError(
            f"{run}: its policy acts on rows of hosts: only runs without --rows can be explained"
        )
    options = settings.env.options()
    if episode_length is not None:
        options["episode_length"] = episode_length
    length = options["episode_length"]
    if steps is not None and steps[-1] > length:
        raise ConfigError(f"--steps: the game has {length} steps, got {steps[-1]}")
    with using_checkpoint(checkpoint, "holds no policy that this fastrl can use"):
        policy = Policy(state)
    with Progress("explaining", length) as progress:
        found = explain_game(
            policy,
            options,
            seed,
            continuations=continuations,
            most=0 if all else most,
            steps=steps,
            advance=progress.advance,
        )
    present(
        found,
        json,
        figure,
        pictures="fastrl.tasks.cage2.explain_figure",
        said=f"{length} steps",
        run=str(run),
    )
    return 0
