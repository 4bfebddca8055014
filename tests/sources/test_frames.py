"""A replay of frames, each stored once: its stacks are those that actors saw; and minibatches drawn ahead."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from fastrl.algorithms import find
from fastrl.algorithms.dqn import DQN
from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.envs.contract import ACTION_MASK, CONTINUES, GAME_LENGTH, GAME_RETURN
from fastrl.envs.pixels import PixelEnv, SeededGames, StackedFrames
from fastrl.envs.spec import as_spec
from fastrl.replay import PrioritizedSampler
from fastrl.runs.errors import TrainError
from fastrl.sources.collecting import CollectConfig
from fastrl.sources.settings import ReplayConfig
from fastrl.sources.transitions import TransitionSource
from fastrl.training.profiler import GpuMeter
from fastrl.utils.timer import Stopwatch

STACK = 3


class Walk(gymnasium.Env[Any, Any]):
    """Frames [2, 2], each of its own: episodes of 3 steps, of which each third one is truncated after 5 steps instead
    of ending."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        self.episode = self.total = 0

    def frame(self) -> NDArray[np.uint8]:
        self.total += 1
        return np.array([[self.total // 256, self.total % 256], [1, 1]], np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.episode = 0, self.episode + 1
        return self.frame(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        long = self.episode % 3 == 0
        return self.frame(), float(action), self.time == 3 and not long, self.time == 5, {}


class Watched(StackedFrames):
    """Keeps what it has shown, by the bytes of each observation and of the one after it."""

    shown: ClassVar[set[tuple[bytes, bytes]]] = set()

    def __init__(self) -> None:
        super().__init__(Walk(), STACK, channels_first=True)

    def step(self, action: Any) -> Any:
        before = self._stack.tobytes()
        found = super().step(action)
        self.shown.add((before, found[0].tobytes()))
        return found


def source_of(
    config: Any = None,
    algorithm: str = "dqn",
    env: Callable[[], StackedFrames] = Watched,
    episode_info: Sequence[str] = (),
    **replay: Any,
) -> tuple[TransitionSource, Any]:
    """A source of two environments that step 8 times between turns, and its algorithm."""
    settings = ReplayConfig(**{"capacity": 2000, "learning_starts": 100, "train_freq": 8} | replay)
    source = TransitionSource(
        as_spec(env),
        2,
        CollectConfig(collector="sequential"),
        settings,
        stack=STACK,
        episode_info=episode_info,
    )
    made = find(algorithm)
    config = config or made.config_type(
        batch_size=256, hidden=(8,), **{"n_step": 1, "conv": ()} if made is DQN else {}
    )
    learner = made(config, source.problem(total_timesteps=1, seed=0))
    source.attach(learner)
    return source, learner


def learn(source: TransitionSource, learner: Any, batches: int) -> list[Any]:
    """Minibatches that were learnt from."""
    watch, found = Stopwatch(), []
    while len(found) < batches:
        batch = source.next(watch)
        if batch is not None:
            found.append(batch)
            source.feedback(learner.update(batch, watch))
    return found


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_the_replay_gives_the_stacks_that_the_actor_saw(algorithm: str) -> None:
    """To the bit, with beginnings and ends of episodes."""
    Watched.shown.clear()
    source, learner = source_of(algorithm=algorithm)
    with source:
        replay = source.minibatches.replay
        assert replay is not None
        assert replay.dtype["obs"].shape == (4,)
        (batch,) = learn(source, learner, 1)
        found = {
            (obs.numpy().tobytes(), after.numpy().tobytes())
            for obs, after in zip(batch.obs, batch.next_obs, strict=True)
        }
        # The newest step of each environment waits for what follows.
        assert len(replay) >= len(Watched.shown) - 2
    assert len(found) > 60 and found <= Watched.shown
    starts = [obs for obs, _ in found if not any(obs[: 4 * (STACK - 1)])]
    assert len(starts) > 10


def allowed_in(frame: Any) -> Any:
    """The actions that `Walk` would allow with a frame, of which no two in succession have the same."""
    number = int(frame[0, 1])
    return np.array([number % 4 == 0, number & 1, number & 2, number & 4]).astype(np.bool_) | (
        np.arange(4) == number % 4
    )


class Masked(StackedFrames):
    """Says which actions are allowed, by a method or by infos."""

    def __init__(self, by_method: bool) -> None:
        super().__init__(Walk(), STACK, channels_first=True)
        if by_method:
            self.action_masks = lambda: allowed_in(self._stack[-1])

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return obs, {ACTION_MASK: allowed_in(obs[-1])}

    def step(self, action: Any) -> Any:
        assert allowed_in(self._stack[-1])[action]
        obs, *others, _ = super().step(action)
        return obs, *others, {ACTION_MASK: allowed_in(obs[-1])}


@pytest.mark.parametrize("by_method", [False, True], ids=["infos", "method"])
@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("prioritized", [False, True])
def test_samples_have_the_masks_of_their_frames(by_method: bool, n_step: int, prioritized: bool) -> None:
    """To the bit, at starts of episodes, at terminations, which no action follows, and at truncations."""
    config = DQNConfig(
        batch_size=512, hidden=(8,), conv=(), n_step=n_step, action_masks=True, prioritized=prioritized
    )
    source, learner = source_of(config, env=functools.partial(Masked, by_method))
    with source:
        (batch,) = learn(source, learner, 1)
    masks = np.stack([allowed_in(frames[-1]) for frames in batch.obs.numpy().reshape(-1, STACK, 2, 2)])
    np.testing.assert_array_equal(batch.masks.numpy(), masks)
    following = np.stack(
        [allowed_in(frames[-1]) for frames in batch.next_obs.numpy().reshape(-1, STACK, 2, 2)]
    )
    ended = batch.discounts.numpy() == 0
    np.testing.assert_array_equal(batch.next_masks.numpy(), following & ~ended[:, None])
    assert np.take_along_axis(masks, batch.actions.numpy()[:, None], 1).all()
    # Frames of zeros stand before the first one; after the fifth step an episode is truncated.
    stacks = batch.obs.numpy().reshape(-1, STACK, 4)
    starts = ~stacks[:, :-1].any((1, 2))
    assert starts.sum() > 20 and ended.sum() > 20 and (~ended & ~starts).sum() > 20


class TwoLives:
    """A game of eight frames that loses a life with the third one; each frame is worth 2."""

    shape, num_actions = (2, 2), 2

    def reset(self, seed: int | None) -> None:
        self.frame = 0

    @property
    def lives(self) -> int:
        return 2 if self.frame < 3 else 1

    def act(self, action: int) -> tuple[float, bool, bool]:
        self.frame += 1
        return 2.0, self.frame == 8, False

    def mask(self) -> None: ...

    def screen(self) -> NDArray[np.uint8]:
        return np.full(self.shape, self.frame, np.uint8)

    def close(self) -> None: ...


def two_lives() -> StackedFrames:
    game = PixelEnv(TwoLives(), size=(2, 2), frame_skip=1, noop_max=0, life_loss_ends=True)
    return StackedFrames(SeededGames(game), STACK, channels_first=True)


def test_games_of_several_lives_are_counted_whole_and_before_rewards_are_clipped() -> None:
    keys = (GAME_RETURN, GAME_LENGTH, CONTINUES)
    source, learner = source_of(env=two_lives, episode_info=keys)
    with source:
        learn(source, learner, 1)
        episodes = source.take_episodes()
        batch = source.minibatches.sample(0, Stopwatch())
    assert len(episodes) > 5
    # Each life is an episode for the learner; the second one starts with a frame that no action was chosen for.
    assert set(episodes.returns.tolist()) == {16.0} and set(episodes.lengths.tolist()) == {7}
    assert set(batch.rewards.tolist()) == {1.0}
    assert 0.2 < (batch.discounts == 0).float().mean() < 0.4


PRIORITIZED = DQNConfig(
    batch_size=4, hidden=(8,), conv=(), prioritized=True, beta=0.2, final_beta=0.7, beta_steps=100
)


@pytest.mark.parametrize("ahead", [{}, {"overlap": True, "prefetch": "on"}], ids=["at once", "ahead"])
def test_priorities_and_beta_reach_the_sampler(ahead: dict[str, Any]) -> None:
    source, learner = source_of(PRIORITIZED, **ahead)
    with source:
        learn(source, learner, 20)
        state = source.state_dict()
    sampler = source.minibatches.sampler
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler.beta == pytest.approx(0.7)
    # Priorities differ from their first value by now: so do the weights.
    assert len(np.unique(sampler.sample().weights.numpy())) > 1
    assert state["taken"] > 100


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(
        TrainError, match=r"prefetch on: it draws while experience comes in; add --replay\.overlap"
    ):
        source_of(prefetch="on")


def test_no_gpu_no_use() -> None:
    assert GpuMeter("cpu").use() is None
