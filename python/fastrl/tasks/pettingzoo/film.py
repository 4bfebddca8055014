"""Films of parallel environments of PettingZoo."""

from collections.abc import Callable, Mapping
from typing import Any

from fastrl.envs.adapters.parallel import ParallelVectorEnv
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.training.errors import TrainError
from fastrl.training.film import FPS, EnvFilms, checked_picture
from fastrl.training.play import Act, TeamEnv, team_act


def parallel_films(
    env: ParallelVectorEnv, own: Any, check: Callable[[MultiAgentPolicy, ParallelVectorEnv], None]
) -> EnvFilms:
    """Films of a parallel environment with the render mode ``rgb_array``.

    Args:
        env: one environment of autoreset mode "disabled"; closed with the films.
        own: the user's, which is in it and draws itself.
        check: refuses a policy that does not fit.

    Raises:
        TrainError: it does not draw itself.
    """
    metadata = getattr(own, "metadata", {})
    if getattr(own, "render_mode", None) != "rgb_array":
        modes = ", ".join(metadata.get("render_modes", ())) or "none"
        env.close()
        raise TrainError(
            f"{env.name} has no render mode rgb_array, so there is nothing to film; its modes: {modes}"
        )

    def make_act(state: Mapping[str, Any]) -> Act:
        policy = MultiAgentPolicy.from_state(state["policy"])
        check(policy, env)
        return team_act(policy.act)

    return EnvFilms(
        env.name,
        TeamEnv(env),
        make_act,
        lambda: checked_picture(own.render()),
        fps=float(metadata.get("render_fps") or FPS),
        close=env.close,
    )
