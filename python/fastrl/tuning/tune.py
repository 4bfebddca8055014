"""Searches from the start or resumed: trials, confirmation, report."""

import contextlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fastrl.algorithms import find as find_algorithm
from fastrl.envs.rows import ObsRows
from fastrl.runs.errors import TrainError
from fastrl.tasks import find, is_task, task_name_on
from fastrl.training.task import Task
from fastrl.tuning import report
from fastrl.tuning.figures import draw
from fastrl.tuning.phases import ConfirmationPhase, ReportPhase, SearchPhase
from fastrl.tuning.pool import Pool, ProcessPool
from fastrl.tuning.population import (
    PopulationConfirmation,
    PopulationPhase,
    check_population,
    population_space,
)
from fastrl.tuning.progress import ProgressTable
from fastrl.tuning.ray_pool import RayPool
from fastrl.tuning.report import Tuned
from fastrl.tuning.runner import Runner, SearchInterrupted
from fastrl.tuning.samplers import make_sampler
from fastrl.tuning.settings import TuneConfig, TuneSettings
from fastrl.tuning.space import Space, read_space, space_of
from fastrl.tuning.study import Study
from fastrl.tuning.trial import TuneError
from fastrl.utils.config import ConfigError, build, by_keyword, leaves, load_toml
from fastrl.utils.interrupts import StopSignals
from fastrl.utils.output import plain_console
from fastrl.utils.tables import print_lines


def space_for(task: Task, settings: Any, path: Path | None, fixed: list[str], method: str) -> Space:
    """The space of a search: that of a file, else all settings with a mark but those that the user has given.

    Raises:
        ConfigError, TuneError: a file that describes none, or none for this method.
    """
    if path is not None:
        space = read_space(settings, path).with_ends(settings, fixed)
        if method == "pbt":
            check_population(space, population_space(space))
        return space
    space = space_of(settings, has_images=_has_images(task, settings), fixed=fixed)
    space = space.with_ends(settings, fixed)
    return population_space(space) if method == "pbt" else space


def _has_images(task: Task, settings: Any) -> bool:
    if find_algorithm(settings.run.algo).many_agents:
        return False
    try:
        return bool(ObsRows(task.play_spaces(settings)[0]).kind != "vector")
    except TrainError:
        return False


def run_search(study: Study, console: Console, pool: Pool | None = None) -> Tuned:
    """Runs a search to its end, from where its journal stands.

    Args:
        pool: trains; None: worker processes, on the nodes of the study's Ray cluster if it has one.

    Raises:
        SearchInterrupted: a signal came. All is on disk.
        TuneError, CollectError: it cannot continue.
    """
    for number in study.journal.damaged:
        print_lines(console, f"line {number} of {study.journal.path} is damaged and was left out")
    opened = _pool_of(study) if pool is None else contextlib.nullcontext(pool)
    with StopSignals() as stop, ProgressTable(study, console) as progress, opened as trains:
        runner = Runner(study, trains, stop, progress.show)
        confirmation = ConfirmationPhase(study)
        if study.config.method == "pbt":
            runner.run(PopulationPhase(study))
            confirmation = PopulationConfirmation(study)
        else:
            runner.run(SearchPhase(study, make_sampler(study.config, study.space, study.seed)))
        runner.run(confirmation)
        candidates = confirmation.candidates()
        chosen = report.chosen_of(candidates, study.of_search())
        runs = [] if chosen is None else confirmation.runs_of(chosen) or [chosen]
        last = ReportPhase(study, runs)
        runner.run(last)
    return Tuned(study, candidates, chosen, last.scores())


def _pool_of(study: Study) -> ProcessPool | RayPool:
    config = study.config
    if config.ray_address is None:
        return ProcessPool(config.n_workers, study.directory, config.trial_seconds)
    pool = RayPool(config.n_workers, study.directory, config.ray_address, config.trial_seconds)
    study.cpus = pool.cpus
    return pool


