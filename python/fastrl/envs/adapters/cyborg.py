"""The real CybORG of CAGE Challenge 2 as a Gymnasium environment, if it is installed."""

import contextlib
import importlib
import io
import random
import warnings
from pathlib import Path
from typing import Any, Literal, SupportsFloat, get_args

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

RedAgent = Literal["bline", "meander", "sleep"]

_AGENTS = {"bline": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}
_SOURCE = "https://github.com/cage-challenge/cage-challenge-2"


class CyborgEnv(gymnasium.Env[Any, Any]):
    """CybORG 2.1's ``ChallengeWrapper`` on Scenario2, as blue; registered as ``fastrl/CybORG-v0``.

    Observations are float32 [52] of 0 and 1, actions 145; an episode is truncated after ``episode_length`` steps. It
    makes several hundred steps a second; ``fastrl/Cage2-v0`` is the same game, compiled.

    CybORG draws from Python's global generator. Each environment keeps its own generator state, which replaces the
    global one during a call only: episodes depend on their seed, not on other environments.

    Args:
        red_agent: "bline", "meander" or "sleep".
        episode_length: at least 1.

    Raises:
        ImportError: CybORG, or a package that it needs, is not installed; one line.
        ValueError: an unknown red agent, or a length below 1.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, red_agent: RedAgent = "bline", episode_length: int = 100) -> None:
        if red_agent not in _AGENTS:
            raise ValueError(f"red_agent should be {', '.join(get_args(RedAgent))}, got {red_agent!r}")
        if episode_length < 1:
            raise ValueError(f"episode_length should be at least 1, got {episode_length}")
        self.observation_space: Box = Box(0.0, 1.0, (52,), np.float32)
        self.action_space: Discrete = Discrete(145)
        self.episode_length = episode_length
        self._steps = episode_length
        self._random = random.Random(0).getstate()
        cyborg, agents, wrappers = _import()
        scenario = Path(cyborg.__file__).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
        with self._own_random():
            self._game = wrappers.ChallengeWrapper(
                env=cyborg.CybORG(str(scenario), "sim", agents={"Red": getattr(agents, _AGENTS[red_agent])}),
                agent_name="Blue",
            )

    @contextlib.contextmanager
    def _own_random(self) -> Any:
        before = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(before)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._random = random.Random(seed).getstate()
        self._steps = 0
        with self._own_random():
            return self._as_obs(self._game.reset()), {}

    def step(self, action: SupportsFloat) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._steps == self.episode_length:
            raise RuntimeError("no episode is running: call reset() before the next step()")
        with self._own_random():
            obs, reward, terminated, _ = self._game.step(int(action))  # type: ignore[call-overload]
        self._steps += 1
        return self._as_obs(obs), float(reward), bool(terminated), self._steps == self.episode_length, {}

    def _as_obs(self, obs: Any) -> NDArray[np.float32]:
        return np.asarray(obs, np.float32)


def _import() -> tuple[Any, Any, Any]:
    """The modules CybORG, CybORG.Agents and CybORG.Agents.Wrappers."""
    # The old gym, on which CybORG is built, prints warnings about its age.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cyborg, agents, wrappers = (
                importlib.import_module(name)
                for name in ("CybORG", "CybORG.Agents", "CybORG.Agents.Wrappers")
            )
        except ImportError as error:
            missing = "CybORG" if error.name == "CybORG" else f"what CybORG needs ({error})"
            raise ImportError(
                f"fastrl/CybORG-v0 needs {missing}, which is not installed: {_SOURCE} has instructions;"
                " fastrl/Cage2-v0 is the same game without it"
            ) from None
    return cyborg, agents, wrappers
