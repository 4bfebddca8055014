"""Games as small grey frames: the usual preprocessing of Atari, compiled, for any game with a screen.

One step is ``frame_skip`` frames of the game with one action held (Mnih et al. 2015, Methods; Machado et al. 2018):
rewards are summed, and the pixelwise maximum of the last two frames becomes one grey frame. An observation is the
newest frame only; `StackedFrames` gives the newest ones as one.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from fastrl._native._pixels import Shrinker
from fastrl.envs import contract
from fastrl.utils.main_module import import_main
from fastrl.utils.names import did_you_mean

Frame = NDArray[np.uint8]


class Game(Protocol):
    """The interface of a game for `PixelEnv`, which steps it one raw frame at a time.

    Attributes:
        shape: (H, W) of the screen.
        num_actions: number of actions; 0 does nothing, if the game has such an action.
    """

    shape: tuple[int, int]
    num_actions: int

    @property
    def lives(self) -> int:
        """The number of lives left; constant if the game does not count them."""
        ...

    def reset(self, seed: int | None) -> None: ...

    def act(self, action: int) -> tuple[float, bool, bool]:
        """Advances the game by a frame and returns reward, terminated, truncated."""
        ...

    def mask(self) -> Any:
        """The actions that are allowed now, bool [num_actions]; None: the game does not say."""
        ...

    def screen(self) -> Frame:
        """uint8 [H, W] or [H, W, 3]; valid until the next call of any method."""
        ...

    def picture(self) -> Frame:
        """The screen in its colours, uint8 [H, W, 3], for people."""
        ...

    def close(self) -> None: ...


class PixelEnv(gymnasium.Env[Any, Any]):
    """A game as an environment with preprocessed frames. Made by `make_pixels`.

    An observation is the newest frame, uint8 [h, w], in a new array. At the end of a game ``info["episode"]`` has its
    undiscounted return before clipping, ``r``, and its length in steps of this environment, ``l``. Where the game says
    which actions it allows, ``info["action_mask"]`` has them.

    Args:
        game: closed with this environment.
        size: (h, w) of the observations.
        frame_skip: frames of the game in a step.
        max_of_two: use the pixelwise maximum of the last two frames of a step.
        noop_max: a game starts with 1 to this many frames of action 0; 0: with none.
        life_loss_ends: the loss of a life ends the episode (``terminated``), and `reset` continues the same game until
            it is over. ``info["continues"]`` is 1 there.
        clip_reward: replace the reward of a step by its sign, -1, 0 or 1.
        reward_scale: factor of rewards that are not clipped.
        render_mode: "rgb_array": `render` gives the game's own screen after the last step; None.

    Raises:
        ValueError: there is no such mode, or another argument makes no sense.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self,
        game: Game,
        *,
        size: tuple[int, int],
        frame_skip: int = 4,
        max_of_two: bool = True,
        noop_max: int = 30,
        life_loss_ends: bool = False,
        clip_reward: bool = True,
        reward_scale: float = 1.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode should be 'rgb_array' or None, got {render_mode!r}")
        if frame_skip < 1:
            raise ValueError(f"frame_skip should be at least 1, got {frame_skip}")
        if noop_max < 0:
            raise ValueError(f"noop_max should be at least 0, got {noop_max}")
        self.observation_space: Box = Box(0, 255, size, np.uint8)
        self.action_space: Discrete = Discrete(game.num_actions)
        self.render_mode = render_mode
        # At real speed, of consoles with 60 frames a second.
        self.metadata = {**self.metadata, "render_fps": 60 / frame_skip}
        self.game = game
        self.frame_skip = frame_skip
        self.max_of_two = max_of_two and frame_skip > 1
        self.noop_max = noop_max
        self.life_loss_ends = life_loss_ends
        self.clip_reward = clip_reward
        self.reward_scale = reward_scale
        self._shrinker = Shrinker(game.shape, size)
        self._previous = np.empty((*game.shape, 3), np.uint8)
        self._over = True
        self._return = 0.0
        self._length = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        """Starts an episode: a new game, or the next life of one that is not over (see ``life_loss_ends``).

        With a seed, or ``options={"new_game": True}``, it is always a new game.
        """
        super().reset(seed=seed)
        if seed is not None or self._over or (options or {}).get("new_game"):
            self._new_game(seed)
        else:
            # Advance to the first frame of the next life. In some games this frame ends the game.
            reward, terminated, truncated = self.game.act(0)
            self._return += reward
            if terminated or truncated:
                self._new_game(None)
        return self._observe(None), self._info()

    def _info(self) -> dict[str, Any]:
        mask = self.game.mask()
        return {} if mask is None else {contract.ACTION_MASK: mask}

    @property
    def over(self) -> bool:
        """The next `reset` starts a new game."""
        return self._over

    def _new_game(self, seed: int | None) -> None:
        self.game.reset(seed)
        self._over, self._return, self._length = False, 0.0, 0
        noops = int(self.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        for _ in range(noops):
            reward, terminated, truncated = self.game.act(0)
            self._return += reward
            if terminated or truncated:
                self.game.reset(None)
                self._return = 0.0

    def step(self, action: SupportsFloat) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Holds the action for ``frame_skip`` frames, or fewer if the episode ends earlier."""
        if self._over:
            raise RuntimeError("the episode has ended: call reset() before the next step()")
        game, lives, chosen = self.game, self.game.lives, int(action)  # type: ignore[call-overload]
        total, previous = 0.0, None
        for frame in range(self.frame_skip):
            if frame == self.frame_skip - 1 and self.max_of_two:
                previous = self._copy(game.screen())
            reward, terminated, truncated = game.act(chosen)
            total += reward
            if terminated or truncated:
                break
        self._return += total
        self._length += 1
        info = self._info()
        self._over = terminated or truncated
        if self._over:
            info["episode"] = {"r": self._return, "l": self._length}
        elif self.life_loss_ends and game.lives < lives:
            terminated = True
            info[contract.CONTINUES] = 1.0
        if self.clip_reward:
            total = float((total > 0) - (total < 0))
        else:
            total *= self.reward_scale
        return self._observe(previous), total, terminated, truncated, info

    def _copy(self, screen: Frame) -> Frame:
        """A copy of the screen, which the game will overwrite."""
        copy = self._previous if screen.ndim == 3 else self._previous[..., 0]
        np.copyto(copy, screen)
        return copy

    def _observe(self, previous: Frame | None) -> Frame:
        frame = np.empty(self._shrinker.out_shape, np.uint8)
        self._shrinker.shrink(self.game.screen(), frame, previous)
        return frame

    def render(self) -> Frame | None:  # type: ignore[override]
        """The screen in its colours, uint8 [H, W, 3]; None without a render mode."""
        return None if self.render_mode is None else self.game.picture()

    def close(self) -> None:
        self.game.close()


class SeededGames(gymnasium.Wrapper[Frame, SupportsFloat, Frame, SupportsFloat]):
    """A wrapper that uses the seed of a `reset` only if a new game starts, not for the next life of one."""

    env: PixelEnv

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        return self.env.reset(seed=seed if self.env.over else None, options=options)


class AtariGame:
    """A game of the Arcade Learning Environment, through its own interface, which reads only the frames that are used.

    Args:
        env: an ``AtariEnv`` of ale-py, made with ``frameskip=1``.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._ale = env.ale
        self._actions = list(env._action_set)
        self.shape: tuple[int, int] = tuple(env.ale.getScreenDims())
        self.num_actions = len(self._actions)
        self._frame = np.empty(self.shape, np.uint8)

    @property
    def lives(self) -> int:
        return int(self._ale.lives())

    def reset(self, seed: int | None) -> None:
        if seed is None:
            self._ale.reset_game()
        else:
            self._env.reset(seed=seed)

    def act(self, action: int) -> tuple[float, bool, bool]:
        reward = self._ale.act(self._actions[action])
        if not self._ale.game_over():
            return reward, False, False
        return reward, self._ale.game_over(with_truncation=False), self._ale.game_truncated()

    def mask(self) -> None:
        """All actions are allowed."""

    def screen(self) -> Frame:
        self._ale.getScreenGrayscale(self._frame)
        return self._frame

    def picture(self) -> Frame:
        return self._ale.getScreenRGB()

    def close(self) -> None:
        self._env.close()


class ImageGame:
    """Any Gymnasium environment whose observations are images.

    Args:
        env: with uint8 [H, W], [H, W, 1] or [H, W, 3] observations and a Discrete action space from 0 on. Its
            infos' ``lives`` counts lives, if it is there.

    Raises:
        ValueError: it has other spaces. `reset` and `act` raise `fastrl.envs.contract.ContractError` for results that
            do not fit the spaces, or a reward that is not finite.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        space, actions = env.observation_space, env.action_space
        name = contract.env_name(env)
        image = isinstance(space, Box) and space.dtype == np.uint8
        if (
            not image
            or len(space.shape or ()) not in (2, 3)
            or (space.shape or ())[2:] not in ((), (1,), (3,))
        ):
            raise ValueError(f"{name}: expected image observations (uint8, [H, W] or [H, W, 3]), got {space}")
        if not isinstance(actions, Discrete) or actions.start != 0:
            raise ValueError(f"{name}: expected Discrete actions from 0 on, got {actions}")
        assert space.shape is not None
        self._env = env
        self._form = contract.obs_form(name, space.shape, space.dtype)
        self._frame: Frame = np.zeros(space.shape, np.uint8)
        self.shape: tuple[int, int] = (space.shape[0], space.shape[1])
        self.num_actions = int(actions.n)
        self.lives = 0
        self._mask_method = contract.mask_method(env)

    def reset(self, seed: int | None) -> None:
        self._frame, self._info = contract.reset(self._env, self._form, seed)
        self._count_lives()

    def act(self, action: int) -> tuple[float, bool, bool]:
        self._frame, reward, terminated, truncated, self._info = contract.step(self._env, self._form, action)
        if not math.isfinite(reward):
            raise contract.ContractError(
                f"{self._form.name}: step() gave the reward {reward}, it should be finite"
            )
        self._count_lives()
        return float(reward), bool(terminated), bool(truncated)

    def _count_lives(self) -> None:
        if "lives" in self._info:
            self.lives = int(self._info["lives"])

    def mask(self) -> Any:
        return contract.with_action_mask(self._info, self._mask_method).get(contract.ACTION_MASK)

    def screen(self) -> Frame:
        return self._frame[..., 0] if self._frame.shape[2:] == (1,) else self._frame

    def picture(self) -> Frame:
        screen = self.screen()
        return screen.copy() if screen.ndim == 3 else np.repeat(screen[..., None], 3, axis=-1)

    def close(self) -> None:
        self._env.close()


def make_pixels(
    env_id: str,
    *,
    size: int | None = 84,
    env_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> PixelEnv:
    """Makes an environment with preprocessed frames from a Gymnasium id.

    Args:
        env_id: ``ALE/Pong-v5`` and the like (needs the extra ``atari``), ``SuperMarioBros-v0`` and the like
            (``mario``), or any other id whose observations are images.
        size: height and width of the frames; None: the size of the screen.
        env_options: keyword arguments of the environment itself, such as ``{"repeat_action_probability": 0.0}`` for
            Atari, ``{"actions": "complex"}`` for Mario (``fastrl.envs.adapters.mario``).
        options: frame_skip, max_of_two, noop_max, life_loss_ends, clip_reward, reward_scale, render_mode: see
            `PixelEnv`.

    Raises:
        ValueError: there is no such id (the message names the nearest), or it has no images or no Discrete
            actions.
        ImportError: it needs an extra that is not installed; the message says which.
        TypeError: an option that the environment does not know.
    """
    game = make_game(env_id, **(env_options or {}))
    return PixelEnv(game, size=game.shape if size is None else (size, size), **options)


class StackedFrames(gymnasium.Wrapper[Frame, SupportsFloat, Frame, SupportsFloat]):
    """The newest frames of an environment as one image, uint8 [h, w, stack], the newest last.

    Before the first frame of an episode there are frames of zeros, as in ``fastrl.replay``.

    Args:
        env: with frames uint8 [h, w] as observations.
        stack: frames in an observation.
        channels_first: images are [stack, h, w].
    """

    def __init__(
        self, env: gymnasium.Env[Frame, SupportsFloat], stack: int, *, channels_first: bool = False
    ) -> None:
        super().__init__(env)
        frame = env.observation_space.shape or ()
        shape = (stack, *frame) if channels_first else (*frame, stack)
        self.observation_space = Box(0, 255, shape, np.uint8)
        self._stack = np.zeros(shape, np.uint8)
        # All numbers move by one frame, in one piece; where channels are last, by one place.
        self._moves = math.prod(frame) if channels_first else 1
        self._newest = np.s_[-1] if channels_first else np.s_[..., -1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Frame, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self._stack = np.zeros_like(self._stack)
        self._stack[self._newest] = frame
        return self._stack, info

    def step(self, action: SupportsFloat) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        before, self._stack = self._stack, np.empty_like(self._stack)
        # The newest frame overwrites what came from the next pixel.
        self._stack.reshape(-1)[: -self._moves] = before.reshape(-1)[self._moves :]
        self._stack[self._newest] = frame
        return self._stack, float(reward), terminated, truncated, info


def make_stacked_pixels(
    env_id: str, *, stack: int = 4, channels_first: bool = False, **options: Any
) -> StackedFrames:
    """Makes as `make_pixels` an environment of stacked frames, whose seeds count only at the start of a game."""
    games = SeededGames(make_pixels(env_id, **options))
    return StackedFrames(games, stack, channels_first=channels_first)


def make_game(env_id: str, **options: Any) -> Game:
    """Makes the game of an id without preprocessing. Arguments and errors are those of `make_pixels`."""
    if env_id.startswith("SuperMarioBros"):
        from fastrl.envs.adapters.mario import MarioEnv

        return ImageGame(MarioEnv(env_id, **options))
    if env_id.startswith("ALE/") and env_id not in gymnasium.registry:
        _register_atari(env_id)
    if ":" not in env_id and env_id not in gymnasium.registry:
        import_main()  # which registers it
    try:
        spec = gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError) as error:
        hint = did_you_mean(env_id, gymnasium.registry, 0.5)
        raise ValueError(f"there is no environment {env_id}{hint}") from error
    if spec.entry_point != "ale_py.env:AtariEnv":
        return ImageGame(gymnasium.make(env_id, disable_env_checker=True, **options))
    import ale_py

    # Without this every process prints a banner.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return AtariGame(gymnasium.make(env_id, disable_env_checker=True, frameskip=1, **options).unwrapped)


def _register_atari(env_id: str) -> None:
    try:
        import ale_py
    except ModuleNotFoundError:
        raise ImportError(
            f"{env_id} needs ale-py, which is not installed: pip install 'fastrl[atari]'"
        ) from None
    gymnasium.register_envs(ale_py)
