"""fastrl.envs.pixels: each step of the preprocessing on a predictable game, then Atari."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from fastrl._native._pixels import Shrinker
from fastrl.envs.contract import ContractError
from fastrl.envs.pixels import ImageGame, PixelEnv, StackedFrames, make_pixels


class Counting:
    """A game whose frame t is filled with t; the reward is the action; lives and the end are given."""

    shape = (4, 6)
    num_actions = 5

    def __init__(self, length: int = 100, deaths: tuple[int, ...] = (), truncates: bool = False) -> None:
        self.length, self.deaths, self.truncates = length, deaths, truncates
        self.time, self.resets = 0, 0
        self.seeds: list[int | None] = []
        self.actions: list[int] = []

    @property
    def lives(self) -> int:
        return 3 - sum(self.time >= death for death in self.deaths)

    def reset(self, seed: int | None) -> None:
        self.time, self.actions = 0, []
        self.resets += 1
        self.seeds.append(seed)

    def act(self, action: int) -> tuple[float, bool, bool]:
        self.time += 1
        self.actions.append(action)
        over = self.time >= self.length
        return float(action), over and not self.truncates, over and self.truncates

    def mask(self) -> None: ...

    def screen(self) -> np.ndarray[Any, Any]:
        return np.full(self.shape, self.time, np.uint8)

    def close(self) -> None:
        pass


def pixels(game: Any, **settings: Any) -> PixelEnv:
    return PixelEnv(game, **({"size": (2, 3), "noop_max": 0, "clip_reward": False} | settings))


def test_a_step_holds_the_action_and_sums_the_rewards() -> None:
    game = Counting()
    env = pixels(game, frame_skip=4)
    frame, info = env.reset(seed=0)
    assert frame.shape == (2, 3) and frame.dtype == np.uint8 and (frame == 0).all()
    assert info == {}
    frame, reward, terminated, truncated, info = env.step(3)
    assert (frame == 4).all()
    assert (reward, terminated, truncated, info) == (12.0, False, False, {})
    assert game.actions == [3, 3, 3, 3]
    later, *_ = env.step(np.int64(1))
    # Each observation is a new array: the first has not changed.
    assert (frame == 4).all() and (later == 8).all()


def test_an_observation_is_the_maximum_of_the_last_two_frames() -> None:
    class Blinking(Counting):
        def screen(self) -> np.ndarray[Any, Any]:
            frame = np.zeros(self.shape, np.uint8)
            frame[:, : 3 * (self.time % 2)] = 90 + self.time
            return frame

    for max_of_two, left in ((True, 93), (False, 0)):
        env = pixels(Blinking(), size=(4, 6), max_of_two=max_of_two)
        env.reset(seed=0)
        frame, *_ = env.step(0)
        assert (frame[:, :3] == left).all() and (frame[:, 3:] == 0).all()


def test_a_step_stops_at_the_end_of_the_episode() -> None:
    for truncates in (False, True):
        game = Counting(length=6, truncates=truncates)
        env = pixels(game)
        env.reset(seed=0)
        assert env.step(1)[1:4] == (4.0, False, False)
        frame, reward, terminated, truncated, info = env.step(2)
        assert (frame == 6).all()
        assert (reward, terminated, truncated) == (4.0, not truncates, truncates)
        assert info == {"episode": {"r": 8.0, "l": 2}}
        with pytest.raises(RuntimeError, match="call reset"):
            env.step(0)
        env.reset()
        assert game.resets == 2 and game.time == 0


def test_rewards_are_clipped_or_scaled_but_returns_are_not() -> None:
    for settings, expected in (({"clip_reward": True}, 1.0), ({"reward_scale": 0.5}, 4.0)):
        env = pixels(Counting(length=4), **settings)
        env.reset(seed=0)
        _, reward, _, _, info = env.step(2)
        assert reward == expected
        assert info["episode"]["r"] == 8.0


def test_a_game_starts_with_a_random_number_of_noops() -> None:
    game = Counting()
    env = pixels(game, noop_max=5)
    starts = set()
    for seed in range(50):
        env.reset(seed=seed)
        assert set(game.actions) == {0}
        starts.add(game.time)
        seen = game.time
        env.reset(seed=seed)
        assert game.time == seen
    assert starts == {1, 2, 3, 4, 5}
    # A game that ends during the noops is reset.
    game = Counting(length=2)
    pixels(game, noop_max=5).reset(seed=2)
    assert game.time < 2


def test_a_lost_life_ends_the_episode_and_the_game_continues() -> None:
    game = Counting(length=20, deaths=(6, 14))
    env = pixels(game, life_loss_ends=True)
    env.reset(seed=0)
    ends = []
    for _ in range(20):
        frame, _, terminated, truncated, info = env.step(1)
        assert not truncated
        if terminated:
            ends.append((game.time, dict(info)))
            if "episode" in info:
                break
            frame, _ = env.reset()
            assert game.resets == 1
            assert (frame == game.time).all()
    # There is one frame of action 0 between two lives.
    assert [time for time, _ in ends] == [8, 17, 20]
    assert [info for _, info in ends] == [
        {"continues": 1.0},
        {"continues": 1.0},
        {"episode": {"r": 18.0, "l": 5}},
    ]
    env.reset(options={"new_game": True})
    assert game.resets == 2
    env.reset(seed=4)
    assert game.seeds == [0, None, 4]


class Images(gymnasium.Env[Any, Any]):
    def __init__(self, shape: tuple[int, ...], dtype: Any = np.uint8, actions: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)
        self.action_space = actions or gymnasium.spaces.Discrete(3)
        self.screen = np.zeros(shape, dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.screen[:] = 10
        return self.screen, {"lives": 2}

    def step(self, action: Any) -> Any:
        # One screen that is overwritten, as emulators do.
        self.screen[:] = self.screen // 2
        return self.screen, 1, False, False, {"lives": 1}


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 1), (8, 9, 3)])
def test_any_environment_with_images(shape: tuple[int, ...]) -> None:
    env = pixels(ImageGame(Images(shape)), size=(4, 3), frame_skip=2)
    frame, _ = env.reset(seed=0)
    assert frame.tolist() == [[10] * 3] * 4
    # 10 -> 5 -> 2: the maximum of the last two frames.
    frame, *_ = env.step(0)
    assert frame.tolist() == [[5] * 3] * 4


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((np.zeros((8, 9), np.uint8), np.nan, False, False, {}), r"Images: step\(\) gave the reward nan"),
        (
            (np.zeros((4, 9), np.uint8), 1.0, False, False, {}),
            r"expected integers of shape \(8, 9\), got an array",
        ),
        (
            (np.zeros((8, 9)), 1.0, False, False, {}),
            r"expected integers of shape \(8, 9\), got an array of float64",
        ),
        ((np.zeros((8, 9), np.uint8), 1.0, False, {}), r"Images: step\(\) should return .* got 4 values"),
    ],
)
def test_results_that_do_not_fit_the_spaces_are_refused(
    result: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = ImageGame(Images((8, 9)))
    game.reset(0)
    monkeypatch.setattr(Images, "step", lambda self, action: result)
    with pytest.raises(ContractError, match=message):
        game.act(0)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Images((8,)), "Images: expected image observations"),
        (Images((8, 9), np.float32), "expected image observations"),
        (Images((8, 9, 4)), "expected image observations"),
        (Images((8, 9), actions=gymnasium.spaces.Box(0, 1)), "expected Discrete actions"),
        (Images((8, 9), actions=gymnasium.spaces.Discrete(3, start=1)), "expected Discrete actions"),
    ],
)
def test_environments_without_images_or_discrete_actions_are_refused(env: Images, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageGame(env)


def test_refuses_unknown_ids_and_settings() -> None:
    with pytest.raises(
        ValueError, match=r"there is no environment fastrl/Cach-v0; did you mean fastrl/Catch-v0\?"
    ):
        make_pixels("fastrl/Cach-v0")
    with pytest.raises(ValueError, match="CartPole-v1: expected image observations"):
        make_pixels("CartPole-v1")
    with pytest.raises(ValueError, match="frame_skip should be at least 1"):
        make_pixels("fastrl/Catch-v0", frame_skip=0)
    with pytest.raises(ValueError, match="noop_max should be at least 0"):
        make_pixels("fastrl/Catch-v0", noop_max=-1)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gym_super_mario_bros", None)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'fastrl\[atari\]'"):
        make_pixels("ALE/Pong-v5")
    with pytest.raises(ImportError, match=r"pip install 'fastrl\[mario\]'"):
        make_pixels("SuperMarioBros-v0")


@pytest.fixture(scope="module")
def atari() -> Any:
    return pytest.importorskip("ale_py", reason="ale-py is not installed: pip install 'fastrl[atari]'")


@pytest.mark.slow
def test_atari_agrees_with_gymnasium_and_numpy(atari: Any) -> None:
    """Compared with the plain environment and numpy, frame by frame and reward by reward, until games have ended."""
    env = make_pixels("ALE/Pong-v5", noop_max=0, clip_reward=False)
    gymnasium.register_envs(atari)
    plain = gymnasium.make("ALE/Pong-v5", frameskip=1, obs_type="grayscale").unwrapped
    shrinker, expected = Shrinker((210, 160)), np.empty((84, 84), np.uint8)
    frame, _ = env.reset(seed=5)
    raw, _ = plain.reset(seed=5)
    shrinker.shrink(raw, expected)
    np.testing.assert_array_equal(frame, expected)
    rng, total, ends = np.random.default_rng(0), 0.0, 0
    for _ in range(1200):
        action = int(rng.integers(6))
        frame, reward, terminated, truncated, info = env.step(action)
        slow_reward = 0.0
        for _ in range(4):
            before = raw
            raw, r, over, cut, _ = plain.step(action)
            slow_reward += float(r)
            if over or cut:
                break
        if not over:
            shrinker.shrink(np.maximum(raw, before), expected)
            np.testing.assert_array_equal(frame, expected)
        assert (reward, terminated, truncated) == (slow_reward, over, cut)
        total += reward
        if over:
            assert info["episode"]["r"] == total
            env.reset()
            raw, _ = plain.reset()
            total, ends = 0.0, ends + 1
    assert ends >= 1


@pytest.mark.slow
def test_atari_counts_lives_and_is_deterministic(atari: Any) -> None:
    runs = []
    for _ in range(2):
        env = make_pixels("ALE/Breakout-v5", life_loss_ends=True, noop_max=8)
        frame, _ = env.reset(seed=3)
        frames, lives = [frame], []
        for t in range(300):
            frame, reward, terminated, _, info = env.step([1, 0, 2, 3][t % 4])
            assert reward in (-1.0, 0.0, 1.0)
            frames.append(frame)
            if terminated:
                lives.append(env.game.lives)
                assert ("episode" in info) == (lives[-1] == 0)
                env.reset()
        assert lives[:5] == [4, 3, 2, 1, 0]
        runs.append(np.stack(frames))
        env.close()
    np.testing.assert_array_equal(*runs)
    assert len(np.unique(runs[0])) > 3


def test_unknown_atari_games_are_refused_with_the_nearest(atari: Any) -> None:
    with pytest.raises(ValueError, match=r"did you mean ALE/Pong-v5\?"):
        make_pixels("ALE/Pog-v5")


@pytest.mark.parametrize("channels_first", [False, True])
def test_stacked_frames_are_the_newest(channels_first: bool) -> None:
    env = StackedFrames(pixels(Counting(length=9), frame_skip=1), 3, channels_first=channels_first)
    assert env.observation_space.shape == ((3, 2, 3) if channels_first else (2, 3, 3))
    for episode in range(2):
        seen = [env.reset(seed=episode)[0]]
        seen += [env.step(0)[0] for _ in range(5)]
        for t, obs in enumerate(seen):
            expected = [max(time, 0) for time in (t - 2, t - 1, t)]
            assert (np.moveaxis(obs, 0, -1) if channels_first else obs).tolist() == [[expected] * 3] * 2
            assert obs.flags.c_contiguous