def tune(
    env: str | None = None,
    *,
    algo: str | None = None,
    directory: str | Path | None = None,
    resume: str | Path | None = None,
    space: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    preset: str | None = None,
    trust: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Tuned:
    """Searches for settings, as ``fastrl tune`` does::

        found = fastrl.tune("CartPole-v1", algo="ppo", trials=40, n_workers=2, directory="runs/tune")
        model = fastrl.PPO("CartPole-v1", config=found.directory / "best.toml")

    Trials are trained by other processes, which build the environment by its id or import path.

    Args:
        env: id of an environment, import path ``"my_module:make_env"``, or name of a task.
        algo: name of an algorithm; None: the task's own.
        directory: of the search, new or empty.
        resume: the directory of a search to resume, in place of all else but ``ray_address`` and ``trust``.
        space: a TOML file that says what is searched; None: what ``fastrl tune --print-space`` prints.
        config, preset, trust: of the run that is tuned, as of `fastrl.Model`; ``trust`` also of the search to resume.
        progress: show how far it is; None: on a terminal.
        settings: of the search (``trials``, ``method``, ``n_workers``, ``confirm``, ...), or of the run
            (``total_timesteps``, ``learning_rate``), which are not searched then.

    Raises:
        UserError: one line: it cannot start or continue.
        KeyboardInterrupt: it was interrupted; all is on disk.
    """
    console = plain_console()
    if not (console.is_terminal if progress is None else progress):
        console = Console(quiet=True)
    if resume is not None:
        study = Study(Path(resume), settings.get("ray_address"), trust=trust)
    else:
        if env is None or directory is None:
            raise ConfigError("tune: name an environment and a directory for the search, or resume=DIRECTORY")
        study = _new_study(env, algo, Path(directory), space, config, preset, settings, trust=trust)
    with study:
        try:
            found = run_search(study, console)
        except SearchInterrupted:
            raise KeyboardInterrupt from None
        return finish(found, console)


def _new_study(
    env: str,
    algo: str | None,
    directory: Path,
    space: str | Path | None,
    config: str | Path | Mapping[str, Any] | None,
    preset: str | None,
    settings: Mapping[str, Any],
    *,
    trust: bool,
) -> Study:
    search_names = {key.rpartition(".")[2] for key in leaves(TuneSettings)}
    of_search = by_keyword(
        TuneSettings, "tune", {key: settings[key] for key in settings if key in search_names}
    )
    task = find(env if is_task(env) else task_name_on(env, algo))
    tree = config if isinstance(config, Mapping) else {} if config is None else load_toml(config)
    name = algo or task.choose_algorithm(preset, tree, str(config), trust=trust, env_id=env)
    config_type = task.settings_type(name)
    changes = by_keyword(
        config_type,
        task.algorithm_table(name),
        {key: settings[key] for key in settings if key not in search_names},
    )
    fixed = list(changes)
    changes["run.algo"] = name
    if not is_task(env):
        changes["env.id"] = env
    of_run = task.make_settings(changes, preset=preset, tree=tree, source=str(config), trust=trust)
    tune_config = build(TuneSettings, of_search).tune
    searched = space_for(task, of_run, None if space is None else Path(space), fixed, tune_config.method)
    return new_study(directory, tune_config, task, of_run, searched)


def new_study(directory: Path, config: TuneConfig, task: Task, settings: Any, space: Space) -> Study:
    """Starts a search in a new directory.

    Raises:
        TuneError, ConfigError: it cannot start; nothing has been written then.
    """
    if not space.parameters:
        raise TuneError("the space is empty: no setting is left to search")
    if not settings.run.eval_episodes:
        raise ConfigError("--run.eval-episodes: trials are compared by evaluations, give at least 1")
    make_sampler(config, space, 0)
    return Study.create(directory, config, task, settings, space)


def finish(found: Tuned, console: Console) -> Tuned:
    """Writes the report and draws the figures of a search that has ended."""
    study = found.study
    report.write(found, console)
    try:
        if files := draw(study, found.confirmed):
            print_lines(console, "", f"Figures: {', '.join(map(str, files))}")
            if not importlib.util.find_spec("sklearn"):
                print_lines(console, "Importances of settings need scikit-learn: pip install 'fastrl[tune]'")
    except Exception as error:  # A picture that cannot be drawn spoils no search.
        print_lines(console, f"the figures were not drawn: {error!r}")
    return found
