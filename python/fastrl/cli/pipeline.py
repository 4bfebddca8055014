"""The command ``fastrl pipeline``: record an expert, clone it, improve the clone."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from fastrl.cli.arguments import (
    Arg,
    Count,
    Name,
    NotNegative,
    Seed,
    Workers,
    at_least,
    command,
    import_from_here,
)
from fastrl.utils.config import ConfigError
from fastrl.utils.names import folder_name
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import print_lines


def _stages(text: str) -> frozenset[str]:
    names = frozenset(filter(None, text.split(",")))
    if wrong := names - {"demos", "clone", "agent"}:
        raise argparse.ArgumentTypeError(
            f"should be of demos, clone and agent, got {', '.join(sorted(wrong))}"
        )
    return names


@command(
    "{prog} HalfCheetah-v5 --expert runs/cheetah --episodes 100 --epochs 50 --timesteps 500000\n"
    "{prog} cage2 --expert baseline:react-restore --timesteps 5e6 --train ppo.critic-warmup=500000\n"
    "{prog} CartPole-v1 --expert my_module:expert --skip agent"
)
def pipeline(
    prog: str,
    arguments: list[str],
    env: Annotated[Name, Arg("an environment's id, module:function, or a task such as cage2", "ENV")],
    *,
    expert: Annotated[Name, Arg("the expert, as for fastrl demos record", "X")],
    episodes: Annotated[int, at_least(2), Arg("episodes to record")] = 100,
    epochs: Annotated[Count, Arg("epochs of cloning")] = 50,
    timesteps: Annotated[Count, Arg("environment steps of reinforcement learning")] = 500_000,
    algo: Annotated[str, Arg("algorithm that improves the clone", "NAME")] = "ppo",
    out: Annotated[Path | None, Arg("directory of the results [runs/ENV-pipeline]", "DIR")] = None,
    skip: Annotated[
        frozenset[str], _stages, Arg("leave out stages: demos, clone, agent", "STAGE,...")
    ] = frozenset(),
    seed: Annotated[Seed, Arg("seed of all stages")] = 0,
    n_workers: Annotated[Workers, Arg("workers of recording and training")] = "auto",
    noise: Annotated[NotNegative, Arg("noise on the expert's actions")] = 0.0,
    stochastic: Annotated[
        bool, Arg("an expert that is a run draws its actions, so that the clone explores as it does")
    ] = False,
    clone: Annotated[
        Sequence[str],
        Arg("settings of cloning, such as bc.learning-rate=3e-4 demos.top=0.5", "KEY=VALUE"),
    ] = (),
    train: Annotated[
        Sequence[str],
        Arg("settings of reinforcement learning, such as ppo.critic-warmup=50000", "KEY=VALUE"),
    ] = (),
    no_compare: Annotated[bool, Arg("do not measure slices with one worker")] = False,
    trust: Annotated[bool, Arg("let the expert's file run code")] = False,
) -> int:
    """Records episodes of an expert, clones it, and improves the clone by reinforcement learning; then a report of
    time, memory and returns by stage. The same command again resumes what was interrupted and skips what is complete.
    """
    import_from_here(env, trust=trust)
    import_from_here(expert)
    load_torch(arguments)
    from fastrl.demos.pipeline import Settings, print_report, run_pipeline

    settings = Settings(
        env=env,
        expert=expert,
        episodes=episodes,
        epochs=epochs,
        timesteps=timesteps,
        algo=algo,
        out=out or Path("runs", f"{folder_name(env)}-pipeline"),
        seed=seed,
        n_workers=n_workers,
        skip=skip,
        record_options={
            "noise": noise,
            "deterministic": not stochastic,
            "trust": trust,
        },
        clone_options=[_option(each) for each in clone],
        agent_options=[_option(each) for each in train],
        compare=not no_compare,
    )
    console = plain_console()
    again = f"{prog} {shlex.join(arguments)}"
    try:
        outcome = run_pipeline(
            settings, console, lambda episodes: Progress("recording", episodes, plain_console(stderr=True))
        )
    except KeyboardInterrupt:
        print_lines(console, "", f"Interrupted; to resume: {again}")
        raise
    print_lines(console, "")
    print_report(outcome.reports, console)
    if outcome.stopped_by:
        print_lines(console, "", f"To resume: {again}")
    else:
        print_lines(console, "", f"Results, {settings.out}: demos, clone, agent, report.json, pipeline.png")
    return outcome.stopped_by


def _option(text: str) -> str:
    """An option of ``fastrl train`` from KEY=VALUE.

    Raises:
        ConfigError: another form.
    """
    key, equals, _ = text.partition("=")
    if not equals or not key or key.startswith("-"):
        raise ConfigError(f"{text!r} should be KEY=VALUE, such as ppo.learning-rate=1e-4")
    return f"--{text}"
