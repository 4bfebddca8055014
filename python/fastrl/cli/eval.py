"""The command ``fastrl eval``: scores runs and baselines, each by the protocol of its task."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastrl.cli.arguments import at_least, import_from_here, path_text, seed
from fastrl.runs.directory import is_run
from fastrl.tasks import find, load_saved
from fastrl.training.comparison import Scored, compare
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
        help="run directory, directory of runs, checkpoint file or baseline, see below; runs that differ in their seed"
        " alone are summarised",
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
        "--mode",
        choices=["deterministic", "stochastic", "both"],
        metavar="deterministic|stochastic|both",
        help="CAGE 2: take the most probable actions, draw them from the policy, or score it both ways [both;"
        " of cage2-workflow deterministic]",
    )
    parser.add_argument(
        "--paired",
        action="store_true",
        help="add the difference of each RUN to the first one in the same episodes, with its standard error",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        metavar="cpu|cuda",
        help="where the network acts, if it has no compiled actor; not of several agents [cpu]",
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
    subjects = [each for name in options.subjects for each in _runs_in(name)]
    task, saved = _task_of(subjects, trust=options.trust)
    own = _own_options(task, options)
    scored = []
    for name in subjects:
        # A baseline has one mode.
        given = {**own, "mode": "deterministic"} if name.startswith(_BASELINE) else own
        for variant in task.evaluation_variants(given):
            found = _score(task, name, variant, options)
            known = {key: value for key, value in variant.items() if key != "device"}
            if name.startswith(_BASELINE):
                del known["mode"]
            scored.append(Scored(name, known, found, saved.get(name)))
    comparison = compare(scored, paired=options.paired, own_env=not task.has_protocol)
    if options.json:
        from fastrl.utils.files import to_json

        tree = {
            "runs": [{**each.variant, **task.scores_tree(each.name, each.scores)} for each in scored],
            "seeds": [each.to_tree() for each in comparison.spreads],
            "paired": [each.to_tree() for each in comparison.differences],
        }
        print(to_json(tree, indent=2))
    else:
        task.show_scores(comparison, plain_console())
    return 0


def _runs_in(name: str) -> list[str]:
    """The runs in a directory of runs; what is none of these, as it is."""
    path = Path(name)
    if name.startswith(_BASELINE) or not path.is_dir() or is_run(path):
        return [name]
    return [str(each) for each in sorted(path.iterdir()) if is_run(each)] or [name]


def _task_of(
    subjects: list[str], *, trust: bool
) -> tuple["Task | Cage2Scoring", dict[str, Mapping[str, Any]]]:
    """The one task that all subjects belong to; of baselines alone the part that loads no PyTorch. And the nested
    settings of runs by name.

    Raises:
        ConfigError: they belong to several.
        TrustError: a run of a task of the user's own would import code.
    """
    if all(name.startswith(_BASELINE) for name in subjects):
        from fastrl.tasks.cage2.evaluate import Cage2Scoring

        return Cage2Scoring(), {}
    kinds, saved = set(), {}
    for name in subjects:
        if name.startswith(_BASELINE):
            kinds.add("cage2")
            continue
        kind, saved[name] = load_saved(Path(name))
        kinds.add(trusted_import("kind", kind, name, trust=trust))
    if len(kinds) > 1:
        raise ConfigError(
            f"runs of several kinds, {', '.join(sorted(kinds))}, cannot be scored beside each other"
        )
    return find(kinds.pop()), saved


def _own_options(task: "Task | Cage2Scoring", options: argparse.Namespace) -> dict[str, Any]:
    """The options that were given and that not all tasks have.

    Raises:
        ConfigError: an option that this task does not have.
    """
    names = ("ruleset", "mode", "device")
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
