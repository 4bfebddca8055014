"""Registration of environments of several agents by id, beside Gymnasium's registry of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import load_env_creator

from fastrl.utils.names import suggestion

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv, Reward

MULTI_AGENT_IDS: dict[str, str] = {}
"""Entry points "module:function" by id."""
_OPTIONS: dict[str, dict[str, Any]] = {}


def register_multi(id: str, entry_point: str, /, **options: Any) -> None:  # noqa: A002 (Gymnasium's name)
    """Registers an environment of several agents for `make_multi`.

    Args:
        id: such as "fastrl/coop-highway-v0".
        entry_point: "module:name" of a function or class that is called with `num_envs` and the options.
        options: options that belong to the id.
    """
    MULTI_AGENT_IDS[id] = entry_point
    _OPTIONS[id] = options


def make_multi(
    id: str,  # noqa: A002
    num_envs: int,
    *,
    reward: Reward | None = None,
    **options: Any,
) -> MultiAgentVectorEnv:
    """Makes a vector environment of several agents by its id.

    >>> env = make_multi("fastrl/coop-highway-v0", 8, num_agents=6)
    >>> obs, alive = env.reset(seed=0)

    Args:
        id: one of `MULTI_AGENT_IDS`.
        num_envs: K.
        reward: changes the rewards of each step, see `fastrl.envs.multi_agent.Reward`; None: they are the simulator's.
        options: the simulator's own (see `fastrl.envs.traffic.coop`), and `autoreset_mode` ("same_step", the default,
            "next_step" or "disabled"). An unknown option is a TypeError that names it.

    Raises:
        ValueError: an unknown id, or an option out of range.
    """
    if id not in MULTI_AGENT_IDS:
        hint = suggestion(id, MULTI_AGENT_IDS)
        raise ValueError(f"id: expected one of the environments of several agents, got {id!r}; {hint}")
    make: Any = load_env_creator(MULTI_AGENT_IDS[id])
    env: MultiAgentVectorEnv = make(num_envs, **_OPTIONS.get(id, {}), **options)
    env.reward = reward
    return env
