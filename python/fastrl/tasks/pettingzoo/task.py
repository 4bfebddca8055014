"""Any parallel environment of PettingZoo: no protocol of its own, scores are mean returns of the agents."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from rich.console import Console

from fastrl.algorithms.protocol import Algorithm, Problem
from fastrl.collectors.failures import failed, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.envs.adapters.parallel_copy import ParallelForm
from fastrl.envs.adapters.parallel_frames import make_parallel
from fastrl.envs.contract import ContractError
from fastrl.envs.process_pool import WorkerError
from fastrl.envs.record_episodes import run_episodes
from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import EnvSpec
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.tasks import pettingzoo
from fastrl.tasks.pettingzoo.settings import PRESETS, EnvConfig
from fastrl.training.errors import TrainError
from fastrl.training.evaluation import Advance, Returns
from fastrl.training.experience import Source
from fastrl.training.film import FPS, Films, checked_picture
from fastrl.training.multi_agent import MultiAgentSource, check_fits
from fastrl.training.play import Step, TeamEnv, play, team_act, team_seeds
from fastrl.training.settings import RunConfig
from fastrl.training.task import Task
from fastrl.utils.env_options import parse_options


class UserVectorEnv(ParallelVectorEnv):
    """As `ParallelVectorEnv`; errors of the user's environment become the command line's.

    Raises:
        TrainError: wherever it is stepped: it broke PettingZoo's interface.
        CollectError: wherever it is stepped: it raised, or its worker process has died. The error has the traceback.
    """

    def reset_into(self, *arguments: Any, **options: Any) -> None:
        with _blaming(f"{self.name} failed"):
            super().reset_into(*arguments, **options)

    def step_into(self, *arguments: Any, **options: Any) -> None:
        with _blaming(f"{self.name} failed"):
            super().step_into(*arguments, **options)

    def load_state(self, state: bytes) -> None:
        with _blaming(f"{self.name} failed"):
            super().load_state(state)


class ParallelSource(MultiAgentSource):
    """As `MultiAgentSource`, of a user's environments."""

    collector = "sequential"

    def __init__(self, env: ParallelVectorEnv, env_id: str, episode_steps: int, console: Console) -> None:
        super().__init__(env, env_id, episode_steps)
        self.form: ParallelForm = env.form
        self._console = console

    def problem(self, total_timesteps: int, seed: int, device: str) -> Problem:
        return dataclasses.replace(
            super().problem(total_timesteps, seed, device), obs_space=self.form.obs_space
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its state can be saved as before.
        self.env.close()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if not state["collector"]:
            return
        # Observations after the repeated steps; a deterministic environment gives the saved ones.
        obs, alive = self.env.env.observe()
        saved = state["collector"]
        self._collector.load_state_dict({"obs": torch.from_numpy(obs), "alive": torch.from_numpy(alive)})
        if not (
            torch.equal(torch.from_numpy(obs), saved["obs"]) and np.array_equal(alive, saved["alive"].numpy())
        ):
            self._console.print(
                f"{self.env_id} is not deterministic: its episodes continue otherwise than in the checkpoint",
                highlight=False,
            )


class PettingZooTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pettingzoo.NAME
    summary = pettingzoo.SUMMARY
    run = RunConfig(algo="ippo")
    env = EnvConfig()
    presets = PRESETS
    learns_from = ("multi_agent_rollouts",)

    def description(self, prog: str) -> str:
        return (
            "Trains on any parallel environment of PettingZoo, such as\n"
            f"  {prog} mpe2.simple_spread_v3:parallel_env --algo mappo"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for(settings.env.id) or ()

    def env_spec(self, settings: Any) -> EnvSpec:
        options = parse_options(settings.env.options)
        return EnvSpec(settings.env.id, options) if self.spec is None else self.spec.with_options(options)

    def make_env(
        self,
        settings: Any,
        num_envs: int,
        make: Callable[[], Any] | None = None,
        autoreset_mode: str = "same_step",
        num_workers: int = 1,
    ) -> ParallelVectorEnv:
        """The environment that the settings describe.

        Args:
            make: builds one copy; None: as the settings say.

        Raises:
            TrainError: it cannot be built.
            CollectError: it raised while it was built, or worker processes could not build it.
        """
        spec, env = self.env_spec(settings), settings.env
        try:
            with _blaming(f"--env {spec.id}: it could not be built"):
                return UserVectorEnv(
                    make or functools.partial(make_parallel, spec, env.size, env.stack),
                    num_envs,
                    num_workers=num_workers,
                    max_episode_steps=env.max_episode_steps,
                    autoreset_mode=autoreset_mode,
                    name=spec.id,
                )
        except (ValueError, TypeError) as error:
            raise TrainError(str(error)) from None

    def team_env(self, settings: Any) -> Any:
        spec = self.env_spec(settings)
        try:
            with _blaming(f"--env {spec.id}: it could not be built"):
                return make_parallel(spec, settings.env.size, settings.env.stack)
        except (ValueError, TypeError) as error:
            raise TrainError(str(error)) from None

    def play_steps(self, settings: Any) -> int:
        return int(settings.env.max_episode_steps)

    def films(self, settings: Any) -> Films:
        spec = self.env_spec(settings)
        drawing = dataclasses.replace(spec, options={**spec.options, "render_mode": "rgb_array"})
        built: list[Any] = []

        def make() -> Any:
            built.append(make_parallel(drawing, settings.env.size, settings.env.stack))
            return built[0]

        env = self.make_env(settings, 1, make, "disabled")
        own, metadata = built[0], getattr(built[0], "metadata", {})
        if getattr(own, "render_mode", None) != "rgb_array":
            modes = ", ".join(metadata.get("render_modes", ())) or "none"
            env.close()
            raise TrainError(
                f"{env.name} has no render mode rgb_array, so there is nothing to film; its modes: {modes}"
            )

        def play_drawn(state: Mapping[str, Any], episodes: int, seed: int) -> Iterator[Step]:
            policy, seeds = MultiAgentPolicy.from_state(state["policy"]), range(seed, seed + episodes)
            _check_fits(policy, env)
            draw = lambda: checked_picture(own.render())  # noqa: E731
            return play(team_act(policy.act), TeamEnv(env), seeds, name=env.name, draw=draw)

        return Films(play_drawn, float(metadata.get("render_fps") or FPS), env.close)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        env = self.make_env(settings, settings.env.num_envs, num_workers=settings.env.num_workers)
        return ParallelSource(env, settings.env.id, settings.env.max_episode_steps, console)

    def resolve_defaults(self, settings: Any) -> Any:
        """Agents of other spaces have policies of their own."""
        table = self.algorithm_table(settings.run.algo)
        config = getattr(settings, table)
        if config.policies or not config.share:
            return settings
        env = self.make_env(settings, 1)
        env.close()
        if len(set(env.form.groups)) == 1:
            return settings
        return dataclasses.replace(settings, **{table: dataclasses.replace(config, policies=env.form.groups)})

    def evaluate(
        self,
        state: Mapping[str, Any],
        settings: Any,
        *,
        episodes: int,
        seed: int,
        advance: Advance,
        **options: Any,
    ) -> Returns:
        policy = MultiAgentPolicy.from_state(state["policy"])
        seeds = team_seeds(seed, episodes)
        returns: list[float] = []
        for start in range(0, episodes, settings.env.num_envs):
            batch = seeds[start : start + settings.env.num_envs]
            with contextlib.closing(self.make_env(settings, len(batch))) as env:
                _check_fits(policy, env)
                returns += run_episodes(env, policy.act, batch, advance)["return_mean"].tolist()
        return Returns(tuple(returns))


@contextlib.contextmanager
def _blaming(env: str) -> Iterator[None]:
    """A context in which an environment of the user's is called.

    Args:
        env: begins the message.

    Raises:
        TrainError: it broke PettingZoo's interface.
        CollectError: it raised, or its worker process has died.
        Any error in which there is no code of the user's.
    """
    try:
        yield
    except ContractError as error:
        raise TrainError(str(error)) from None
    except WorkerError as error:
        line, _, traceback = str(error).partition("\n\n")
        raise CollectError(f"{env}: {line}", traceback) from error
    except (Exception, SystemExit) as error:
        if not own_traceback(error):
            raise
        raise failed(env, error) from error


def _check_fits(policy: MultiAgentPolicy, env: ParallelVectorEnv) -> None:
    form = env.form
    check_fits(policy, env, ObsRows(form.obs_space).state() if form.row_space.dtype == np.uint8 else None)


TASK = PettingZooTask()
