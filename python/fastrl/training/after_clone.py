"""Settings of a run that starts with the weights of a clone, where nobody has set them."""

from typing import Any

from fastrl.algorithms import declarations
from fastrl.algorithms.protocol import DatasetAlgorithm
from fastrl.runs.checkpoint import CheckpointError, load_newest
from fastrl.utils.config import Values, leaves

# Environment steps in which the critic alone learns, and in which the weight of the divergence from the clone falls to
# 0; at most these shares of a run.
_WARMUP, _WARMUP_SHARE = 25_000, 0.1
_KL, _KL_SHARE = 50_000, 0.4
_KL_COEF = 0.1


def after_clone(settings: Any, table: str) -> Values:
    """Values by dotted key, for a run that starts with the weights of another: the value function, which a clone lacks,
    is learned first; the policy stays near the clone for a while; statistics of observations stay the clone's. None
    where that is no clone.

    Args:
        settings: of the run, with ``run.init_from``.
        table: of its algorithm.
    """
    run = settings.run
    if run.stages or f"{table}.init_kl_coef" not in leaves(type(settings)):
        return {}
    try:
        _, state = load_newest(run.init_from)
    except CheckpointError:
        # The error is that of the weights, when they are loaded.
        return {}
    learned_by = declarations().get(state.get("algorithm", ""))
    if learned_by is None or not issubclass(learned_by, DatasetAlgorithm):
        return {}
    steps = run.total_timesteps or max(_WARMUP / _WARMUP_SHARE, _KL / _KL_SHARE)
    values = {
        f"{table}.init_kl_coef": _KL_COEF,
        f"{table}.init_kl_steps": int(min(_KL, _KL_SHARE * steps)),
        f"{table}.freeze_obs_norm": True,
    }
    policy = state["policy"]
    # A layer that policy and value function share cannot learn for one of them alone. Older perceptrons have no kind.
    if (
        policy.get("kind", "actor_critic") == "actor_critic"
        or policy["architecture"].get("shared_trunk") is False
    ):
        values[f"{table}.critic_warmup"] = int(min(_WARMUP, _WARMUP_SHARE * steps))
    return values
