"""The real CybORG of CAGE Challenge 2, if it is installed: a Gymnasium environment, and an agent of a trained policy.

A trained policy in the challenge's own ``CybORG/Evaluation/evaluation.py``: two of its lines change. Instead of the
import of ``BlueLoadAgent``::

    from fastrl import load_policy; from fastrl.envs.adapters.cyborg import Cage2Agent

and instead of ``agent = BlueLoadAgent()``::

    agent = Cage2Agent(load_policy("runs/mine"))

Its wrapper stays as it is, ``ChallengeWrapper(env=env, agent_name="Blue")``.
"""

import contextlib
import importlib
import io
import random
import warnings
from pathlib import Path
from typing import Any, Literal, Protocol, SupportsFloat, get_args

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from fastrl.envs.cage2.memory import BlueMemory, Memory, Observe, Ruleset, observation_high

RedAgent = Literal["bline", "meander", "sleep"]

RED_AGENT_CLASSES = {"bline": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}
_ACTIONS = 145
_SOURCE = "https://github.com/cage-challenge/cage-challenge-2"


class CyborgEnv(gymnasium.Env[Any, Any]):
    """CybORG 2.1's ``ChallengeWrapper`` on Scenario2, as blue; registered as ``fastrl/CybORG-v0``.

    Observations are float32 [52] of 0 and 1, and the values of ``memory`` after them; actions 145; an episode is
    truncated after ``episode_length`` steps. It makes several hundred steps a second; ``fastrl/Cage2-v0`` is the same
    game, compiled.

    CybORG draws from Python's global generator. Each environment keeps its own generator state, which replaces the
    global one during a call only: episodes depend on their seed, not on other environments.

    Args:
        red_agent: "bline", "meander" or "sleep".
        episode_length: at least 1.
        memory: values of what blue remembers of the episode, as in ``fastrl/Cage2-v0``: none, scan, decoys or full.

    Raises:
        ImportError: CybORG, or a package that it needs, is not installed; one line.
        ValueError: an unknown red agent or memory, or a length below 1.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - as Gymnasium has it

    def __init__(
        self, red_agent: RedAgent = "bline", episode_length: int = 100, memory: Memory = "none"
    ) -> None:
        if red_agent not in RED_AGENT_CLASSES:
            raise ValueError(f"red_agent should be {', '.join(get_args(RedAgent))}, got {red_agent!r}")
        if episode_length < 1:
            raise ValueError(f"episode_length should be at least 1, got {episode_length}")
        high = observation_high(memory, episode_length)
        self.observation_space: Box = Box(np.zeros_like(high), high, dtype=np.float32)
        self.action_space: Discrete = Discrete(145)
        self.episode_length = episode_length
        self._steps = episode_length
        self._random = random.Random(0).getstate()
        self._blue = BlueMemory(1, memory)
        cyborg, agents, wrappers = import_cyborg()
        scenario = Path(cyborg.__file__).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
        with self._own_random():
            self._game = wrappers.ChallengeWrapper(
                env=cyborg.CybORG(
                    str(scenario), "sim", agents={"Red": getattr(agents, RED_AGENT_CLASSES[red_agent])}
                ),
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
        self._blue.reset()
        with self._own_random():
            return self._as_obs(self._game.reset()), {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Bool [145]: False for actions without an effect, as those of ``fastrl/Cage2-v0``."""
        return self._blue.action_masks()[0]

    def step(self, action: SupportsFloat) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self._steps == self.episode_length:
            raise RuntimeError("no episode is running: call reset() before the next step()")
        index = int(action)  # type: ignore[call-overload]
        with self._own_random():
            obs, reward, terminated, _ = self._game.step(index)
        self._steps += 1
        return (
            self._as_obs(obs, index),
            float(reward),
            bool(terminated),
            self._steps == self.episode_length,
            {},
        )

    def _as_obs(self, obs: Any, action: int = -1) -> NDArray[np.float32]:
        return self._blue.observe(np.asarray(obs, np.float32)[None], [action])[0]


