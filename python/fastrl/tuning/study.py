"""The directory of a search: what is searched, the journal, and the run directories of its trials."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from fastrl.collectors.resources import cores
from fastrl.sources.collecting import CollectConfig
from fastrl.tasks import find
from fastrl.training.task import Task
from fastrl.tuning.journal import Journal
from fastrl.tuning.settings import TuneConfig, TuneSettings
from fastrl.tuning.space import Space, read_space
from fastrl.tuning.trial import Result, Trial, TuneError
from fastrl.utils.closing import Closing
from fastrl.utils.config import Values, build, check, load_toml, to_toml, values_of
from fastrl.utils.files import write_atomically
from fastrl.utils.trust import from_file, refuse_reach, trusted_import

# Files of a search. The last one that is written, `_TUNE`, makes a directory a search's.
_TUNE, _SETTINGS, _SPACE = "tune.toml", "settings.toml", "space.toml"


class Study(Closing):
    """A search in its directory, which this process alone writes to.

    Args:
        directory: of a search that is there, see `create`.
        ray_address: in place of its own.
        trust: its files may import code and connect to a Ray cluster, as they say.

    Attributes:
        config: of the search.
        trust: as given.
        task, settings: of the run that is tuned; of the settings some are varied.
        space: these.
        trials: all that were started, also those of the confirmation, by name.
        cpus: processors of each, of those that run side by side.

    Raises:
        TuneError: there is no search.
        TrustError: its files would do something that is not trusted.
        JournalError: another process has it.
    """

    def __init__(self, directory: Path, ray_address: str | None = None, *, trust: bool = False) -> None:
        directory = directory.absolute()
        if not is_study(directory):
            raise TuneError(
                f"{directory} has no search in it: start one with fastrl tune ENV --dir {directory}"
            )
        self.directory, self.trust = directory, trust
        named = {} if ray_address is None else {"tune.ray_address": ray_address}
        tune = load_toml(directory / _TUNE)
        self.config: TuneConfig = build(
            TuneSettings,
            from_file(TuneSettings, tune, str(directory / _TUNE), trust=trust, named=named),
            named,
        ).tune
        self.cpus = max(cores() // self.config.n_workers, 1)
        self.task, self.settings = _task_and_settings(directory / _SETTINGS, trust=trust)
        self.space = read_space(self.settings, directory / _SPACE)
        self._base = values_of(self.settings)
        self.journal = Journal(directory)
        self.trials: dict[str, Trial] = {}
        for record in self.journal.records:
            self._replay(record)
        (directory / "trials").mkdir(exist_ok=True)

    @classmethod
    def create(cls, directory: Path, config: TuneConfig, task: Task, settings: Any, space: Space) -> Self:
        """Starts a search in a new or empty directory.

        Raises:
            TuneError: there is something else in it.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            files = [path.name for path in directory.iterdir()]
        except OSError as error:
            raise TuneError(f"cannot make the directory {directory}: {error.strerror}") from None
        if is_study(directory):
            raise TuneError(
                f"{directory} has a search in it: resume it with --resume {directory}, or choose another --dir"
            )
        # A search that was killed while these were written starts over.
        if foreign := sorted(name for name in files if name.strip(".").partition(".toml")[0] not in _OWN):
            raise TuneError(f"{directory} is not empty (there is {foreign[0]} in it): choose another --dir")
        write_atomically(directory / _SETTINGS, f'kind = "{task.name}"\n\n{to_toml(settings)}'.encode())
        write_atomically(directory / _SPACE, space.to_toml().encode())
        write_atomically(directory / _TUNE, to_toml(TuneSettings(tune=config)).encode())
        # The caller has named or trusted all of it.
        return cls(directory, trust=True)

    def _replay(self, record: Mapping[str, Any]) -> None:
        name = str(record["trial"])
        if Path(name).name != name:
            raise TuneError(
                f"{self.journal.path} names a trial {name!r}, which is no name of a run directory"
            )
        if name not in self.trials:
            # Lists of JSON are tuples in a space.
            point = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in record["point"].items()
            }
            self.trials[name] = Trial(name, int(record["number"]), point, int(record["seed"]))
        trial = self.trials[name]
        if record["event"] == "killed":
            trial.kills += 1
        elif record["event"] == "ended":
            trial.result = Result.from_tree(record["result"])

    def _record(self, event: str, trial: Trial, **more: Any) -> None:
        self.journal.append(
            {
                "event": event,
                "trial": trial.name,
                "number": trial.number,
                "seed": trial.seed,
                "point": trial.point,
                **more,
            }
        )

    def started(self, trial: Trial) -> None:
        """Writes down that a trial starts for the first time."""
        self._record("started", trial)
        self.trials[trial.name] = trial

    def killed(self, trial: Trial) -> None:
        """Writes down that a trial's process has died."""
        self._record("killed", trial)
        trial.kills += 1

    def ended(self, trial: Trial, result: Result) -> None:
        """Writes down how a trial has ended."""
        self._record("ended", trial, result=result.to_tree())
        trial.result = result

    @property
    def seed(self) -> int:
        """Seed of the search, from which all others follow."""
        return int(self.settings.run.seed)

    def run_of(self, trial: Trial) -> Path:
        """The run directory of a trial."""
        return self.directory / "trials" / trial.name

    def of_search(self) -> list[Trial]:
        """The trials of the search itself, by number; of a population the last parts of its members."""
        return self.named(
            f"member-{self.config.generations - 1:03d}-" if self.config.method == "pbt" else "trial-"
        )

    def named(self, prefix: str) -> list[Trial]:
        """The trials whose names begin so, by number."""
        found = [trial for trial in self.trials.values() if trial.name.startswith(prefix)]
        return sorted(found, key=lambda trial: (trial.number, trial.name))

    def trial_settings(self, trial: Trial, changes: Values | None = None) -> Any:
        """The settings of a trial's run.

        Args:
            changes: further ones, by dotted key.

        Raises:
            ConfigError: its values do not go together.
        """
        fixed: Values = {
            "run.seed": trial.seed,
            "run.loggers": (),
            "run.keep_checkpoints": 1,
            **(
                {"run.eval_points": self.config.points, "run.eval_freq": 0}
                if self.task.evaluates_on_the_way
                else {}
            ),
        }
        collect = getattr(self.settings, "collect", None)
        if isinstance(collect, CollectConfig):
            fixed["collect.n_workers"] = collect.with_cores(self.cpus).n_workers
        if self.settings.run.threads == "auto":
            fixed["run.threads"] = self.cpus
        return self.with_values(
            {
                **self.space.values(trial.point),
                **{key: fixed[key] for key in fixed if key in self._base},
                **(changes or {}),
            }
        )

    def with_values(self, values: Values) -> Any:
        """The settings of the run that is tuned, with other values by dotted key."""
        return build(type(self.settings), self._base, values)

    def toml(self, settings: Any) -> bytes:
        """Settings as a file that ``fastrl train --config`` takes."""
        return f'kind = "{self.task.name}"\n\n{to_toml(settings)}'.encode()

    def job(self, trial: Trial, settings: Any) -> dict[str, Any]:
        """The job that a worker gets to train a trial; its settings are on disk when this returns."""
        run = self.run_of(trial)
        config = run.with_name(f"{run.name}.toml")
        if not config.exists():
            write_atomically(config, self.toml(settings))
        return {
            "kind": self.task.name,
            "config": str(config),
            "run": str(run),
            "log": str(run.with_name(f"{run.name}.log")),
            "trust": self.trust,
        }

    def close(self) -> None:
        self.journal.close()


_OWN = {name.partition(".toml")[0] for name in (_TUNE, _SETTINGS, _SPACE)}


def _task_and_settings(file: Path, *, trust: bool) -> tuple[Task, Any]:
    """The task that a file names, and the settings in it.

    Raises:
        TrustError: it would import code, connect to a Ray cluster or write elsewhere.
    """
    tree, source = load_toml(file), str(file)
    task = find(trusted_import("kind", str(tree.pop("kind", None)), file, trust=trust))
    config_type = task.settings_type(trusted_import("run.algo", task.algorithm_in(tree), file, trust=trust))
    refuse_reach(config_type, check(config_type, tree, source), source, trust=trust, named=None)
    return task, task.make_settings(tree=tree, source=source, trust=True)


def is_study(directory: Path) -> bool:
    """True for the directory of a search."""
    with contextlib.suppress(OSError):
        return (directory / _TUNE).is_file()
    return False
