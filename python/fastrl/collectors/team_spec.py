"""Specifications of environments of many agents, from which each process builds its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gymnasium.vector import AutoresetMode

from fastrl.envs.registration import make_multi
from fastrl.envs.spec import EnvSpec

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv


SELF = "self"
"""The opponent that is a run's own past policies."""


@dataclass(frozen=True)
class TeamSpec(EnvSpec):
    """A way to build an environment of many agents, which pickles."""

    @property
    def is_compiled(self) -> bool:
        """True if threads of one process step its environments."""
        return False

    def shares(self) -> Mapping[str, float]:
        """The opponents of its agents by name, and their weights in the draw; empty: all agents learn."""
        return {}

    def with_snapshots(self, directory: Path) -> Self:
        """The spec with the directory of the snapshots of its opponents' pool, if they have one."""
        return self

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
    ) -> MultiAgentVectorEnv:
        """Builds so many environments.

        Args:
            workers: threads of a compiled environment, else processes that step the copies; None: as many threads as
                its options say, or no process but this one.
            action_masks: they should have action masks. Those of compiled ones do not depend on it.
            autoreset_mode: collectors take "disabled".

        Raises:
            ValueError, TypeError: it cannot be built with these options.
            CollectError: code of the user's raised; with its traceback.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class CompiledTeamSpec(TeamSpec):
    """A spec of an environment that `fastrl.envs.make_multi` makes."""

    @property
    def is_compiled(self) -> bool:
        return True

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
    ) -> MultiAgentVectorEnv:
        threads = {} if workers is None else {"num_threads": workers}
        return make_multi(self.id, num_envs, **{**self.options, **threads, "autoreset_mode": autoreset_mode})
