"""Stages of a run: settings that differ from its own until some environment step.

The setting ``run.stages`` has a text for each stage but the last: the step at which it ends, and its settings::

    stages = ["12e6 env.memory=scan", "13e6 ppo.critic_warmup=1e6 ppo.learning_rate=1e-3"]

Here the first stage ends after 12 million steps and the second after 13 million; the third has the settings of the run
itself, as each stage has those that its text does not name. Networks, optimiser, metrics, counters and callbacks are
kept from stage to stage; observations may get longer (see `fastrl.networks.wider`). Running episodes end with their
stage. Schedules, and the warm-up of the critic, run from the start of a stage to its end.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from fastrl.algorithms import find
from fastrl.algorithms.network_settings import NetworkConfig
from fastrl.runs.settings import RunConfig, table_of
from fastrl.utils.config import ConfigError, Values, build, leaves, values_of
from fastrl.utils.seeding import stream
from fastrl.utils.trust import reaches

# Settings of algorithms that a network, or its state, depends on, beside those of `NetworkConfig`.
OF_NETWORKS = {"normalize_obs", "normalize_returns", "squash_actions", "precision", "compile"}
_OF_ENVIRONMENTS = {"id", "num_envs"}


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes:
        index: from 0 on.
        start, until: environment steps; None: to the end of the run.
        settings: all of them, as of a run that has only this stage.
    """

    index: int
    start: int
    until: int | None
    settings: Any

    @property
    def seed(self) -> int:
        """Seed of the environments and of the draws of actions."""
        seed: int = self.settings.run.seed
        return int(stream(seed, self.index)) >> 1 if self.index else seed


def stages_of(settings: Any) -> list[Stage]:
    """The stages of a run, at least one.

    Raises:
        ConfigError: texts that name no stages, or settings that cannot differ between stages.
    """
    run: RunConfig = settings.run
    if not run.stages:
        return [Stage(0, 0, None, settings)]
    algorithm = find(run.algo)
    if not algorithm.has_stages():
        raise ConfigError(f"run.stages: --algo {run.algo} has no stages, only ppo, async-ppo and impala do")
    if run.total_timesteps is None:
        raise ConfigError("run.stages: stages end at environment steps: give --total-timesteps")
    values = values_of(settings) | {"run.stages": ()}
    start, stages = 0, list[Stage]()
    for text in run.stages:
        until, changes = _read(text, settings, table_of(algorithm.name))
        if until <= start:
            raise ConfigError(f"run.stages: {text!r} should end after step {start:,}, got {until:,}")
        changed = build(type(settings), values, changes)
        stages.append(Stage(len(stages), start, until, changed))
        start = until
    return [*stages, Stage(len(stages), start, None, build(type(settings), values))]


def stage_of(settings: Any, index: int) -> Stage:
    """The stage with an index, from 0 on.

    Raises:
        ConfigError: as of `stages_of`, or there is no such stage.
    """
    stages = stages_of(settings)
    if index >= len(stages):
        raise ConfigError(f"run.stages: there are {len(stages)} stages, not {index + 1}")
    return stages[index]


def _read(text: str, settings: Any, table: str) -> tuple[int, Values]:
    """The step at which a stage ends, and its settings by dotted key."""
    until, *pairs = shlex.split(text) or [""]
    known = leaves(type(settings))
    changes: Values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"run.stages: {pair!r} in {text!r} should be TABLE.NAME=VALUE")
        if key not in known or not _may_differ(key, table):
            raise ConfigError(
                f"run.stages: {key} is the same in all stages; settings of [env] and [{table}] may differ, but not"
                " env.id, env.num_envs and what networks are made of"
            )
        changes[key] = known[key].parse(value, f"run.stages: {key}")
    if effects := reaches(type(settings), changes):
        raise ConfigError(f"run.stages: {next(iter(effects))} may not import anything")
    return known["run.total_timesteps"].parse(until, f"run.stages: the end of {text!r}"), changes


def _may_differ(key: str, table: str) -> bool:
    group, _, name = key.partition(".")
    if group == "env":
        return name not in _OF_ENVIRONMENTS
    return group == table and name not in OF_NETWORKS | {
        each.name for each in dataclasses.fields(NetworkConfig)
    }


def saved_settings(state: Mapping[str, Any]) -> Any:
    """The nested settings of a checkpoint's run. Its entry ``config`` has those of the stage of its policy."""
    return state["stages"]["config"] if "stages" in state else state.get("config", {})


def saved_stage(state: Mapping[str, Any]) -> int:
    """The stage that a run was in when a checkpoint was written."""
    return int(state["stages"]["index"]) if "stages" in state else 0
