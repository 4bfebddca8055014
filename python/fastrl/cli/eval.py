"""The command ``fastrl eval``: scores runs and baselines, each by the protocol of its task."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastrl.cli.arguments import (
    Arg,
    Count,
    Name,
    Picture,
    Seed,
    TrustRuns,
    check_folders,
    command,
    import_from_here,
)
from fastrl.play.own_agent import is_agent
from fastrl.runs.curves import SUFFIXES
from fastrl.runs.directory import is_run
from fastrl.tasks import agent_task_on, find, load_saved, tasks
from fastrl.training.comparison import Scored, compare
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.utils.config import ConfigError, Values
from fastrl.utils.output import plain_console
from fastrl.utils.progress import Progress, load_torch
from fastrl.utils.trust import trusted_import

if TYPE_CHECKING:
    from fastrl.training.task import Task

# Subjects that are scripted defenders.
_BASELINE = "baseline:"


def _is_agent(name: str) -> bool:
    return not name.startswith(_BASELINE) and is_agent(name)


def _baselines() -> str:
    lists = (
        f"baselines of {task}: {', '.join(f'{_BASELINE}{name}' for name in names)}"
        for task, names in _baselines_by_task().items()
    )
    return (
        "\n".join(lists) + "\n"
        "those that both have are cage2's, unless --env is cage4 or a run of cage4 is named too\n\n"
        "an agent of your own is module:name, a function from an observation to an action or a class with act(obs) or"
        " get_action(observation, action_space); it is scored in the environment of the runs beside it, or of --env:\n"
        "  fastrl eval my_agent:Agent --env CartPole-v1 --episodes 100\n"
        "  fastrl eval my_agent:Agent baseline:react-restore --env cage2"
    )


def _baselines_by_task() -> dict[str, tuple[str, ...]]:
    return {name: folder.BASELINES for name, folder in tasks().items() if hasattr(folder, "BASELINES")}


@command(_baselines)
def evaluate(
    arguments: list[str],
    subjects: Annotated[
        Sequence[Name],
        Arg(
            "run directory, directory of runs, checkpoint file, baseline or agent of your own, see below; runs that"
            " differ in their seed alone are summarised",
            "RUN",
        ),
    ],
    *,
    episodes: Annotated[Count, Arg("episodes; of CAGE 2 against each red agent over each horizon")] = 1000,
    seed: Annotated[Seed, Arg("seed of the episodes")] = 0,
    ruleset: Annotated[
        Literal["main", "leaderboard", "plusplus", "both"] | None,
        Arg(
            "CAGE 2: main is today's CybORG, leaderboard the one that the leaderboard was scored on, plusplus the one"
            " that CybORG++ has mended, both the first two [both]"
        ),
    ] = None,
    mode: Annotated[
        Literal["deterministic", "stochastic", "both"] | None,
        Arg(
            "CAGE: take the most probable actions, draw them from the policy, or score it both ways [both; of"
            " cage4 and cage2-workflow deterministic]"
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
    env: Annotated[
        str | None,
        Arg(
            "the run's environment, which may import code then; the environment of an agent of your own; of baselines"
            " cage2 or cage4",
            "ID",
        ),
    ] = None,
    trust: TrustRuns = False,
    json: Annotated[bool, Arg("print the results as JSON and nothing else")] = False,
    figure: Annotated[
        Picture | None,
        Arg(f"CAGE 2: also draw what red held and lost, {' or '.join(SUFFIXES)}", "FILE"),
    ] = None,
) -> int:
    """Scores runs of one kind on episodes that they were not trained on. Defenders of CAGE Challenges 2 and 4 are
    scored by the challenges' protocols, beside the published scores."""
    if any(not name.startswith(_BASELINE) for name in subjects):
        load_torch(arguments)
    for name in (env, *filter(_is_agent, subjects)):
        import_from_here(name, trust=trust)
    names = [each for name in subjects for each in _runs_in(name)]
    task, saved = _task_of(names, env, trust=trust)
    options = {"ruleset": ruleset, "mode": mode, "device": device}
    options = {name: value for name, value in options.items() if value is not None}
    if foreign := [name for name in options if name not in task.evaluation_options]:
        raise ConfigError(f"--{foreign[0]} does not go with a run of {task.name}")
    if figure is not None and not hasattr(task, "draw_scores"):
        raise ConfigError(f"--figure does not go with a run of {task.name}")
    check_folders(figure)
    named = {} if env is None or env == task.name else {"env.id": env}
    scored = []
    agents = any(map(_is_agent, names))
    beside = _settings_beside(task, saved, named, trust=trust) if agents else None
    planned: list[tuple[str, bool, dict[str, Any]]] = []
    for name in names:
        # A baseline, or an agent of the user's own, has one mode, by which its scores are not named.
        is_scripted = name.startswith(_BASELINE) or _is_agent(name)
        given = {**options, "mode": "deterministic"} if is_scripted else options
        planned += [(name, is_scripted, variant) for variant in task.evaluation_variants(given)]
    with Progress("evaluating", len(planned) * task.evaluation_work(episodes)) as progress:
        for name, is_scripted, variant in planned:
            asked = EvaluationOptions(episodes, seed, progress.advance, **variant)
            progress.describe(name)
            if _is_agent(name):
                found = task.evaluate_agent(name, beside, asked)
            elif is_scripted:
                found = task.evaluate_baseline(name.removeprefix(_BASELINE), asked)
            else:
                from fastrl.training.run import evaluate_run

                # Runs have a whole task.
                whole = cast("Task", task)
                found = evaluate_run(whole, Path(name), asked, named=named, trust=trust)
            hidden = ("device", "mode") if is_scripted else ("device",)
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
    if figure is not None:
        task.draw_scores(comparison, figure)
    return 0


