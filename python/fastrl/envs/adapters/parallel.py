"""Parallel environments of PettingZoo as one vector environment of several agents."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl.envs import contract
from fastrl.envs.adapters.parallel_copy import COUNTED, ParallelCopy, ParallelForm, Saved
from fastrl.envs.contract import ContractError
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.process_vector import ProcessVectorEnv
from fastrl.envs.worker_error import WorkerError
from fastrl.utils.files import parse_json


class ParallelVectorEnv(MultiAgentVectorEnv):
    """K copies of a parallel environment of PettingZoo, stepped in this process or in worker processes.

    Agent a of a copy is ``possible_agents[a]``; it is alive while ``agents`` has it, so agents may come and go within
    an episode. Observations are rows (`fastrl.envs.rows.ObsRows`), actions flat ones (`ActionRows`). Agents may differ
    in observations without images and in numbers of discrete actions: zeros follow shorter rows, and a choice that an
    agent does not have stands for its remainder by the agent's number of choices. An episode ends when ``agents`` is
    empty, or after ``max_episode_steps``.

    The seed of each episode follows from the seed of its copy and the number of the episode; results do not depend on
    the number of workers. A saved state has the actions of the running episodes: `load_state` repeats these.

    Args:
        make: builds one copy; for workers it pickles.
        num_envs: K.
        num_workers: processes that step the copies; 1: this one does.
        max_episode_steps: agents are truncated after so many; 0: never.
        action_masks: agents' infos or observations have ``action_mask``, the choices that are allowed next.
        autoreset_mode, name: as of `MultiAgentVectorEnv`.

    Attributes:
        form: agents and spaces of a copy.

    Raises:
        ValueError: it is no parallel environment, or has spaces that do not go together.
        TypeError: there are workers and ``make`` does not pickle.
        WorkerError: workers could not build the environment.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        *,
        num_workers: int = 1,
        max_episode_steps: int = 0,
        action_masks: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        name: str = "this environment",
    ) -> None:
        first = make()
        self.form = form = ParallelForm.of(first, name, action_masks)

        def native(mode: str) -> Any:
            options = {
                "name": name,
                "max_episode_steps": max_episode_steps,
                "mode": mode,
                "action_masks": action_masks,
            }
            if num_workers > 1:
                contract.close(first)
                return _Envs(_InWorkers(make, form, num_envs, num_workers, options), form, mode)
            made = iter([first])
            return _Envs(_InProcess(lambda: next(made, None) or make(), form, num_envs, options), form, mode)

        super().__init__(
            native,
            form.row_space,
            form.action_space,
            autoreset_mode=autoreset_mode,
            name=name,
        )
        self.obs_space, self.agents, self.groups = form.obs_space, form.agents, form.groups
        self.obs_shapes = tuple(
            tuple(rows.space.shape or ()) if rows.is_plain else (rows.size,) for rows in form.obs_rows
        )

    def agent_spaces(self, *, padded: bool) -> list[tuple[Any, Any]]:
        return super().agent_spaces(padded=True) if padded else self.form.own_spaces()


class _Copies(Protocol):
    """Copies of an environment, wherever they are stepped; their records `ParallelForm.record` [K] are read between
    calls."""

    records: NDArray[Any]

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.uint64] | None) -> None: ...
    def step(self, actions: NDArray[Any]) -> None: ...
    def load(self, states: Sequence[Saved]) -> None: ...
    def close(self) -> None: ...


class _InProcess:
    """Copies that this process steps one after the other."""

    def __init__(
        self, make: Callable[[], Any], form: ParallelForm, num_envs: int, options: Mapping[str, Any]
    ) -> None:
        self.records = np.zeros(num_envs, form.record)
        self._copies = [
            ParallelCopy(make, memory=self.records[k : k + 1], **options) for k in range(num_envs)
        ]

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.uint64] | None) -> None:
        for k in np.flatnonzero(mask):
            self._copies[k].reset(seed=None if seeds is None else int(seeds[k]))

    def step(self, actions: NDArray[Any]) -> None:
        for copy, own in zip(self._copies, actions, strict=True):
            copy.step(own)

    def load(self, states: Sequence[Saved]) -> None:
        for copy, state in zip(self._copies, states, strict=True):
            copy.load(state)

    def close(self) -> None:
        for copy in self._copies:
            copy.close()