def import_cyborg() -> tuple[Any, Any, Any]:
    """The modules CybORG, CybORG.Agents and CybORG.Agents.Wrappers."""
    try:
        cyborg, agents, wrappers = map(_quietly, ("CybORG", "CybORG.Agents", "CybORG.Agents.Wrappers"))
    except ImportError as error:
        missing = "CybORG" if error.name == "CybORG" else f"what CybORG needs ({error})"
        raise ImportError(
            f"fastrl/CybORG-v0 needs {missing}, which is not installed: {_SOURCE} has instructions;"
            " fastrl/Cage2-v0 is the same game without it"
        ) from None
    return cyborg, agents, wrappers


def _quietly(module: str) -> Any:
    # The old gym, on which CybORG is built, prints warnings about its age.
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def base_agent() -> type[Any]:
    """CybORG's base class of agents; without CybORG a class without methods."""
    try:
        return _quietly("CybORG.Agents.SimpleAgents.BaseAgent").BaseAgent  # type: ignore[no-any-return]
    except ImportError:
        return object


class Acting(Protocol):
    """A policy as `fastrl.load_policy` gives it, see `fastrl.play.policy.Policy`."""

    memory: Memory
    observe: Observe
    needs_action_mask: bool
    state_size: int
    num_actions: int

    def act(self, obs: Any, deterministic: bool, action_mask: Any, states: Any, /) -> Any: ...


class Cage2Agent(base_agent()):  # type: ignore[misc] # the base depends on what is installed
    """A trained policy as blue agent of CybORG, seen through the ``ChallengeWrapper``, such as in the challenge's
    ``evaluation.py``.

    It knows the 52 bits of each observation and its own actions, no more. From these it makes the further inputs that
    the policy was trained with, its action masks, and the memory of recurrent policies. `end_episode` clears them: call
    it after the last step of an episode, as ``evaluation.py`` does.

    Where CybORG makes the agent itself, without arguments, a subclass has the policy::

        class MyAgent(Cage2Agent):
            def __init__(self):
                super().__init__(load_policy("runs/mine"))

    Args:
        policy: trained on CAGE 2; `fastrl.load_policy` loads it from a run directory or a checkpoint file.
        deterministic: takes the most probable actions; otherwise they are drawn from the policy.
        ruleset: of the CybORG in which it plays.

    Raises:
        ValueError: a policy of other games, or one that was trained on the true state of the game.
    """

    def __init__(self, policy: Acting, *, deterministic: bool = True, ruleset: Ruleset = "main") -> None:
        if policy.num_actions != _ACTIONS:
            raise ValueError(
                f"a policy of CAGE 2 chooses among {_ACTIONS} actions, this one among {policy.num_actions}"
            )
        if policy.observe == "truth":
            raise ValueError(
                "this policy observes the true state of the game, which CybORG shows to no agent"
            )
        self._policy, self._deterministic = policy, deterministic
        self._memory = BlueMemory(1, policy.memory, ruleset)
        self._states = np.zeros((1, policy.state_size), np.float32) if policy.state_size else None
        self._action: NDArray[np.int64] | None = None

    def get_action(self, observation: Any, action_space: Any = None) -> int:
        """The index of the action to take, of the wrapper's 145.

        Args:
            observation: 52 zeros and ones, of the wrapper's ``reset`` or ``step``.
            action_space: of the wrapper, 145.

        Raises:
            ValueError: an observation or action space of other wrappers.
        """
        if action_space is not None and action_space != _ACTIONS:
            raise ValueError(
                f"action_space should be {_ACTIONS}, as of ChallengeWrapper, got {type(action_space).__name__}"
                f" {str(action_space)[:20]}"
            )
        obs = self._memory.observe(np.asarray(observation)[None], self._action)
        masks = self._memory.action_masks() if self._policy.needs_action_mask else None
        self._action = self._policy.act(obs, self._deterministic, masks, self._states)
        return int(self._action[0])

    def end_episode(self) -> None:
        """Forgets the episode."""
        self._memory.reset()
        self._action = None
        if self._states is not None:
            self._states[:] = 0

    def set_initial_values(self, action_space: Any, observation: Any) -> None:
        """Forgets the episode; CybORG calls it before the first one."""
        self.end_episode()

    def train(self, results: Any) -> None:
        """Learns nothing: the policy is trained."""
