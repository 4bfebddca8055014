"""Super Mario Bros. as a Gymnasium environment, with either generation of gym-super-mario-bros.

Version 9 has Gymnasium's interface and needs Python 3.13. For 3.11 and 3.12 there is 7.4, with nes-py 8.2, which has
the interface of the old ``gym`` and works with numpy 1 only. The extra ``mario`` chooses by Python version.
"""

import contextlib
import io
import warnings
from typing import Any, Literal, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from fastrl.utils.names import did_you_mean

Actions = Literal["right", "simple", "complex"]

# The joypad's bits.
BUTTONS = {"right": 128, "left": 64, "down": 32, "up": 16, "start": 8, "select": 4, "B": 2, "A": 1}


class MarioEnv(gymnasium.Env[Any, Any]):
    """The real game, one frame of 1/60 s a step.

    Observations are RGB, uint8 [240, 256, 3], a view of the screen that the next step overwrites. Infos are the
    game's own, with ``lives`` counted from 0.

    Args:
        env_id: as gym-super-mario-bros has them, such as ``SuperMarioBros-v0``, ``SuperMarioBros-1-1-v0``.
        actions: "right" (5 actions: nothing, walk, jump, run, both), "simple" (7: jump on the spot and left too)
            or "complex" (12), as the package has them. Action 0 does nothing.

    Raises:
        ImportError: the package is not installed, or cannot work with this numpy.
        ValueError: no such id or set of actions.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, env_id: str = "SuperMarioBros-v0", actions: Actions = "simple") -> None:
        self._game, sets = _make(env_id)
        if actions not in sets:
            raise ValueError(f"actions should be {', '.join(sets)}, got {actions!r}")
        self.buttons = [[button for button in action if button != "NOOP"] for action in sets[actions]]
        self._bytes = [sum(BUTTONS[button] for button in action) for action in self.buttons]
        self.observation_space: Box = Box(0, 255, (240, 256, 3), np.uint8)
        self.action_space: Discrete = Discrete(len(self._bytes))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        result = self._game.reset(seed=seed, options=options)
        # The old gym returned the observation only.
        frame, info = result if isinstance(result, tuple) else (result, {"life": 2})
        return frame, _with_lives(info)

    def step(self, action: SupportsFloat) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        frame, reward, terminated, *truncated, info = self._game.step(self._bytes[int(action)])  # type: ignore[call-overload]
        # The old gym returned four values: its games are never truncated.
        return frame, float(reward), bool(terminated), any(truncated), _with_lives(info)

    def close(self) -> None:
        self._game.close()


def _with_lives(info: dict[str, Any]) -> dict[str, Any]:
    # At the end of the game the console's unsigned counter wraps around from 0 to 255.
    life = int(info.get("lives", info["life"]))
    return info | {"lives": 0 if life == 255 else life}


def _make(env_id: str) -> tuple[Any, dict[str, Any]]:
    """The package's environment without wrappers, and its sets of actions."""
    # The old gym prints warnings about its age, on import and in use.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import gym_super_mario_bros
            from gym_super_mario_bros import actions
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{env_id} needs gym-super-mario-bros ({error.name} is not installed): pip install 'fastrl[mario]'"
            ) from None
        sets = {
            "right": actions.RIGHT_ONLY,
            "simple": actions.SIMPLE_MOVEMENT,
            "complex": actions.COMPLEX_MOVEMENT,
        }
        if issubclass(gym_super_mario_bros.SuperMarioBrosEnv, gymnasium.Env):
            specs: Any = gymnasium.registry
        else:
            if int(np.__version__.partition(".")[0]) > 1:
                raise ImportError(
                    f"gym-super-mario-bros 7 works with numpy 1 only, this is {np.__version__}:"
                    " pip install 'fastrl[mario]' in an environment of its own"
                )
            import gym

            specs = gym.envs.registry
        if env_id not in specs:
            known = [name for name in specs if name.startswith("SuperMarioBros")]
            raise ValueError(f"there is no environment {env_id}{did_you_mean(env_id, known, 0.0)}")
        spec = specs[env_id]
        entry_point = spec.entry_point.partition(":")[2]
        return getattr(gym_super_mario_bros, entry_point)(**spec.kwargs), sets