class _InWorkers:
    """Copies that worker processes step together."""

    def __init__(
        self,
        make: Callable[[], Any],
        form: ParallelForm,
        num_envs: int,
        num_workers: int,
        options: Mapping[str, Any],
    ) -> None:
        self._envs = ProcessVectorEnv(
            functools.partial(ParallelCopy, make, **options),
            num_envs,
            min(num_workers, num_envs),
            autoreset_mode=AutoresetMode.DISABLED,
            start_method="forkserver",
        )
        self.records = self._envs.observations.view(form.record)[:, 0]
        # Rewards and flags of Gymnasium; those of the agents are in the records.
        self._unused = (np.empty(num_envs), np.empty(num_envs, np.bool_), np.empty(num_envs, np.bool_))

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.uint64] | None) -> None:
        chosen = None if seeds is None else seeds.tolist()
        with _own_errors():
            self._envs.reset_into(self._envs.observations, seed=chosen, reset_mask=mask)

    def step(self, actions: NDArray[Any]) -> None:
        with _own_errors():
            self._envs.step_into(actions, self._envs.observations, *self._unused)

    def load(self, states: Sequence[Saved]) -> None:
        self.reset(np.ones(len(states), np.bool_), None)
        with _own_errors():
            self._envs.set_attr("saved", list(states))
        self._envs.observations[:] = self._envs.get_attr("row")

    def close(self) -> None:
        self._envs.close()


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """Raises what an environment does wrong as if it had been stepped in this process."""
    try:
        yield
    except WorkerError as error:
        if error.deaths[0].refused:
            raise ContractError(error.deaths[0].cause) from None
        raise


