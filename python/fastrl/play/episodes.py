"""Environments of evaluation: building them, their longest episode, episodes without exploration to score a policy."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete, Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.fragment_arrays import allocate_steps
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.collectors.vector_env_backend import VectorEnvBackend
from fastrl.envs import contract
from fastrl.envs.rows import ActionRows, ObsRows, action_rows_of, obs_rows_of
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.play.play import episode_returns, episode_seeds
from fastrl.runs.errors import TrainError

Made = TypeVar("Made")

# Limit of an episode's steps if neither the environment nor the settings have one.
EPISODE_STEPS = 1000
# Random steps that `sampled_rows` takes.
_SAMPLED_STEPS = 7


def build_env(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """Builds one environment in this process.

    Raises:
        TrainError: there is no environment of that name, or its factory does not take the options.
        CollectError: it raised while it was built; the error has the traceback of its own code.
    """
    return _build(spec, spec.make)


def build_any(spec: EnvSpec, num_envs: int | None) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]:
    """Builds what the factory makes: an environment as of `build_env`, or a vector one of ``num_envs`` (None: any)."""
    return _build(spec, lambda: spec.build(num_envs))


def _build(spec: EnvSpec, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except (Exception, SystemExit) as error:
        trace = own_traceback(error)
        # The line names the environment already.
        reason = str(error).removeprefix("env: ").removeprefix(f"{spec.id!r}: ") or type(error).__name__
        if trace:
            reason = f"it could not be built: {last_line(trace)}"
        options = f" with {dict(spec.options)}" if spec.options and isinstance(error, TypeError) else ""
        line = f"--env {spec.id}{options}: {reason.splitlines()[0]}"
        if trace:
            raise CollectError(line, trace) from error
        raise TrainError(line) from error


def spaces_of(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> tuple[Space[Any], Space[Any]]:
    """The observation space and the flat action space of an environment in rows, or of the environments in a vector
    environment, as `fastrl.algorithms.protocol.Problem` has them.

    Raises:
        ValueError: spaces that have no rows.
    """
    if isinstance(env, VectorEnv):
        obs_space, action_space = env.single_observation_space, env.single_action_space
        return ObsRows(obs_space).space, ActionRows(action_space).flat_space
    return obs_rows_of(env).space, env.action_space


def episode_steps(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], limit: int = 0) -> int:
    """The steps after which an episode of an environment ends at the latest.

    Args:
        limit: of the settings; 0: the environment's own, else `EPISODE_STEPS`.
    """
    most = None if env.spec is None else env.spec.max_episode_steps
    return limit or most or EPISODE_STEPS


class EnvFacts(NamedTuple):
    """Facts of the environments that a specification makes.

    Attributes:
        obs_space, action_space: see `spaces_of`.
        env_actions: the environment's own action space.
        episode_steps: see `episode_steps`.
        is_vector: they are made as one vector environment.
    """

    obs_space: Space[Any]
    action_space: Space[Any]
    env_actions: Space[Any]
    episode_steps: int
    is_vector: bool


def facts_of(spec: EnvSpec, num_envs: int, limit: int = 0) -> EnvFacts:
    """Builds environments in this process, reads what they are, and closes them.

    Args:
        limit: as of `episode_steps`.

    Raises:
        TrainError, CollectError: as of `build_any`, or they have spaces without rows.
    """
    env = build_any(spec.as_rows(), num_envs)
    try:
        spaces = spaces_of(env)
    except ValueError as error:
        raise TrainError(f"--env {spec.id}: {error}") from None
    env_actions = env.single_action_space if isinstance(env, VectorEnv) else action_rows_of(env).space
    facts = EnvFacts(*spaces, env_actions, episode_steps(env, limit), isinstance(env, VectorEnv))
    spec.close(env)
    return facts


def sampled_rows(spec: EnvSpec, num_envs: int) -> NDArray[Any]:
    """Rows [K, size] of observations of an environment that is built for it: of a reset, and of random steps, which
    keep to its action masks. Fewer where it raises, which it will tell when it is collected from.

    Raises:
        TrainError, CollectError: as of `build_any`.
    """
    env = build_any(spec.as_rows(), num_envs)
    found: list[NDArray[Any]] = []
    with contextlib.suppress(Exception):
        obs, info = env.reset(seed=0)
        if isinstance(env, VectorEnv):
            obs_rows = ObsRows(env.single_observation_space)
            rows = np.zeros((env.num_envs, obs_rows.size), obs_rows.dtype)
            obs_rows.write_batch(obs, rows)
            found.extend(rows)
        else:
            dtype, space, method = obs_rows_of(env).dtype, env.action_space, contract.mask_method(env)
            space.seed(0)
            found.append(obs.astype(dtype).ravel())
            for _ in range(_SAMPLED_STEPS):
                mask = contract.with_action_mask(info, method).get(contract.ACTION_MASK)
                obs, _, terminated, truncated, info = env.step(_drawn(space, mask))
                found.append(obs.astype(dtype).ravel())
                if terminated or truncated:
                    break
    spec.close(env)
    return np.array(found)


def _drawn(space: Space[Any], mask: Any) -> Any:
    """A random action of a flat space; an action mask says which are allowed."""
    if mask is None or isinstance(space, Box):
        return space.sample()
    allowed = np.asarray(mask, np.int8)
    if isinstance(space, MultiDiscrete):
        return space.sample(mask=tuple(np.split(allowed, np.cumsum(space.nvec)[:-1])))
    return space.sample(mask=allowed)


class EnvEpisodes:
    """Episodes in an environment in which the likeliest action is always chosen, as `play` plays them. Observations and
    rewards are checked, see `fastrl.envs.contract`.

    Args:
        env: in rows (see `fastrl.envs.rows.in_rows`).
        env_id: of the environment, for errors.
        actor: with the policy's weights.
        squash: actions of a Box are squashed.
        action_masks: the likeliest of the actions is chosen that the environment allows.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        env_id: str,
        actor: Actor,
        *,
        squash: bool = False,
        action_masks: bool = False,
    ) -> None:
        self._env, self._id, self._actor, space = env, env_id, actor, env.observation_space
        self.render = env.render
        self._form = contract.obs_form(env_id, space.shape or (), space.dtype)
        self._takes, self._obs_dtype = Actions(env.action_space, squash), obs_rows_of(env).dtype
        self._draws = np.zeros((1, *self._takes.shape), self._takes.dtype)
        # Streams and steps, of which no draws depend, and where probabilities go.
        self._others = np.zeros(1, np.uint64), np.zeros(1, np.int64), self._draws, np.zeros(1, np.float32)
        self._state_size, self._action_masks = actor.state_size, action_masks
        self._mask_method = contract.mask_method(env) if action_masks else None

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        return contract.reset(self._env, self._form, seed)

    def act(self, obs: NDArray[Any], info: Mapping[str, Any], state: Any) -> tuple[Any, Any]:
        masks = None
        if self._action_masks:
            masks = contract.action_mask(self._id, self._mask_method, info, self._takes.size)[None]
        if state is None and self._state_size:
            state = np.zeros((1, self._state_size), np.float32)
        row = obs.astype(self._obs_dtype).reshape(1, -1)
        self._actor.act(row, *self._others, masks, state, greedy=True)
        return self._takes.to_envs(self._draws)[0], state

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        result = obs, reward, *_ = contract.step(self._env, self._form, action)
        # A finite sum of squares has no NaN and no infinity, and costs a third of isfinite().
        if obs.dtype.kind == "f" and not (math.isfinite(np.vdot(obs, obs)) or np.isfinite(obs).all()):
            raise ValueError("it gave NaN or infinity as observation")
        if not math.isfinite(reward):
            raise ValueError(f"it gave a reward of {reward}")
        return result

    def returns(
        self,
        episodes: int,
        seed: int,
        num_steps: int,
        advance: Callable[[int], object] = lambda episodes: None,
    ) -> tuple[float, ...]:
        """The returns of episodes.

        Args:
            seed: of the episodes, others than those of a run with that seed.
            num_steps: after which an episode ends at the latest.
            advance: called after each episode, with 1.

        Raises:
            CollectError: the environment cannot be stepped.
        """
        return episode_returns(self.act, self, episodes, seed, num_steps, advance, name=self._id)

    def close(self) -> None:
        """Does nothing: the environment is its owner's."""