def _runs_in(name: str) -> list[str]:
    """The runs in a directory of runs; what is none of these, as it is."""
    path = Path(name)
    if name.startswith(_BASELINE) or not path.is_dir() or is_run(path):
        return [name]
    return [str(each) for each in sorted(path.iterdir()) if is_run(each)] or [name]


def _settings_beside(task: Any, runs: Iterable[str], named: Values, *, trust: bool) -> Any:
    """Settings of runs in the environment in which an agent is scored: those of the first run, or new ones."""
    for run in runs:
        from fastrl.training.run import load_run

        return load_run(task, Path(run), trust=trust, named=named)[0]
    return task.make_settings(named) if named else None


def _task_of(
    subjects: list[str], env: str | None, *, trust: bool
) -> tuple[Any, dict[str, Mapping[str, Any]]]:
    """The one task that all subjects belong to; of baselines alone the part that loads no PyTorch. And the nested
    settings of runs by name.

    Raises:
        ConfigError: they belong to several.
        TrustError: a run of a task of the user's own would import code.
    """
    agents = [name for name in subjects if _is_agent(name)]
    baselines = [name for name in subjects if name.startswith(_BASELINE)]
    if agents and len(agents) == len(subjects) and env is None:
        raise ConfigError(f"{agents[0]}: say where it is scored: --env cage2, --env CartPole-v1")
    kinds, saved = set(), {}
    for name in subjects:
        if name in agents and env is not None:
            kinds.add(agent_task_on(env))
        elif name not in agents and name not in baselines:
            kind, saved[name] = load_saved(Path(name))
            kinds.add(trusted_import("kind", kind, name, trust=trust))
    if baselines:
        kinds.add(_baseline_task(baselines, kinds, env))
    if len(kinds) > 1:
        raise ConfigError(
            f"runs of several kinds, {', '.join(sorted(kinds))}, cannot be scored beside each other"
        )
    task = kinds.pop()
    if not saved and task in _baselines_by_task():
        scoring = import_module(f"{tasks()[task].__name__}.evaluate").SCORING
        if not agents or hasattr(scoring, "evaluate_agent"):
            return scoring, {}
    return find(task), saved


def _baseline_task(baselines: Sequence[str], kinds: Iterable[str], env: str | None) -> str:
    """The task whose baselines they are: of ``--env`` or of what stands beside them, else the first that has all."""
    known = _baselines_by_task()
    names = {name.removeprefix(_BASELINE) for name in baselines}
    beside = [name for name in (env, *kinds) if name in known]
    having = [name for name, theirs in known.items() if names <= {*theirs}]
    return (*beside, *having, *known)[0]
