"""fastrl trains reinforcement-learning agents as fast as one machine allows."""

from typing import TYPE_CHECKING, Any

from fastrl import envs  # registers the environments with Gymnasium
from fastrl._native._rust import __version__

if TYPE_CHECKING:
    from fastrl.training.policy import load_policy

__all__ = ["__version__", "envs", "load_policy"]


def __getattr__(name: str) -> Any:
    # Only a policy needs torch, which takes seconds to import.
    if name == "load_policy":
        from fastrl.training.policy import load_policy

        return load_policy
    raise AttributeError(f"module 'fastrl' has no attribute {name!r}")
