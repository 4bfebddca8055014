"""The command ``fastrl eval``: scores runs and baselines, each by the protocol of its task."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.cli.arguments import at_least, import_from_here, path_text, seed
from fastrl.tasks import find, load_saved
from fastrl.utils.command_line import ArgumentParser
from fastrl.utils.config import ConfigError
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.trust import trusted_import

if TYPE_CHECKING:
    from fastrl.tasks.cage2.evaluate import Cage2Scoring
    from fastrl.training.evaluation import Scores
    from fastrl.training.task import Task

# Subjects that are scripted defenders of CAGE 2.
_BASELINE = "baseline:"


def evaluate(prog: str, arguments: list[str]) -> int:
    """Scores runs on episodes that they were not trained on; defenders of CAGE 2 by the challenge's protocol."""
    from fastrl.envs.cage2.baselines import BASELINES

    parser = ArgumentParser(
        prog=prog,
        description="Scores runs of one kind on episodes that they were not trained on. Defenders of CAGE Challenge 2"
        " are scored by the challenge's protocol, beside the published scores.",
        epilog=f"baselines of CAGE 2: {', '.join(f'{_BASELINE}{name}' for name in BASELINES)}",
    )
    parser.add_argument(
        "subjects",
        nargs="+",
        type=path_text,
        metavar="RUN",
        help="run directory, checkpoint file or baseline, see below",
    )
    parser.add_argument(
        "--episodes",
        type=at_least(1),
        default=1000,
        metavar="INT",
        help="episodes; of CAGE 2 against each red agent over each horizon [1000]",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="INT", help="seed of the episodes [0]")
    parser.add_argument(
        "--ruleset",
        choices=["main", "leaderboard", "both"],
        metavar="main|leaderboard|both",
        help="CAGE 2: main is today's CybORG, leaderboard the one that the leaderboard was scored on [both]",
    )
    parser.add_argument(
        "--stochastic",
        action="store_true",
        default=None,
        help="CAGE 2: draw actions from the policy instead of taking the most probable",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        metavar="cpu|cuda",
        help="CAGE 2: where the network acts [cpu]",
    )
    parser.add_argument("--env", metavar="ID", help="the run's environment, which may import code then")
    parser.add_argument(
        "--trust", action="store_true", help="let the runs import code, as their checkpoints say"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    options = parser.parse_args(arguments)
    if any(not name.startswith(_BASELINE) for name in options.subjects):
        load_torch(arguments)
    import_from_here(options.env, trust=options.trust)
    task = _task_of(options.subjects, trust=options.trust)
    own = _own_options(task, options)
    scores: list[tuple[str, Scores]] = []
    for name in options.subjects:
        for variant in task.evaluation_variants(own):
            found = _score(task, name, variant, options)
            scores.append((name, found))
    if options.json:
        from fastrl.utils.files import to_json

        print(to_json([task.scores_tree(name, found) for name, found in scores], indent=2))
    else:
        task.show_scores(scores, plain_console())
    return 0


def _task_of(subjects: list[str], *, trust: bool) -> "Task | Cage2Scoring":
    """The one task that all subjects belong to; of baselines alone the part that loads no PyTorch.

    Raises:
        ConfigError: they belong to several.
        TrustError: a run of a task of the user's own would import code.
    """

    def kind_of(name: str) -> str:
        if name.startswith(_BASELINE):
            return "cage2"
        return trusted_import("kind", load_saved(Path(name))[0], name, trust=trust)

    if all(name.startswith(_BASELINE) for name in subjects):
        from fastrl.tasks.cage2.evaluate import Cage2Scoring

        return Cage2Scoring()
    kinds = set(map(kind_of, subjects))
    if len(kinds) > 1:
        raise ConfigError(
            f"runs of several kinds, {', '.join(sorted(kinds))}, cannot be scored beside each other"
        )
    return find(kinds.pop())


def _own_options(task: "Task | Cage2Scoring", options: argparse.Namespace) -> dict[str, Any]:
    """The options that were given and that not all tasks have.

    Raises:
        ConfigError: an option that this task does not have.
    """
    names = ("ruleset", "stochastic", "device")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    for name in given:
        if name not in task.evaluation_options:
            raise ConfigError(f"--{name} does not go with a run of {task.name}")
    return given


def _score(
    task: "Task | Cage2Scoring", name: str, own: dict[str, Any], options: argparse.Namespace
) -> "Scores":
    common: dict[str, Any] = {"episodes": options.episodes, "seed": options.seed}
    with Progress(name, task.evaluation_work(options.episodes)) as progress:
        if name.startswith(_BASELINE):
            return task.evaluate_baseline(
                name.removeprefix(_BASELINE), **common, advance=progress.advance, **own
            )
        from fastrl.training.run import evaluate_run
        from fastrl.training.task import Task

        assert isinstance(task, Task), "runs have a whole task"

        named = {} if options.env is None else {"env.id": options.env}
        return evaluate_run(
            task,
            Path(name),
            **common,
            advance=progress.advance,
            trust=options.trust,
            named=named,
            **own,
        )
