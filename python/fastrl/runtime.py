"""Exported policies where no PyTorch is: this module needs numpy and onnxruntime alone.

::

    policy = fastrl.runtime.load("policy.onnx")         # written by `fastrl export`
    policy.reset()                                      # an episode starts
    action = policy.act(obs)                            # one observation, or a batch of them
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
"""Version of the metadata that exports have; `load` refuses others."""

KEY = "fastrl"
"""Key of the metadata in the file, JSON."""

_TEXT_SIZE = 64
# Numbers of the largest array that a file may ask for.
_MOST_NUMBERS = 1 << 26

# Noise beside which values do not count.
_BEST = 1e30


class RuntimePolicyError(ValueError):
    """A file that is no exported policy, or observations, masks or a state that do not fit it; one line."""


def load(path: str | Path, *, seed: int = 0, threads: int = 1) -> Policy:
    """The policy of a file that ``fastrl export`` has written.

    Args:
        path: of the file, .onnx.
        seed: of the draws of ``act(obs, deterministic=False)``.
        threads: of onnxruntime for one call.

    Raises:
        RuntimePolicyError: there is no such file, or it is no exported policy.
        ImportError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise ImportError("exported policies need onnxruntime: pip install onnxruntime") from None
    if not Path(path).is_file():
        raise RuntimePolicyError(f"{path}: there is no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Masks and noise have defaults, of which onnxruntime warns.
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RuntimePolicyError(f"{path} cannot be used: {str(error).splitlines()[0][:300]}") from None
    text = session.get_modelmeta().custom_metadata_map.get(KEY)
    try:
        metadata = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise RuntimePolicyError(f"{path} is damaged: its metadata are not JSON") from None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise RuntimePolicyError(
            f"{path} is no policy of `fastrl export` in format {FORMAT}: export it with this version of fastrl"
        )
    if not _is_sound(metadata, session):
        raise RuntimePolicyError(f"{path} is damaged: its metadata do not describe its graph")
    try:
        return Policy(session, metadata, seed)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        # The share of random actions, of files of older versions from settings of any kind.
        raise RuntimePolicyError(
            f"{path} is damaged: its metadata lack what its actions are drawn by"
        ) from None


def _is_sound(metadata: dict[str, Any], session: Any) -> bool:
    """True for metadata as exports have, of the inputs and outputs of the graph."""

    def is_shape(sizes: Any) -> bool:
        is_list = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
        return is_list and math.prod(sizes) <= _MOST_NUMBERS

    def are(kind: Any, values: Any) -> bool:
        return isinstance(values, list) and all(isinstance(value, kind) for value in values)

    def are_arrays(values: Any) -> bool:
        return are(dict, values) and all(
            isinstance(each.get("name"), str)
            and is_shape(each.get("shape"))
            and isinstance(each.get("dtype"), str)
            and re.fullmatch("bool|u?int(8|16|32|64)|float(16|32|64)", each["dtype"])
            for each in values
        )

    names = ("obs", "states", "agents", "actions", "noise", "action_masks")
    if not metadata.keys() >= set(names):
        return False
    obs, states, agents, actions, noise, masks = (metadata[name] for name in names)
    if not (are_arrays(obs) and obs and are_arrays(states) and are(str, actions) and type(masks) is int):
        return False
    if not all(isinstance(each.get("kind"), str) and are(str | int, each.get("path")) for each in obs):
        return False
    if not actions or not (agents is None or (are(str | int, agents) and len(agents) == len(actions))):
        return False
    if noise is not None and not (
        isinstance(noise, dict) and is_shape(noise.get("shape")) and "kind" in noise
    ):
        return False
    if masks and agents is not None and (noise is None or noise["shape"] != [len(agents), masks]):
        return False
    inputs, outputs = ({each.name for each in ends} for ends in (session.get_inputs(), session.get_outputs()))
    afterwards = {f"next_{each['name']}" for each in states}
    return inputs >= {each["name"] for each in obs + states} and outputs >= {*actions, "outputs", *afterwards}


class Policy:
    """Chooses actions for observations. Made by `load`.

    Args:
        session: of onnxruntime.
        metadata: of the file.
        seed: of draws.

    Attributes:
        metadata: spaces, inputs, states, algorithm, environment and settings of the run, JSON-able.
    """

    def __init__(self, session: Any, metadata: dict[str, Any], seed: int = 0) -> None:
        self.metadata = metadata
        self._session = session
        self._generator = np.random.default_rng(seed)
        self._epsilon = _epsilon_of(metadata)
        self._leaves: list[dict[str, Any]] = metadata["obs"]
        self._states: list[dict[str, Any]] = metadata["states"]
        self._agents: list[str] | None = metadata["agents"]
        self._actions: list[str] = metadata["actions"]
        self._all_outputs = [*self._actions, "outputs", *(f"next_{each['name']}" for each in self._states)]
        self._chosen_outputs = [name for name in self._all_outputs if name != "outputs"]
        self._state: tuple[NDArray[Any], ...] | None = None
        leaf = self._leaves[0]
        self._is_simple = (
            len(self._leaves) == 1
            and not self._states
            and self._agents is None
            and not leaf["path"]
            and leaf["dtype"] == "float32"
            and leaf["kind"] == "vector"
        )
        self._one: _OneObservation | None = None

    def reset(self) -> None:
        """Starts new episodes: `act` forgets the steps before."""
        self._state = None

    def act(self, obs: Any, deterministic: bool = True, *, action_masks: Any = None) -> Any:
        """The action for an observation, or the actions for a batch of them; keeps the memory until `reset`.

        Args:
            obs: in the environment's own form; a batch has a further first axis. Of policies that stack frames the
                newest frame alone. Of agents with names a dict by agent.
            deterministic: the likeliest action; otherwise one is drawn, of values of actions (DQN) any allowed one
                with the run's last epsilon, else the best.
            action_masks: bool [N, n], or [n] for one observation: which may be chosen; None: all. Of agents with names
                a dict by agent, of other ones [N, A, n].

        Raises:
            RuntimePolicyError: they do not fit the policy.
        """
        if self._one is not None and deterministic and action_masks is None and self._one.takes(obs):
            return self._one.act()
        actions, state = self.predict(obs, self._state, deterministic, action_masks=action_masks)
        self._state = state
        return actions

    def predict(
        self,
        obs: Any,
        state: tuple[NDArray[Any], ...] | None = None,
        deterministic: bool = True,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, tuple[NDArray[Any], ...] | None]:
        """Chooses actions as `act` does, with the memory as an argument and a result.

        Args:
            state: what the call before returned; None where episodes start. With many agents its arrays are
                [N, A, ...]: set the rows of an agent whose episode has ended to zeros. The call does so itself for
                agents with names, where one is not among the observations.

        Returns:
            The action, and the state for the next call; None without memory.
        """
        feed, is_single = self._feed(obs, state, deterministic, action_masks)
        found = self._run(self._chosen_outputs, feed)
        count = len(next(iter(feed.values())))
        if any(np.shape(array)[:1] != (count,) for array in found):
            raise RuntimePolicyError(
                "the file is damaged: its graph does not give a result for each observation"
            )
        if is_single and self._is_simple and self._one is None:
            self._one = _OneObservation(self._session, next(iter(feed.values())), found[0])
        actions, states = found[: len(self._actions)], found[len(self._actions) :]
        absent = [number for number, agent in enumerate(self._agents or ()) if agent not in obs]
        for array in states:
            array[:, absent] = 0
        return self._result(obs, actions, is_single), tuple(states) or None

    def outputs(
        self,
        obs: Any,
        state: tuple[NDArray[Any], ...] | None = None,
        *,
        action_masks: Any = None,
    ) -> NDArray[np.float32]:
        """Outputs of the network for one observation or a batch, float32 [N, ...]: masked logits, means or values."""
        feed, _ = self._feed(obs, state, True, action_masks)
        found: NDArray[np.float32] = self._run(["outputs"], feed)[0]
        return found

    def feed(self, obs: Any, state: Any = None, *, action_masks: Any = None) -> dict[str, NDArray[Any]]:
        """The inputs of the graph for a greedy action, by name: what `run` takes, and what calibrations need."""
        return self._feed(obs, state, True, action_masks)[0]

    def run(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The actions of the graph for its inputs, and the state for the next call."""
        return self._run(self._chosen_outputs, feed)

    def _run(self, names: list[str], feed: dict[str, Any]) -> list[NDArray[Any]]:
        try:
            found: list[NDArray[Any]] = self._session.run(names, feed)
        except Exception as error:
            line = " ".join(str(error).split())[:300]
            raise RuntimePolicyError(f"the file is damaged, its graph cannot compute: {line}") from None
        return found

    def _feed(
        self, obs: Any, state: Any, deterministic: bool, action_masks: Any
    ) -> tuple[dict[str, Any], bool]:
        feed: dict[str, Any] = {}
        count = 0
        is_single = False
        for index, leaf in enumerate(self._leaves):
            array, single = _leaf_array(leaf, obs, absent=self._agents is not None)
            if array is None:
                continue
            if count and (single != is_single or len(array) != count):
                raise RuntimePolicyError(
                    f"{leaf['name']}: expected {count} observations as of {self._leaves[0]['name']}, got {len(array)}"
                )
            if not index or not count:
                count, is_single = len(array), single
            feed[leaf["name"]] = array
        if not count:
            raise RuntimePolicyError("obs: expected an observation of at least one agent")
        for leaf in self._leaves[: 0 if self._agents is None else None]:
            # Agents that are not there; their actions are left out.
            feed.setdefault(leaf["name"], np.zeros((count, *leaf["shape"]), leaf["dtype"]))
        if self._states:
            feed |= self._state_arrays(state, count)
        elif state is not None:
            raise RuntimePolicyError("state: this policy has no memory, expected None")
        if action_masks is not None:
            feed["action_masks"] = self._mask_array(action_masks, count)
        if not deterministic and (noise := self.metadata["noise"]) is not None:
            shape = (count, *noise["shape"])
            if self._epsilon is not None:
                allowed = np.broadcast_to(feed.get("action_masks", np.True_), shape)
                draws = self._random_actions(allowed, self._epsilon)
            elif noise["kind"] == "gumbel":
                draws = self._generator.gumbel(size=shape)
            else:
                draws = self._generator.standard_normal(shape)
            feed["noise"] = draws.astype(np.float32)
        return feed, is_single

    def _random_actions(self, allowed: NDArray[np.bool_], epsilon: float) -> NDArray[np.float64]:
        """Noise on values that makes any allowed action the best, in a share epsilon of the rows."""
        explores = np.flatnonzero(self._generator.random(len(allowed)) < epsilon)
        drawn = np.where(allowed, self._generator.random(allowed.shape), -1).argmax(1)
        noise = np.zeros(allowed.shape)
        noise[explores, drawn[explores]] = _BEST
        return noise

    def _state_arrays(self, state: Any, count: int) -> dict[str, NDArray[Any]]:
        if state is None:
            return {each["name"]: np.zeros((count, *each["shape"]), each["dtype"]) for each in self._states}
        if not isinstance(state, tuple) or len(state) != len(self._states):
            raise RuntimePolicyError("state: expected what predict() returned for the same episodes, or None")
        for array, each in zip(state, self._states, strict=True):
            if array.shape != (count, *each["shape"]):
                raise RuntimePolicyError(
                    f"state: expected {[count, *each['shape']]} for so many episodes, got {list(array.shape)}; reset()"
                    " starts new ones"
                )
        return {each["name"]: array for array, each in zip(state, self._states, strict=True)}

    def _mask_array(self, masks: Any, count: int) -> NDArray[np.bool_]:
        size = self.metadata["action_masks"]
        if not size:
            raise RuntimePolicyError("action_masks: this policy takes none, expected None")
        # Of many agents each has a mask, as it has noise.
        shape = (count, *(self.metadata["noise"] or {"shape": [size]})["shape"])
        if self._agents is not None:
            return self._masks_by_agent(masks, shape)
        array = np.asarray(masks)
        array = array[None] if array.ndim == len(shape) - 1 else array
        if array.dtype != np.bool_ or array.shape != shape:
            raise RuntimePolicyError(
                f"action_masks: expected bool {list(shape)}, got {array.dtype} {list(array.shape)}"
            )
        return array

    def _masks_by_agent(self, masks: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Masks bool [N, A, size], from those of agents by name, which may be narrower: further choices are not
        allowed. Of an agent without a mask all are."""
        assert self._agents is not None
        if not isinstance(masks, Mapping) or not masks.keys() <= set(self._agents):
            raise RuntimePolicyError(
                f"action_masks: expected a dict of masks by agent ({', '.join(self._agents)}), got {str(masks)[:100]}"
            )
        found, size = np.ones(shape, np.bool_), shape[-1]
        for agent, given in masks.items():
            array = np.atleast_2d(np.asarray(given))
            if array.dtype != np.bool_ or len(array) != shape[0] or array.shape[1] > size:
                raise RuntimePolicyError(
                    f"action_masks[{agent!r}]: expected bool [{shape[0]}, n] with n up to {size}, got {array.dtype}"
                    f" {list(array.shape)}"
                )
            padding = ((0, 0), (0, size - array.shape[1]))
            found[:, self._agents.index(agent)] = np.pad(array, padding)
        return found

    def _result(self, obs: Any, actions: list[NDArray[Any]], is_single: bool) -> Any:
        if self._agents is None:
            return actions[0][0] if is_single else actions[0]
        return {
            agent: action[0] if is_single else action
            for agent, action in zip(self._agents, actions, strict=True)
            if agent in obs
        }


def _epsilon_of(metadata: Mapping[str, Any]) -> float | None:
    """The share of random actions of a policy that gives values of actions; None: it gives something else."""
    noise = metadata["noise"] or {}
    if "epsilon" in noise:
        return float(noise["epsilon"])
    if metadata.get("algorithm") != "dqn":
        return None
    # Files of older versions have the settings alone.
    settings = metadata["settings"]["dqn"]
    progress = min(metadata["steps"] / settings["epsilon_steps"], 1.0) if settings["epsilon_steps"] else 1.0
    epsilon: float = settings["epsilon"] + (settings["final_epsilon"] - settings["epsilon"]) * progress
    return 0.0 if settings["noisy"] else epsilon


class _OneObservation:
    """The greedy action for one observation, with arrays that are kept: what onnxruntime does for each call takes
    longer than a small network.

    Args:
        session: of a policy that observes one array of numbers and has no memory.
        obs: [1, ...], an observation.
        action: [1, ...], for it.
    """

    def __init__(self, session: Any, obs: NDArray[np.float32], action: NDArray[Any]) -> None:
        self._obs, self._action = obs.copy(), action.copy()
        self._flat, self._shape = self._obs.reshape(-1), obs.shape[1:]
        self._is_index = action.ndim == 1
        self._binding = session.io_binding()
        name = session.get_inputs()[0].name
        self._binding.bind_input(name, "cpu", 0, np.float32, obs.shape, self._obs.ctypes.data)
        name, place = session.get_outputs()[0].name, self._action.ctypes.data
        self._binding.bind_output(name, "cpu", 0, action.dtype, action.shape, place)
        self._run = session.run_with_iobinding

    def takes(self, obs: Any) -> bool:
        """Takes an observation; False if it is a batch, or not as expected."""
        if getattr(obs, "shape", None) != self._shape or obs.dtype.kind not in "fiub":
            return False
        self._obs[0] = obs
        # The square of a number that is not finite is not finite.
        return math.isfinite(self._flat.dot(self._flat))

    def act(self) -> Any:
        """The action for it."""
        self._run(self._binding)
        return self._action[0] if self._is_index else self._action[0].copy()


def _leaf_array(leaf: Mapping[str, Any], obs: Any, *, absent: bool) -> tuple[NDArray[Any] | None, bool]:
    """A leaf of the observations, [N, ...], and whether there was one observation without the first axis."""
    path, shape = leaf["path"], leaf["shape"]
    try:
        for index, key in enumerate(path):
            if absent and not index and key not in obs:
                return None, False
            obs = obs[key]
        array = _texts(obs) if leaf["kind"] == "text" else np.asarray(obs, leaf["dtype"])
    except (TypeError, KeyError, IndexError, ValueError):
        raise RuntimePolicyError(
            f"{leaf['name']}: expected {leaf['dtype']} {shape}, got {type(obs).__name__}"
        ) from None
    single = array.ndim == len(shape)
    if array.shape[0 if single else 1 :] != tuple(shape) or not array.size:
        raise RuntimePolicyError(
            f"{leaf['name']}: expected shape {shape} for one observation or {['N', *shape]} for N, got"
            f" {list(array.shape)}"
        )
    if leaf["dtype"] == "float32" and not np.isfinite(array).all():
        raise RuntimePolicyError(f"{leaf['name']}: expected finite numbers, got NaN or infinity")
    return (array[None] if single else array), single


def _texts(obs: Any) -> NDArray[np.float32]:
    """A text, or a batch of them, as numbers: each of its words sets one of them to 1."""
    if not isinstance(obs, str):
        return np.stack([_texts(str(text)) for text in obs])
    vector = np.zeros(_TEXT_SIZE, np.float32)
    for word in re.findall(r"\w+", obs.lower()):
        vector[zlib.crc32(word.encode()) % _TEXT_SIZE] = 1
    return vector
