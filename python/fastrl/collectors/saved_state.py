"""The state of a collector as a checkpoint holds it: nested dicts with text as keys, of bytes and JSON values."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fastrl.collectors.protocol import Plan
from fastrl.collectors.running import RunningEpisode, RunningEpisodes, resumed


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """Packs what `Collector.state_dict` gave."""
    numbers, running = state["numbers"], state["running"]
    episodes = list(running.values())
    return {
        "version": state["version"],
        "env_indices": _int64(numbers),
        "numbers": _int64(numbers.values()),
        "running": {
            "env_indices": _int64(running),
            "action_bytes": _int64(len(each.actions) for each in episodes),
            "obs_bytes": _int64(len(each.obs) for each in episodes),
            "state_bytes": _int64(len(each.state) for each in episodes),
            "difficulty_bytes": _int64(len(each.difficulty) for each in episodes),
            "lives": _int64(each.lives for each in episodes),
            "actions": b"".join(each.actions for each in episodes),
            "obs": b"".join(each.obs for each in episodes),
            "states": b"".join(each.state for each in episodes),
            "difficulties": b"".join(each.difficulty for each in episodes),
        },
    }


def unpacked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `packed`.

    Raises:
        ValueError, KeyError: it is damaged.
    """
    kept, running = saved["running"], {}
    left = [memoryview(kept[name]) for name in ("actions", "obs", "states", "difficulties")]
    lengths_of = ("action_bytes", "obs_bytes", "state_bytes", "difficulty_bytes")
    columns = (_ints(kept[name]) for name in ("env_indices", "lives", *lengths_of))
    for env_index, lives, *lengths in zip(*columns, strict=True):
        actions, obs, state, difficulty = (
            bytes(each[:length]) for each, length in zip(left, lengths, strict=True)
        )
        running[env_index] = RunningEpisode(actions, obs, state, lives, difficulty)
        left = [each[length:] for each, length in zip(left, lengths, strict=True)]
    numbers = dict(zip(_ints(saved["env_indices"]), _ints(saved["numbers"]), strict=True))
    return {"version": saved["version"], "numbers": numbers, "running": running}


def check_saved(plan: Plan, saved: Mapping[str, Any]) -> None:
    """Refuses a packed state that no collector of the plan can resume from.

    Raises:
        ValueError, KeyError
    """
    state = unpacked(saved)
    if type(state["version"]) is not int:
        raise ValueError(f"version should be a whole number, got {state['version']!r}")
    if plan.unit == "steps":
        env_indices = plan.env_indices
        RunningEpisodes(plan, env_indices).load(resumed(state, env_indices), state["running"])


def num_running(saved: Mapping[str, Any]) -> int:
    """Episodes that run in a packed state."""
    return len(_ints(saved["running"]["env_indices"]))


def _int64(values: Iterable[int]) -> bytes:
    return np.fromiter(values, np.int64).tobytes()


def _ints(data: bytes) -> list[int]:
    return np.frombuffer(data, np.int64).tolist()
