"""Games that show images, learnt from a replay or from rollouts; scores are returns of whole games, before clipping."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Space
from numpy.typing import NDArray
from rich.console import Console
from typing_extensions import Buffer

from fastrl.algorithms import find
from fastrl.algorithms.protocol import Algorithm
from fastrl.collectors.failures import failed
from fastrl.envs import contract
from fastrl.envs.pixels import make_stacked_pixels
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.networks.compiled_actor import Actor, moved
from fastrl.tasks import pixels
from fastrl.tasks.pixels.settings import PRESETS, EnvConfig
from fastrl.training.checkpoint import CheckpointError
from fastrl.training.episodes import build_env
from fastrl.training.errors import TrainError
from fastrl.training.evaluation import Advance, Returns
from fastrl.training.experience import Source
from fastrl.training.minibatches import ReplayConfig
from fastrl.training.settings import RunConfig
from fastrl.training.task import Task
from fastrl.training.transitions import TransitionSource
from fastrl.utils.env_options import parse_options

# Frames after which a game on film is cut off: half an hour of Atari.
GAME_FRAMES = 108_000


class PixelsTask(Task):
    """See `fastrl.training.task.Task`."""

    name = pixels.NAME
    summary = pixels.SUMMARY
    run = RunConfig(
        algo="dqn", total_timesteps=10_000_000, checkpoint_seconds=300.0, row_seconds=2.0, eval_episodes=10
    )
    env = EnvConfig()
    # Frames take time: workers play while the learner learns, and the network, which is large, reaches them seldom.
    replay = ReplayConfig(capacity=400_000, learning_starts=10_000, train_freq=16, overlap=True)
    presets = PRESETS
    evaluation_options = ("device",)

    def description(self, prog: str) -> str:
        return (
            "Trains on games that show images: Atari, Mario, fastrl/Catch-v0 and others, such as\n"
            f"  {prog} ALE/Pong-v5 --algo ppo\n"
            f"  {prog} ALE/Breakout-v5 --env-options repeat_action_probability=0 --n-workers 8"
        )

    def default_presets(self, settings: Any) -> Sequence[str]:
        return PRESETS.presets_for(settings.env.id) or ()

    def env_spec(self, settings: Any) -> EnvSpec:
        return self._spec(settings, **({"channels_first": True} if _stacks_first(settings) else {}))

    def play_spec(self, settings: Any) -> EnvSpec:
        """Stacked frames whatever the algorithm, whole games, and their own rewards."""
        return self._spec(settings, life_loss_ends=False, clip_reward=False, reward_scale=1.0)

    def play_steps(self, settings: Any) -> int:
        return GAME_FRAMES // int(settings.env.frame_skip)

    def episode_info(self, settings: Any) -> Sequence[str]:
        """Return and length of whole games, and the key that marks lost lives, by which a resume finds where the
        running game was reset."""
        lives = (contract.CONTINUES,) if settings.env.life_loss_ends else ()
        return (contract.GAME_RETURN, contract.GAME_LENGTH, *lives)

    def play_obs_space(self, settings: Any, space: Space[Any]) -> Space[Any]:
        stack, *size = space.shape or ()
        return Box(0, 255, (*size, stack), np.uint8) if _stacks_first(settings) else space

    def make_actor(
        self, settings: Any, policy: Mapping[str, Any], obs_space: Space[Any], action_space: Space[Any]
    ) -> Actor:
        if not _stacks_first(settings):
            return super().make_actor(settings, policy, obs_space, action_space)
        height, width, stack = obs_space.shape or ()
        stacked = Box(0, 255, (stack, height, width), np.uint8)
        actor = super().make_actor(settings, policy, stacked, action_space)
        return _StackFirst(actor, (height, width, stack))

    def _spec(self, settings: Any, **changes: Any) -> EnvSpec:
        """Specification of an environment of stacked frames.

        Args:
            changes: options that the settings do not have, or other values of them.
        """
        env: EnvConfig = settings.env
        options = {
            "env_id": env.id,
            "env_options": parse_options(env.options),
            "stack": env.stack,
            "size": env.size,
            "frame_skip": env.frame_skip,
            "max_of_two": env.max_of_two,
            "noop_max": env.noop_max,
            "life_loss_ends": env.life_loss_ends,
            "clip_reward": env.clip_reward,
            "reward_scale": env.reward_scale,
        }
        spec = as_spec(make_stacked_pixels, **(options | changes))
        return dataclasses.replace(spec, id=env.id)

    def make_source(self, settings: Any, algorithm: type[Algorithm[Any]], console: Console) -> Source:
        if algorithm.learns_from != "transitions":
            return super().make_source(settings, algorithm, console)
        if settings.demos.path is not None or self.demos is not None:
            raise TrainError(
                "--demos: a replay of frames takes no demonstrations; leave them out, or train with bc"
            )
        return TransitionSource(
            self.env_spec(settings),
            self.num_envs(settings),
            settings.collect,
            settings.replay,
            stack=settings.env.stack,
            seed=settings.run.seed,
            console=console,
            episode_info=self.episode_info(settings),
        )

    def evaluate(
        self,
        state: Mapping[str, Any],
        settings: Any,
        *,
        episodes: int,
        seed: int,
        advance: Advance,
        device: str = "cpu",
        **options: Any,
    ) -> Returns:
        """Scores a policy by the returns of whole games.

        Args:
            device: where the network acts.
        """
        spec = self.play_spec(settings)
        env = build_env(spec)
        try:
            spaces = env.observation_space, env.action_space
            actor = self.make_policy(state, settings, spaces, device=device).actor
        except CheckpointError:
            contract.close(env)
            raise
        returns = []
        for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
            try:
                returns.append(_run_game(actor, env, int(number)))
            except (Exception, SystemExit) as error:
                raise failed(
                    f"{spec.id} failed in the game that reset(seed={number}) started", error
                ) from error
            advance(1)
        contract.close(env)
        return Returns(tuple(returns))


def _stacks_first(settings: Any) -> bool:
    """True for a replay, which stores single frames and stacks them along the first axis."""
    return find(settings.run.algo).learns_from == "transitions"


class _StackFirst:
    """An actor for rows of stacked frames [h, w, stack] whose network takes them as [stack, h, w].

    Args:
        actor: takes rows of [stack, h, w].
        shape: (h, w, stack).
    """

    state_size = 0

    def __init__(self, actor: Actor, shape: tuple[int, int, int]) -> None:
        self._actor, self._shape = actor, shape
        self.weights_nbytes = actor.weights_nbytes

    def to(self, device: str) -> None:
        moved(self._actor, device)

    def load(self, weights: Buffer) -> None:
        self._actor.load(weights)

    def act(self, obs: NDArray[Any], *arguments: Any, **options: Any) -> None:
        frames = np.moveaxis(obs.reshape(-1, *self._shape), -1, 1)
        self._actor.act(np.ascontiguousarray(frames).reshape(len(obs), -1), *arguments, **options)


def _run_game(actor: Actor, env: gymnasium.Env[Any, Any], seed: int) -> float:
    """The return of one game in which the best action is always chosen.

    Args:
        env: with stacked frames, uint8 [h, w, stack].
    """
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    actions, log_probs = np.zeros(1, np.int64), np.zeros(1, np.float32)
    states = np.zeros((1, actor.state_size), np.float32) if actor.state_size else None
    obs, info = env.reset(seed=seed)
    while "episode" not in info:
        actor.act(obs.reshape(1, -1), *nothing, actions, log_probs, states=states, greedy=True)
        obs, _, _, _, info = env.step(int(actions[0]))
    return float(info["episode"]["r"])


TASK = PixelsTask()
