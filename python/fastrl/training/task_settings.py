"""The settings of a task's runs: defaults, presets, and what is taken from where."""

import dataclasses
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from fastrl.algorithms import declaration, declarations
from fastrl.algorithms.intrinsic_settings import IntrinsicConfig
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.algorithms.protocol import Algorithm, DatasetAlgorithm, OffPolicyAlgorithm
from fastrl.runs.errors import TrainError
from fastrl.runs.settings import (
    RunConfig,
    Settings,
    algorithms_of,
    settings_type,
    table_of,
    with_one_goal,
)
from fastrl.sources.collecting import CollectConfig
from fastrl.training.stages import OF_NETWORKS
from fastrl.utils.config import ConfigError, Preset, Values, build, check, sections, without_effect
from fastrl.utils.names import suggestion
from fastrl.utils.trust import from_file, trusted_import


class TaskSettings:
    """The settings of a task's runs.

    Class attributes:
        name: by which the command line and checkpoints call it; of a task outside the package, its import path, which
            `fastrl.tasks.find` sets.
        run: defaults of the table ``[run]``.
        env: defaults of the table ``[env]``, an instance of the task's own section.
        collect: defaults of the table ``[collect]``, for algorithms that learn from an environment.
        replay: settings of the table ``[replay]`` that are others than usual, for algorithms that learn from
            transitions.
        tables: defaults of further tables, by name.
        presets: settings by name; of algorithms' tables those of the algorithm that is chosen are used.
        many_agents: its environments have many agents.
        masks_by_default: algorithms that can use action masks do.
    """

    name: str
    run: ClassVar[RunConfig] = RunConfig()
    env: ClassVar[Any]
    collect: ClassVar[CollectConfig] = CollectConfig()
    replay: ClassVar[Mapping[str, Any]] = {}
    tables: ClassVar[Mapping[str, Any]] = {}
    presets: ClassVar[Mapping[str, Preset]] = {}
    many_agents: ClassVar[bool] = False
    masks_by_default: ClassVar[bool] = False

    def default_presets(self, settings: Any) -> Sequence[str]:
        """Presets of the environment that settings name; further presets override them."""
        return ()

    def settings_type(self, algorithm: str) -> type[Any]:
        """The type of the settings of runs with an algorithm: a section for each table.

        Raises:
            AlgorithmError: there is no such algorithm.
            TrainError: it does not go with the task.
        """
        found = declaration(algorithm)
        if not self.takes(found):
            raise TrainError(
                f"--algo {algorithm} is for {'many agents' if found.many_agents else 'one agent'}, {self.name} has"
                f" {'many' if self.many_agents else 'one'};"
                f" {', '.join(name for name, other in declarations().items() if self.takes(other))} learn in it"
            )
        return settings_type(
            self.settings_tables(found) | {table_of(found.name): self.algorithm_defaults(found)}
        )

    def algorithm_defaults(self, algorithm: type[Algorithm[Any]]) -> Any:
        """Default settings of an algorithm in this task."""
        config = algorithm.config_type()
        known = {each.name for each in dataclasses.fields(config)}
        masked = self.masks_by_default and "action_masks" in known
        return dataclasses.replace(config, action_masks=True) if masked else config

    def _network_values(self, algorithm: type[Algorithm[Any]], values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the settings of a network that ``algorithm`` has, too, to start with the weights of another one."""
        from fastrl.algorithms.multi_agent_settings import TeamNetworkConfig

        known = {each.name for each in dataclasses.fields(algorithm.config_type)}
        of_networks = (
            field.name for each in (NetworkConfig, TeamNetworkConfig) for field in dataclasses.fields(each)
        )
        shared = known & {*OF_NETWORKS, *of_networks}
        return {name: value for name, value in values.items() if name in shared}

    def takes(self, algorithm: type[Algorithm[Any]]) -> bool:
        """True for algorithms that its runs may train with."""
        return algorithm.many_agents == self.many_agents

    def algorithm_table(self, algorithm: str) -> str:
        """The table of an algorithm's settings."""
        return table_of(declaration(algorithm).name)

    def algorithm_settings(self, settings: Settings) -> Any:
        """The settings of a run's algorithm."""
        return getattr(settings, self.algorithm_table(settings.run.algo))

    def settings_tables(self, algorithm: type[Algorithm[Any]]) -> dict[str, Any]:
        """Default sections of all tables but the algorithm's own, by name."""
        tables = {"run": self.run, "env": self.env, **self.tables}
        if issubclass(algorithm, DatasetAlgorithm):
            from fastrl.sources.settings import DemosConfig

            return {**tables, "demos": DemosConfig()}
        tables["collect"], tables["intrinsic"] = self.collect, IntrinsicConfig()
        if issubclass(algorithm, OffPolicyAlgorithm):
            from fastrl.sources.settings import OfflineConfig, ReplayConfig

            tables["demos"] = OfflineConfig()
            tables["replay"] = ReplayConfig(**{**self.replay, **algorithm.replay_defaults})
        return tables

    def algorithm_in(self, tree: Mapping[str, Any]) -> str:
        """The algorithm that nested settings name, else the task's own.

        Raises:
            ConfigError: it is no name.
        """
        run = tree.get("run")
        name = run.get("algo", self.run.algo) if isinstance(run, Mapping) else self.run.algo
        if not isinstance(name, str):
            raise ConfigError(f"run.algo should be a name, got {name!r}")
        return name

    def choose_algorithm(
        self,
        preset: str | None,
        tree: Mapping[str, Any],
        source: str,
        *,
        trust: bool = False,
        env_id: str | None = None,
    ) -> str:
        """The algorithm of a new run if no option names one: that of a file, else of a preset, else the usual one.

        Args:
            env_id: of the environment, where an option names it; None: as in the file.

        Raises:
            ConfigError, TrustError: as of `make_settings`.
        """
        if "algo" in self._tables_in(tree, source).get("run", {}):
            return trusted_import("run.algo", self.algorithm_in(tree), source, trust=trust)
        values = {} if preset is None else self._preset(preset).values
        if "algo" in values.get("run", {}):
            return self.algorithm_in(values)
        table = tree.get("env")
        return self.usual_algorithm(
            table.get("id") if env_id is None and isinstance(table, Mapping) else env_id
        )

    def usual_algorithm(self, env_id: Any) -> str:
        """The algorithm that learns in an environment if nothing else is said."""
        return self.run.algo

    def make_settings(
        self,
        changes: Values | None = None,
        *,
        preset: str | None = None,
        tree: Mapping[str, Any] | None = None,
        source: str = "settings",
        trust: bool = False,
    ) -> Any:
        """The settings of a new run. A setting comes from ``changes``, else from ``tree``, else from the preset, else
        from the presets of the environment, else it is the default. A run that starts with a clone has defaults of its
        own, see `after_clone`, which come before the environment's presets.

        Args:
            changes: values by dotted key, such as ``{"env.id": "CartPole-v1"}``.
            preset: name of a preset.
            tree: nested values of a file, as `fastrl.utils.config.load_toml` reads them.
            source: name of that file, for errors.
            trust: the file may import code, connect to a Ray cluster and write files, as it says.

        Raises:
            ConfigError: an unknown preset or key, an ill-typed value, or a preset or file that is not of this task and
                algorithm.
            TrustError: the file would do something that is not trusted.
            AlgorithmError, TrainError: there is no such algorithm, or it does not go with the task.
        """
        changes, tree = changes or {}, tree or {}
        algorithm = changes.get("run.algo")
        if algorithm is None:
            env_id = changes.get("env.id")
            algorithm = self.choose_algorithm(preset, tree, source, trust=trust, env_id=env_id)
            changes = {**changes, "run.algo": algorithm}
        config_type = self.settings_type(algorithm)
        goals = changes.keys() & {"run.total_timesteps", "run.total_episodes"}
        if goals and issubclass(declaration(algorithm), DatasetAlgorithm):
            raise ConfigError(
                f"{min(goals)} counts what environments do; {algorithm} learns from a data set: set"
                f" {table_of(algorithm)}.epochs"
            )
        for other in algorithms_of(tree.keys() - sections(config_type).keys()):
            raise ConfigError(
                f"{source} has settings of --algo {other}, not of {algorithm}: change one of them"
            )
        layers = []
        if preset is not None:
            self._check_goes_with(preset, algorithm)
            layers = [self.preset_values(config_type, preset)]
        values: Values = {}
        if tree:
            values = from_file(config_type, self._tables_in(tree, source), source, trust=trust, named=changes)
        layers = [with_one_goal(layer) for layer in (*layers, values, changes)]
        names = self.default_presets(build(config_type, *layers))
        defaults = [with_one_goal(self.preset_values(config_type, name)) for name in names]
        settings = build(config_type, *defaults, *layers)
        if settings.run.init_from is not None:
            from fastrl.training.after_clone import after_clone

            of_clone = after_clone(settings, self.algorithm_table(algorithm))
            settings = build(config_type, *defaults, of_clone, *layers)
        for key, other in without_effect(settings).items():
            if key in changes:
                raise ConfigError(
                    f"{key} does nothing beside {other}, {attrgetter(other)(settings)}: leave one of them out;"
                    " network_options has arguments of your network"
                )
        return settings

    def _tables_in(self, tree: Mapping[str, Any], source: str) -> dict[str, Any]:
        """The tables of a file, without the name of its task, which is checked."""
        tables = dict(tree)
        kind = tables.pop("kind", self.name)
        if kind != self.name:
            raise ConfigError(f"{source} has settings of the task {kind}, not of {self.name}")
        return tables

    def _preset(self, name: str) -> Preset:
        if name not in self.presets:
            raise ConfigError(f"--preset: unknown preset {name}; {suggestion(name, self.presets)}")
        return self.presets[name]

    def _check_goes_with(self, preset: str, algorithm: str) -> None:
        """Refuses a preset that has settings of algorithms, but none of this one.

        Raises:
            ConfigError
        """
        chosen = self._preset(preset)
        names = algorithms_of({*chosen.values, *chosen.with_table})
        if names and not chosen.for_any_algorithm and table_of(algorithm) not in map(table_of, names):
            raise ConfigError(
                f"--preset {preset} is for --algo {' or '.join(names)}, not for {algorithm}: leave it out, or change"
                " one of them"
            )

    def preset_values(self, config_type: type[Any], name: str) -> Values:
        """The values of a preset, without tables of algorithms other than the one that is chosen.

        Raises:
            ConfigError: there is no such preset, or it has an unknown key.
        """
        tables, preset = sections(config_type), self._preset(name)
        tree: dict[str, dict[str, Any]] = {}
        for other in algorithms_of(tables):
            algorithm = declaration(other)
            model = algorithm.network_of
            if table_of(model) in preset.values:
                tree[table_of(other)] = self._network_values(algorithm, preset.values[table_of(model)])
        for values in (preset.values, *(more for key, more in preset.with_table.items() if key in tables)):
            for table in values:
                if table in tables:
                    tree[table] = {**tree.get(table, {}), **values[table]}
        return check(config_type, tree, f"preset {name}")

    def resolve_defaults(self, settings: Any) -> Any:
        """The settings with everything decided that was left open."""
        return settings