class VectorEpisodes:
    """Episodes in a vector environment of the user's own, in which the likeliest action is always chosen.

    Args:
        spec: makes the vector environment.
        env: for its spaces.
        actor: with the policy's weights.
        squash: actions of a Box are squashed.
        action_masks: the likeliest of the actions is chosen that the environment allows.

    Attributes:
        rewards: float32 [R], of the last step.
        ended: bool [R], rows whose episodes ended with it.
        ignored: bool [R], rows in which it was no step of the agent; None in autoreset modes without such steps.

    Raises:
        CollectError: the environment cannot be built; `reset` and `step`: it cannot be stepped.
    """

    def __init__(
        self,
        spec: EnvSpec,
        env: VectorEnv[Any, Any, Any],
        actor: Actor,
        *,
        squash: bool = False,
        action_masks: bool = False,
    ) -> None:
        rows = env.num_envs
        self._plan = plan = Plan(
            spec,
            lambda: actor,
            env.single_observation_space,
            env.single_action_space,
            rows,
            1,
            squash=squash,
            action_masks=action_masks,
        )
        self._actor = actor
        self._backend = VectorEnvBackend(plan)
        self._arrays = {name: array[0] for name, array in allocate_steps(plan, 1, rows).items()}
        self._masks = np.ones((rows, plan.num_masked), np.bool_) if action_masks else None
        self._states = np.zeros((rows, actor.state_size), np.float32) if actor.state_size else None
        self._streams = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
        self.rewards, self.ended = self._arrays["rewards"], np.zeros(rows, np.bool_)

    @property
    def env(self) -> VectorEnv[Any, Any, Any]:
        """The environment that is stepped."""
        env: VectorEnv[Any, Any, Any] = self._backend.env
        return env

    @property
    def ignored(self) -> NDArray[np.bool_] | None:
        return self._backend.ignored

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        """Resets all environments, with one seed. `play` gets the rewards and ends of the first one."""
        self._backend.next_seeds[:] = 0
        self._backend.next_seeds[0] = seed
        self._backend.reset(self._arrays["obs"], np.ones(len(self.ended), np.bool_))
        self.ended[:] = False
        if self._states is not None:
            self._states[:] = 0
        return None, {}

    def act(self, *others: Any) -> tuple[Any, None]:
        """The actions of all environments for what they have shown last."""
        arrays = self._arrays
        if self._masks is not None:
            self._backend.action_masks(self._masks)
        draws, log_probs = arrays["actions"], arrays["log_probs"]
        self._actor.act(
            arrays["obs"], *self._streams, draws, log_probs, self._masks, self._states, greedy=True
        )
        return self._plan.actions.to_env(draws), None

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Steps all environments."""
        arrays, ignored = self._arrays, self._backend.ignored
        ends = terminations, truncations = arrays["terminations"], arrays["truncations"]
        self._backend.step(actions, (arrays["obs"], self.rewards, *ends, arrays["final_obs"], None), None)
        self.ended = terminations | truncations
        if self._states is not None:
            self._states[self.ended if ignored is None else self.ended | ignored] = 0
        return None, self.rewards[0], self.ended[0], False, {}

    def render(self) -> Any:
        """Draws the first environment; returns its last picture where it has started its next episode already.

        Raises:
            TrainError: it draws nothing.
        """
        if not self.ended[0] or self.ignored is not None:
            drawn: Any = self.env.render()
            try:
                self._drawn = drawn[0]
            except (TypeError, IndexError, KeyError):
                raise TrainError(
                    "render() of a vector environment should return a picture of each environment, got"
                    f" {contract.describe(drawn)}"
                ) from None
        return self._drawn

    def returns(
        self, episodes: int, seed: int, num_steps: int, advance: Callable[[int], object]
    ) -> tuple[float, ...]:
        """The returns of episodes; see `EnvEpisodes.returns`. The environments play equally many each, so that short
        ones do not count more often, and those beyond ``episodes`` are left out."""
        rows = len(self.ended)
        returns: list[list[float]] = [[] for _ in range(rows)]
        totals, lengths = np.zeros(rows), np.zeros(rows, np.int64)
        each = -(-episodes // rows)
        self.reset(seed=episode_seeds(1, seed, 1)[0])
        # Not by `play`: all environments play at once, and start their episodes themselves.
        while any(len(found) < each for found in returns):
            self.step(self.act()[0])
            lengths += 1 if self.ignored is None else ~self.ignored
            totals += np.where(lengths <= num_steps, self.rewards, 0.0)
            # One that is longer counts once, where it is cut off.
            counts = np.where(lengths > num_steps, False, self.ended | (lengths == num_steps))
            for row in np.flatnonzero(counts).tolist():
                if len(returns[row]) < each:
                    returns[row].append(float(totals[row]))
                    advance(int(sum(map(len, returns)) <= episodes))
            totals[self.ended], lengths[self.ended] = 0.0, 0
        return tuple(found[number] for number in range(each) for found in returns)[:episodes]

    def close(self) -> None:
        self._backend.close()
