"""Single environments: building one, its longest episode, episodes without exploration to score a policy."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from fastrl.collectors.failures import last_line, own_traceback
from fastrl.collectors.protocol import CollectError
from fastrl.envs import contract
from fastrl.envs.rows import obs_rows_of
from fastrl.envs.spec import EnvSpec
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import Actor
from fastrl.training.errors import TrainError

# Limit of an episode's steps if neither the environment nor the settings have one.
EPISODE_STEPS = 1000


def build_env(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """Builds one environment in this process.

    Raises:
        TrainError: there is no environment of that name, or its factory does not take the options.
        CollectError: it raised while it was built; the error has the traceback of its own code.
    """
    try:
        return spec.make()
    except (Exception, SystemExit) as error:
        trace = own_traceback(error)
        reason = str(error).removeprefix("env: ") or type(error).__name__
        if trace:
            reason = f"it could not be built: {last_line(trace)}"
        options = f" with {dict(spec.options)}" if spec.options and isinstance(error, TypeError) else ""
        line = f"--env {spec.id}{options}: {reason.splitlines()[0]}"
        if trace:
            raise CollectError(line, trace) from error
        raise TrainError(line) from error


def episode_steps(env: gymnasium.Env[Any, Any], limit: int = 0) -> int:
    """The steps after which an episode of an environment ends at the latest.

    Args:
        limit: of the settings; 0: the environment's own, else `EPISODE_STEPS`.
    """
    own = None if env.spec is None else env.spec.max_episode_steps
    return limit or own or EPISODE_STEPS


def play_episodes(
    env: gymnasium.Env[Any, Any],
    env_id: str,
    actor: Actor,
    episodes: int,
    seed: int,
    num_steps: int,
    advance: Callable[[int], object] = lambda episodes: None,
    *,
    squash: bool = False,
) -> tuple[float, ...]:
    """The returns of episodes in which the likeliest action is always chosen.

    Args:
        env: in rows (see `fastrl.envs.rows.in_rows`).
        env_id: of the environment, for errors.
        actor: with the policy's weights.
        seed: of the episodes, others than those of a run with that seed.
        num_steps: after which an episode ends at the latest.
        advance: called after each episode, with 1.
        squash: whether actions of a Box are squashed.

    Raises:
        CollectError: the environment cannot be stepped.
    """
    takes, obs_dtype = Actions(env.action_space, squash), obs_rows_of(env).dtype
    draws = np.zeros((1, *takes.shape), takes.dtype)
    log_probs = np.zeros(1, np.float32)
    nothing = np.zeros(1, np.uint64), np.zeros(1, np.int64)
    form = contract.obs_form(env_id, env.observation_space.shape or (), env.observation_space.dtype)
    returns = []
    for number in np.random.SeedSequence([seed, 1]).generate_state(episodes):
        episode_seed, total, step = int(number) >> 1, 0.0, 0
        try:
            obs, _ = contract.reset(env, form, episode_seed)
            for _ in range(num_steps):
                step += 1
                actor.act(obs.astype(obs_dtype).reshape(1, -1), *nothing, draws, log_probs, greedy=True)
                [action] = takes.to_envs(draws)
                obs, reward, terminated, truncated, _ = contract.step(env, form, action)
                total += float(reward)
                if not (np.isfinite(total) and np.isfinite(obs).all()):
                    what = (
                        f"a reward of {reward}"
                        if np.isfinite(obs).all()
                        else "NaN or infinity as observation"
                    )
                    raise ValueError(f"it gave {what}")
                if terminated or truncated:
                    break
        except contract.ContractError as error:
            raise CollectError(str(error)) from None
        except (Exception, SystemExit) as error:  # whatever an environment raises
            trace = own_traceback(error)
            cause = last_line(trace) if trace else str(error)
            where = f"at step {step} of the episode that reset(seed={episode_seed}) started"
            raise CollectError(f"{env_id} failed {where}: {cause}", trace) from error
        returns.append(total)
        advance(1)
    return tuple(returns)