class _Envs:
    """Copies of an environment behind the interface of a compiled simulator (`fastrl._native._rust.NativeVec`)."""

    def __init__(self, copies: _Copies, form: ParallelForm, mode: str) -> None:
        self.copies, self._mode = copies, mode
        self.num_envs, self.num_agents = len(copies.records), len(form.agents)
        (self.obs_dim,), self.num_masked = form.row_space.shape, form.num_masked
        # Of the running episode of each copy, what `save_state` needs, also after the death of a worker.
        self._facts: dict[str, NDArray[Any]] = {}
        self._actions: list[list[bytes]] = [[] for _ in range(self.num_envs)]
        self._keep_facts()
        space = form.action_space
        self._action_shape, self._action_dtype = (
            (self.num_envs, self.num_agents, *(space.shape or ())),
            np.dtype(space.dtype),
        )

    def _as_copies(self, flat: NDArray[Any]) -> NDArray[Any]:
        """A view [K, A, ...] of what is [K * A, ...]."""
        return flat.reshape(self.num_envs, self.num_agents, *flat.shape[1:])

    def reset(
        self,
        obs: NDArray[Any],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        if reset_mask is not None and (reset_mask.shape != (self.num_envs,) or not reset_mask.any()):
            raise ValueError(
                f"reset_mask: expected bools of shape ({self.num_envs},), at least one of them True"
            )
        mask = np.ones(self.num_envs, np.bool_) if reset_mask is None else reset_mask
        self.copies.reset(mask, None if seeds is None else seeds & np.uint64(2**63 - 1))
        for k in np.flatnonzero(mask):
            self._actions[k] = []
        self._keep_facts()
        self._write(obs, alive, mask)

    def _keep_facts(self) -> None:
        records = self.copies.records
        self._facts = {name: records[name].copy() for name in ("seed", "number", "finished", "last")}

    def observe(self, obs: NDArray[Any], alive: NDArray[np.bool_] | None = None) -> None:
        self._write(obs, alive, np.ones(self.num_envs, np.bool_))

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self._as_copies(out)[...] = self.copies.records["masks"]

    def _write(self, obs: NDArray[Any], alive: NDArray[np.bool_] | None, mask: NDArray[np.bool_]) -> None:
        records = self.copies.records
        self._as_copies(obs)[mask] = records["obs"][mask]
        if alive is not None:
            self._as_copies(alive)[mask] = records["alive"][mask]

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[Any],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[Any] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        self._check(actions)
        own = actions.reshape(self._action_shape)
        self.copies.step(own)
        records = self.copies.records
        for k, steps in enumerate(records["steps"].tolist()):
            if steps:
                self._actions[k].append(own[k].tobytes())
            else:
                self._actions[k] = []
        self._keep_facts()
        given = {"obs": obs, "rewards": rewards, "terminations": terminations, "truncations": truncations}
        for name, out in given.items():
            self._as_copies(out)[...] = records[name]
        if alive is not None:
            self._as_copies(alive)[...] = records["alive"]
        if final_obs is not None and (ended := records["ended"]).any():
            self._as_copies(final_obs)[ended] = records["final_obs"][ended]

    def _check(self, actions: NDArray[Any]) -> None:
        shape = (self.num_envs * self.num_agents, *self._action_shape[2:])
        if actions.shape != shape:
            raise ValueError(f"actions: expected shape {shape}, got {actions.shape}")
        if actions.dtype != self._action_dtype:
            raise TypeError(f"actions: expected {self._action_dtype}, got {actions.dtype}")
        to_reset = self._facts["number"] < 0
        if self._mode == "disabled":
            to_reset = to_reset | ~self.copies.records["alive"].any(1)
        if to_reset.any():
            raise gymnasium.error.ResetNeeded("an environment has to be reset first: call reset()")

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Facts of the episodes that have ended, see `MultiAgentVectorEnv.episodes`."""
        counted = dict(zip(COUNTED, self._facts["last"].T.copy(), strict=True))
        return {"finished": self._facts["finished"].copy(), **counted}

    def save_state(self, index: int | None = None) -> bytes:
        _refuse_parts(index)
        facts = [
            {
                **{name: int(self._facts[name][k]) for name in ("seed", "number", "finished")},
                "steps": len(actions),
                "last": dict(zip(COUNTED, map(str, self._facts["last"][k]), strict=True)),
            }
            for k, actions in enumerate(self._actions)
        ]
        head = json.dumps(facts).encode()
        return len(head).to_bytes(8, "little") + head + b"".join(map(b"".join, self._actions))

    def load_state(self, state: bytes, index: int | None = None) -> None:
        _refuse_parts(index)
        size = int.from_bytes(state[:8], "little")
        step = int(np.prod(self._action_shape[1:])) * self._action_dtype.itemsize
        try:
            facts = parse_json(state[8 : 8 + size], list)
            sizes = [step * each["steps"] for each in facts]
            if len(sizes) != self.num_envs or len(state) != 8 + size + sum(sizes):
                raise ValueError("another size")
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                "this environment state cannot be restored: it is damaged, or of other environments"
            ) from None
        ends = 8 + size + np.cumsum(sizes)
        actions = [state[end - own : end] for own, end in zip(sizes, ends, strict=True)]
        self.copies.load(list(zip(facts, actions, strict=True)))
        for k, (own, steps) in enumerate(zip(actions, self.copies.records["steps"], strict=True)):
            self._actions[k] = [own[i * step : (i + 1) * step] for i in range(int(steps))]
        self._keep_facts()

    def branch(self, state: bytes, num_envs: int, *, seed: Any = None) -> Self:
        raise NotImplementedError("only compiled environments can be branched")

    def close(self) -> None:
        self.copies.close()


def _refuse_parts(index: int | None) -> None:
    if index is not None:
        raise NotImplementedError(
            "copies of a parallel environment are saved and restored together: leave out index"
        )
