"""Models from checkpoints."""

import dataclasses
from pathlib import Path
from typing import Any

from fastrl.algorithms.protocol import Algorithm
from fastrl.envs.spec import any_spec
from fastrl.model import Model, console_of
from fastrl.model_arguments import check_same_options, import_path, on_spec
from fastrl.model_types import model_type
from fastrl.runs.checkpoint import CheckpointError, find_checkpoint
from fastrl.tasks import find as find_task
from fastrl.tasks import load_saved
from fastrl.training.run import load_run, restored
from fastrl.training.stages import saved_settings
from fastrl.training.trainer import Trainer
from fastrl.utils.config import ConfigError, Values, build, check
from fastrl.utils.processes import require_main_guard
from fastrl.utils.trust import from_file, trusted_import


def load(
    path: str | Path,
    *,
    env: Any = None,
    algo: str | type[Algorithm[Any]] | None = None,
    network: Any = None,
    demos: Any = None,
    trust: bool = False,
) -> Model:
    """The model of a run directory (its newest checkpoint), or of a file that `Model.save` has written.

    The file has all that `Model.predict` needs. The environment is built, and its code imported, where the model learns
    or is evaluated.

    Args:
        path: of either. ``learn(run_dir=path)`` continues in the same run directory.
        env: as for `Model`, where the run cannot name its environment, such as a function of a notebook, or names code,
            which is imported only if it is named here or with ``trust``.
        algo, network: the same for an algorithm and a network of the user's own.
        demos: the data set that the run has learned from, or its folder, to learn more where the run's own is not there
            any more. To act and be evaluated a model needs none.
        trust: the file may import code, connect to a Ray cluster and write files, as it says.

    Raises:
        CheckpointError: there is no checkpoint, or a damaged or foreign one.
        TrustError: it would import code that was not named.
        UserError, CollectError: as of `Model`.
    """
    require_main_guard()
    path = Path(path)
    kind, config = load_saved(path)
    if config is None:
        raise CheckpointError(f"{path} has no checkpoint: its run was killed before the first")
    task = find_task(trusted_import("kind", kind, path, trust=trust))
    named: Values = {}
    if algo is not None:
        named["run.algo"] = import_path("algo", algo)
    if env is not None:
        spec = any_spec(env)
        task = on_spec(task, spec)
        named["env.id"] = spec.id
    if network is not None:
        table = task.algorithm_table(named.get("run.algo") or task.algorithm_in(config))
        named[f"{table}.network"] = import_path("network", network)
    settings, state = load_run(task, path, trust=trust, named=named, to_act=True)
    file, config_type = find_checkpoint(path), type(settings)
    if env is not None:
        check_same_options(env, settings, file)
    if "stages" in state:
        settings = build(config_type, check(config_type, saved_settings(state), str(file)))
    if isinstance(demos, str | Path):
        if not hasattr(settings, "demos"):
            raise ConfigError(f"demos: {settings.run.algo} does not learn from demonstrations, leave it out")
        with_path = dataclasses.replace(settings.demos, path=Path(demos))
        settings = dataclasses.replace(settings, demos=with_path)
    elif demos is not None:
        task = task.with_demos(demos)

    def restore() -> Trainer:
        for tree in (state["config"], saved_settings(state)):
            from_file(config_type, tree, str(file), trust=trust, named=named)
        return restored(task.to_act(), task.resolve_defaults(settings), file, state, console_of())

    model = Model.__new__(model_type(settings.run.algo))
    model._start(task, settings, restore, state)
    if file.parent.name == "checkpoints":
        model._directory = file.parent.parent.resolve()
    return model
