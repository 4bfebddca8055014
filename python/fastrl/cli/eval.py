"""The command ``fastrl eval``: scores runs and baselines, each by the protocol of its task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastrl.cli.arguments import Arg, Count, Name, RunEnv, Seed, TrustRuns, command, import_from_here
from fastrl.runs.directory import is_run
from fastrl.tasks import find, load_saved
from fastrl.training.comparison import Scored, compare
from fastrl.utils.config import ConfigError
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.trust import trusted_import

if TYPE_CHECKING:
    from fastrl.tasks.cage2.evaluate import Cage2Scoring
    from fastrl.training.task import Task

# Subjects that are scripted defenders of CAGE 2.
_BASELINE = "baseline:"


def _baselines() -> str:
    from fastrl.envs.cage2.baselines import BASELINES

    return f"baselines of CAGE 2: {', '.join(f'{_BASELINE}{name}' for name in BASELINES)}"


@command(_baselines)
def evaluate(
    arguments: list[str],
    subjects: Annotated[
        Sequence[Name],
        Arg(
            "run directory, directory of runs, checkpoint file or baseline, see below; runs that differ in their seed"
            " alone are summarised",
            "RUN",
        ),
    ],
    *,
    episodes: Annotated[Count, Arg("episodes; of CAGE 2 against each red agent over each horizon")] = 1000,
    seed: Annotated[Seed, Arg("seed of the episodes")] = 0,
    ruleset: Annotated[
        Literal["main", "leaderboard", "both"] | None,
        Arg("CAGE 2: main is today's CybORG, leaderboard the one that the leaderboard was scored on [both]"),
    ] = None,
    mode: Annotated[
        Literal["deterministic", "stochastic", "both"] | None,
        Arg(
            "CAGE 2: take the most probable actions, draw them from the policy, or score it both ways [both; of"
            " cage2-workflow deterministic]"
        ),
    ] = None,
    paired: Annotated[
        bool,
        Arg("add the difference of each RUN to the first one in the same episodes, with its standard error"),
    ] = False,
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        Arg("where the network acts, if it has no compiled actor; not of several agents [cpu]"),
    ] = None,
    env: RunEnv = None,
    trust: TrustRuns = False,
    json: Annotated[bool, Arg("print the results as JSON and nothing else")] = False,
) -> int:
    """Scores runs of one kind on episodes that they were not trained on. Defenders of CAGE Challenge 2 are scored by
    the challenge's protocol, beside the published scores."""
    if any(not name.startswith(_BASELINE) for name in subjects):
        load_torch(arguments)
    import_from_here(env, trust=trust)
    names = [each for name in subjects for each in _runs_in(name)]
    task, saved = _task_of(names, trust=trust)
    options = {"ruleset": ruleset, "mode": mode, "device": device}
    options = {name: value for name, value in options.items() if value is not None}
    if foreign := [name for name in options if name not in task.evaluation_options]:
        raise ConfigError(f"--{foreign[0]} does not go with a run of {task.name}")
    named = {} if env is None else {"env.id": env}
    scored = []
    for name in names:
        # A baseline has one mode, by which its scores are not named.
        is_baseline = name.startswith(_BASELINE)
        given = {**options, "mode": "deterministic"} if is_baseline else options
        for variant in task.evaluation_variants(given):
            with Progress(name, task.evaluation_work(episodes)) as progress:
                common: dict[str, Any] = {"episodes": episodes, "seed": seed, "advance": progress.advance}
                if is_baseline:
                    found = task.evaluate_baseline(name.removeprefix(_BASELINE), **common, **variant)
                else:
                    from fastrl.training.run import evaluate_run

                    # Runs have a whole task.
                    whole = cast("Task", task)
                    found = evaluate_run(whole, Path(name), named=named, trust=trust, **common, **variant)
            hidden = ("device", "mode") if is_baseline else ("device",)
            known = {key: value for key, value in variant.items() if key not in hidden}
            scored.append(Scored(name, known, found, saved.get(name)))
    comparison = compare(scored, paired=paired, own_env=not task.has_protocol)
    if json:
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
