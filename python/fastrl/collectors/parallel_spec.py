"""Specifications of parallel environments of PettingZoo, and whom their errors are blamed on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from gymnasium.vector import AutoresetMode

from fastrl.collectors.failures import failed, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.collectors.team_spec import TeamSpec
from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.adapters.parallel_frames import make_parallel
from fastrl.envs.contract import ContractError
from fastrl.envs.spec import EnvSpec
from fastrl.envs.worker_error import WorkerError


@dataclass(frozen=True)
class ParallelSpec(TeamSpec):
    """A spec of a parallel environment of PettingZoo.

    Attributes:
        spec: its factory, which has the options.
        size, stack: of frames, see `fastrl.envs.adapters.parallel_frames.make_parallel`.
        max_episode_steps: agents are truncated after so many.
    """

    spec: EnvSpec = dataclasses.field(default_factory=lambda: EnvSpec(""))
    size: int | None = None
    stack: int = 1
    max_episode_steps: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", self.spec.options)

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return dataclasses.replace(self, spec=self.spec.with_options(options))

    @property
    def is_local(self) -> bool:
        return self.spec.is_local

    @property
    def is_nameless(self) -> bool:
        return self.spec.is_nameless

    def make_team(
        self,
        num_envs: int,
        *,
        workers: int | None = None,
        action_masks: bool = False,
        make: Callable[[], Any] | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
    ) -> UserVectorEnv:
        """See `TeamSpec.make_team`.

        Args:
            make: builds one copy; None: as the spec says.
        """
        with blaming(f"--env {self.id}: it could not be built"):
            return UserVectorEnv(
                make or functools.partial(make_parallel, self.spec, self.size, self.stack),
                num_envs,
                num_workers=1 if workers is None else workers,
                max_episode_steps=self.max_episode_steps,
                action_masks=action_masks,
                autoreset_mode=autoreset_mode,
                name=self.id,
            )


class UserVectorEnv(ParallelVectorEnv):
    """A `ParallelVectorEnv`; errors of the user's environment become those of collectors.

    Raises:
        CollectError: wherever it is stepped: it broke PettingZoo's interface, it raised, or its worker process has
            died. The error has the traceback.
    """

    def reset_into(self, *arguments: Any, **options: Any) -> None:
        with blaming(f"{self.name} failed"):
            super().reset_into(*arguments, **options)

    def step_into(self, *arguments: Any, **options: Any) -> None:
        with blaming(f"{self.name} failed"):
            super().step_into(*arguments, **options)


@contextlib.contextmanager
def blaming(what: str) -> Iterator[None]:
    """A context in which an environment of the user's is called.

    Args:
        what: begins the message.

    Raises:
        CollectError: it broke PettingZoo's interface, it raised, or its worker process has died.
        Any error in which there is no code of the user's.
    """
    try:
        yield
    except ContractError as error:
        raise CollectError(str(error)) from None
    except WorkerError as error:
        line, _, traceback = str(error).partition("\n\n")
        raise CollectError(f"{what}: {line}", traceback) from error
    except (Exception, SystemExit) as error:
        if not own_traceback(error):
            raise
        raise failed(what, error) from error
