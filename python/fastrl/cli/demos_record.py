"""The commands ``fastrl demos record`` and ``fastrl demos replay``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastrl.cli.arguments import (
    Arg,
    Count,
    EnvOptions,
    Name,
    NotNegative,
    Positive,
    Seed,
    Workers,
    at_least,
    command,
    import_from_here,
)
from fastrl.tasks import with_experts
from fastrl.utils.env_options import read_options
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.tables import print_lines


def _experts() -> str:
    scripted = "; ".join(f"{folder.EXPERTS}: {folder.EXPERT_NAMES}" for folder in with_experts())
    return (
        f"a run directory or checkpoint file; {scripted}; random; a zip file of Stable-Baselines3; module:function,"
        " from an observation, of many agents also the agent's name, to an action; or module:Agent, as of fastrl eval"
    )


@command(
    "{prog} CartPole-v1 --expert runs/cart --episodes 100 --out demos/cart\n"
    "{prog} fastrl/Cage2-v0 --env-options red_agent=bline --expert baseline:react-restore --episodes 1000"
    " --out demos/cage2 --noise 0.1\n"
    "{prog} my_module:make_env --expert my_module:expert --episodes 10 --out demos/mine"
)
def record(
    arguments: list[str],
    env: Annotated[
        Name | None,
        Arg(
            "an environment's id, module:function, or a task such as cage2; left out: that of the expert's run",
            "ENV",
        ),
    ] = None,
    *,
    env_options: EnvOptions = (),
    expert: Annotated[Name, Arg(_experts, "X")],
    episodes: Annotated[Count, Arg("number of episodes")],
    out: Annotated[Path, Arg("directory of the data set, new or empty", "DIR")],
    resume: Annotated[
        bool, Arg("continue a recording that was interrupted, or add episodes up to --episodes")
    ] = False,
    noise: Annotated[
        NotNegative, Arg("noise on the actions; the expert's own are stored beside those taken")
    ] = 0.0,
    noise_kind: Annotated[
        Literal["epsilon", "gaussian"] | None,
        Arg(
            "epsilon: share of steps with a random action; gaussian: standard deviation, as a share of half the"
            " range of the actions [gaussian for numbers, else epsilon]"
        ),
    ] = None,
    stochastic: Annotated[
        bool, Arg("a run's policy draws its actions; otherwise it takes the likeliest")
    ] = False,
    seed: Annotated[Seed, Arg("seed of all episodes")] = 0,
    max_episode_steps: Annotated[
        int, at_least(0), Arg("longer episodes are truncated; 0: at the environment's limit, else 1000")
    ] = 0,
    infos: Annotated[
        Sequence[str],
        Arg(
            "keys of infos to record, whose values are numbers or arrays; all: every such key; of many agents"
            " action_mask alone",
            "KEY",
        ),
    ] = (),
    collector: Annotated[
        Literal["auto", "sequential", "sync", "executor", "native", "ray"],
        Arg(
            "sequential: in this process; sync: processes that step together; executor: processes that each run at"
            " their own pace; native: threads, for fastrl's compiled environments; ray: Ray actors"
        ),
    ] = "auto",
    n_workers: Annotated[Workers, Arg("processes or threads")] = "auto",
    task_timeout: Annotated[
        Positive | None, Arg("seconds after which a worker that does not answer is replaced [300]")
    ] = None,
    ray_address: Annotated[
        str | None, Arg("address of a running Ray cluster [start Ray here]", "ADDRESS")
    ] = None,
    trust: Annotated[
        bool, Arg("let the expert's file run code, as a model of Stable-Baselines3 does")
    ] = False,
) -> int:
    """Records episodes of an expert. Episode i follows from the seed and i: the files are the same from any collector
    and any number of workers, and --resume continues to the same files."""
    import_from_here(env, trust=trust)
    import_from_here(expert)
    load_torch(arguments)
    from fastrl.demos.recorder import record as record_episodes

    console = plain_console(stderr=True)
    further: dict[str, Any] = {"task_timeout": task_timeout, "ray_address": ray_address}
    with Progress("recording", episodes, console) as progress:
        demos = record_episodes(
            env,
            expert,
            episodes,
            out,
            env_options=read_options(env_options),
            noise=noise,
            noise_kind=noise_kind,
            seed=seed,
            deterministic=not stochastic,
            max_episode_steps=max_episode_steps,
            infos=tuple(infos),
            collector=collector,
            n_workers=n_workers,
            resume=resume,
            trust=trust,
            advance=progress.advance,
            log=lambda line: print_lines(console, line),
            **{name: value for name, value in further.items() if value is not None},
        )
    returns = demos.returns
    print(
        f"{out}: {len(demos):,} episodes, {demos.num_steps:,} steps, mean return {returns.mean():.6g},"
        f" from {returns.min():.6g} to {returns.max():.6g}"
    )
    return 0


@command()
def replay(
    folder: Annotated[Path, Arg("a data set", "DIR")],
    *,
    episodes: Annotated[Count | None, Arg("number of episodes, evenly chosen [all]")] = None,
    env: Annotated[
        str | None, Arg("the environment, which may import code then [that of the data set]", "ID")
    ] = None,
    trust: Annotated[bool, Arg("let the data set's environment import code, as it says")] = False,
) -> int:
    """Plays the stored actions again and says whether observations, rewards and ends agree to the bit. The exit code is
    1 if they do not."""
    import_from_here(env, trust=trust)
    from fastrl.demos.replaying import replay as replay_episodes

    with Progress("replaying", None) as progress:
        report = replay_episodes(
            folder,
            episodes=episodes,
            env=env,
            trust=trust,
            advance=progress.advance,
        )
    print("\n".join(report.lines()))
    return 0 if report.agrees else 1
