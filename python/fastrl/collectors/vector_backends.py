"""Vector backends of `fastrl.collectors.synchronous`: `ProcessVectorEnv`, or a compiled vector environment."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs import registration
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from fastrl._native._rust import Mlp
from fastrl.collectors.protocol import CollectError, Plan, expect_spaces
from fastrl.collectors.resources import memory_of
from fastrl.collectors.running import RunningEpisode
from fastrl.envs.rows import ObsRows
from fastrl.envs.serial_envs import NO_RESET, NO_SEED, StepArrays
from fastrl.envs.vector import NativeVectorEnv, RolloutEnd

if TYPE_CHECKING:
    from fastrl.envs.multi_agent import MultiAgentVectorEnv


class VectorBackend(ABC):
    """R environments that are stepped together.

    Attributes:
        next_seeds: int64 [R], the seed of each row's next reset, or `NO_RESET`: the row does not start another episode
            by itself.
        ended_info: float64 [R, K], of the rows whose episodes the last step ended, the values of the plan's
            ``episode_info``.
        ignored: bool [R], rows whose last step only started an episode, as in the autoreset mode "next_step"; None: no
            step does.
        num_workers: processes that step environments; 0: this one alone does.
        needs_check: environments may give rewards and observations that are NaN or infinite.
        alive: bool [R, A], agents that act next; None: environments are a single agent's.
        over: bool [R], rows whose episodes the last step ended; of environments of many agents.
        has_rollouts: its `JointBackend.rollout` can be called.
    """

    alive: NDArray[np.bool_] | None = None
    over: NDArray[np.bool_]
    ignored: NDArray[np.bool_] | None = None
    next_seeds: NDArray[np.int64]
    ended_info: NDArray[np.float64]
    num_workers = 0
    needs_check = False
    has_rollouts = False

    @abstractmethod
    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        """Starts episodes in the rows of a mask, bool [R], and writes these rows of ``obs`` [R, D].

        Raises:
            WorkerError: workers have died; call `restart`, then reset these rows again.
        """

    @abstractmethod
    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        """Steps the rows of a mask, or all; returns whether an episode has ended, or may have. Where one ends, its last
        observation goes to ``final_obs`` and the first one of the next to ``obs``, unless the row's seed is `NO_RESET`.
        Where it is truncated and not terminated, its last mask goes to ``final_masks``, for plans with them.

        Args:
            actions: of the environment, [R, ...].
            arrays: are written.

        Raises:
            WorkerError: workers have died; the other rows have stepped.
        """

    @abstractmethod
    def action_masks(self, out: NDArray[np.bool_]) -> None:
        """Writes the allowed actions of every row, bool [R, M], or of every agent, [R, A, M]. Only for plans with
        masks."""

    def start_replay(self, episodes: Sequence[RunningEpisode]) -> None:
        """Called before the running episodes of a loaded state, one of each row, are replayed."""
        return

    def end_replay(self) -> None:
        """Called when they have been replayed."""
        return

    def restart(self) -> None:
        """Starts dead workers again.

        Raises:
            WorkerError: one has died again.
        """
        return

    def seconds(self) -> tuple[float, float]:
        """Seconds that workers have spent in environments and waiting, summed over workers."""
        return 0.0, 0.0

    def memory(self) -> tuple[float, ...]:
        """MiB of each worker."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Closes the environments that it has built."""


class ProcessBackend(VectorBackend):
    """Environments in worker processes. The end of an episode needs no extra barrier: workers have the next seed."""

    needs_check = True

    def __init__(
        self,
        plan: Plan,
        n_workers: int,
        *,
        task_timeout: float | None,
        start_method: Literal["spawn", "forkserver"],
    ) -> None:
        from fastrl.envs.process_vector import ProcessVectorEnv

        self._env = ProcessVectorEnv(
            plan.env,
            plan.num_envs,
            n_workers,
            autoreset_mode=AutoresetMode.SAME_STEP,
            max_episode_steps=plan.num_steps if plan.unit == "episodes" else None,
            start_method=start_method,
            step_timeout=task_timeout,
            action_masks=plan.action_masks,
            final_masks=plan.final_masks,
            episode_info=plan.episode_info,
        )
        self.num_workers = n_workers
        self.next_seeds, self.ended_info = self._env.next_seeds, self._env.ended_info
        self._lost = np.zeros((n_workers, 2))
        try:
            expect_spaces(plan, self._env.single_observation_space, self._env.single_action_space)
        except BaseException:
            self.close()
            raise

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._env.reset_into(obs, seed=np.maximum(self.next_seeds, NO_SEED), reset_mask=mask)

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        obs, rewards, terminations, truncations, final_obs, final_masks = arrays
        self._env.step_into(
            actions, obs, rewards, terminations, truncations, final_obs, mask=mask, final_masks=final_masks
        )
        return bool((terminations | truncations).any())

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self._env.action_masks(out)

    def restart(self) -> None:
        for death in self._env.deaths:
            # A restarted worker counts from zero.
            self._lost[death.worker] += self._env.worker_seconds[death.worker]
        self._env.restart()

    def seconds(self) -> tuple[float, float]:
        spent, waited = (self._env.worker_seconds + self._lost).sum(axis=0)
        return float(spent), float(waited)

    def memory(self) -> tuple[float, ...]:
        return memory_of(self._env.pids)

    def close(self) -> None:
        self._env.close()


class JointBackend(VectorBackend):
    """Base of backends that step all rows together: those without an episode are stepped, too, and ignored."""

    _env: NativeVectorEnv | MultiAgentVectorEnv

    def __init__(self, plan: Plan) -> None:
        rows = plan.num_envs
        self.has_rollouts = self._env.compiled_rollout is not None
        self._keys = plan.episode_info
        self.ended_info = np.full((rows, len(self._keys)), np.nan)
        self._limit = plan.num_steps if plan.unit == "episodes" else 0
        self.next_seeds = np.zeros(rows, np.int64)
        self._lengths = np.zeros(rows, np.int64)
        # Rows that have to be reset before the next step, and an array for resets that no fragment needs.
        self._due = np.ones(rows, np.bool_)
        self._unseen = np.zeros((rows, *plan.agents, plan.obs_dim), plan.obs_rows.dtype)

    def reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        if self._due.all():
            self._reset(self._unseen, self._due)
        self._reset(obs, mask)

    def _reset(self, obs: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        self._reset_env(obs, np.maximum(self.next_seeds, 0).astype(np.uint64), mask)
        self._lengths[mask] = 0
        self._due &= ~mask

    @abstractmethod
    def _reset_env(self, obs: NDArray[Any], seeds: NDArray[np.uint64], mask: NDArray[np.bool_]) -> None:
        """Starts episodes in the rows of a mask with their seeds, and writes these rows of ``obs``."""

    def _reset_due(self) -> None:
        """Starts episodes in rows that have none, so that they can be stepped."""
        if np.count_nonzero(self._due):
            self._reset(self._unseen, self._due.copy())

    def rollout(self, actor: Mlp, **arrays: Any) -> tuple[list[RolloutEnd], float]:
        """Takes steps in all rows without Python between them.

        Args:
            arrays: see ``rollout`` of the compiled classes.

        Returns:
            The episodes that ended, and the share of the time that the network took.
        """
        take = self._env.compiled_rollout
        assert take is not None, "has_rollouts"
        self._reset_due()
        return take(actor, episode_info=self._keys, **arrays)

    def _at_limit(self) -> NDArray[np.bool_]:
        """Counts a step; returns the rows whose episodes are as long as they may be. Only where there is a limit."""
        self._lengths += 1
        return self._lengths >= self._limit

    def _start_next(self, ended: NDArray[np.bool_], obs: NDArray[Any]) -> None:
        """Starts the next episodes of rows that have ended, unless their seed is `NO_RESET`."""
        self._due |= ended
        continues = ended & (self.next_seeds != NO_RESET)
        if continues.any():
            self._reset(obs, continues)


class NativeBackend(JointBackend):
    """A compiled vector environment, stepped in threads of its own.

    Args:
        num_threads: how many, where it is built here.
        env: the vector environment, which stays the caller's. None: one is built from the plan, and closed at the end.

    Raises:
        CollectError: the environment is not compiled, has other spaces than the plan, or no action masks though the
            plan asks for them.
        ValueError: ``env`` has another number of environments than there are rows, or resets them by itself.
    """

    _env: NativeVectorEnv

    def __init__(self, plan: Plan, num_threads: int, env: NativeVectorEnv | None = None) -> None:
        num_rows = plan.num_envs
        self._env = native_vector_env(plan, num_threads) if env is None else env
        self._owned = env is None
        if self._env.num_envs != num_rows:
            raise ValueError(f"env: expected num_envs {num_rows} as in the plan, got {self._env.num_envs}")
        if self._env.autoreset_mode is not AutoresetMode.DISABLED:
            raise ValueError(
                f"env: expected autoreset_mode 'disabled', as the collector resets it, got"
                f" {AutoresetMode(self._env.autoreset_mode).value!r}"
            )
        expect_native_spaces(plan, self._env)
        expect_masks(plan, self._env)
        super().__init__(plan)

    def _reset_env(self, obs: NDArray[Any], seeds: NDArray[np.uint64], mask: NDArray[np.bool_]) -> None:
        self._env.reset_into(obs, seed=seeds, reset_mask=mask)

    def step(self, actions: NDArray[Any], arrays: StepArrays, mask: NDArray[np.bool_] | None) -> bool:
        obs, rewards, terminations, truncations, final_obs, final_masks = arrays
        self._reset_due()
        self._env.step_into(actions, obs, rewards, terminations, truncations)
        if self._limit:
            truncations |= self._at_limit() & ~terminations
        ended = terminations | truncations
        if not np.count_nonzero(ended):
            return False
        final_obs[ended] = obs[ended]
        if final_masks is not None and (cut := truncations & ~terminations).any():
            masks = np.empty_like(final_masks)
            self._env.action_masks(masks)
            final_masks[cut] = masks[cut]
        for i, key in enumerate(self._keys):
            self.ended_info[ended, i] = self._env.episode_info(key)[ended]
        self._start_next(ended, obs)
        return True

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        self._env.action_masks(out)

    def observe(self, obs: NDArray[np.float32]) -> None:
        """Writes the present observations: the environment's owner may have changed it since its last step."""
        self._env.observe_into(obs)

    def close(self) -> None:
        if self._owned:
            self._env.close()


def native_vector_env(plan: Plan, num_threads: int) -> NativeVectorEnv:
    """Builds the compiled vector environment of a plan's Gymnasium id, for the plan's environments.

    Raises:
        CollectError: the id has none.
    """
    known = compiled_spec(plan)
    build: Any = _vector_type(known)
    # As Gymnasium's wrapper limits single environments.
    limit = {} if known.max_episode_steps is None else {"max_episode_steps": known.max_episode_steps}
    options = {"autoreset_mode": AutoresetMode.DISABLED, **limit, **known.kwargs, **plan.env.options}
    env: NativeVectorEnv = build(plan.num_envs, **{**options, "num_threads": num_threads})
    return env


def compiled_spec(plan: Plan) -> registration.EnvSpec:
    """The registration of a plan's compiled vector environment.

    Raises:
        CollectError: there is none.
    """
    known = native_spec(plan.env.id)
    if known is None:
        raise CollectError(
            f"collecting natively takes an environment that is compiled, such as fastrl/Cage2-v0, and {plan.env.id} is"
            " none: choose 'sync' or 'executor'"
        )
    if plan.obs_rows.dtype != np.float32:
        raise CollectError(
            f"{plan.env.id}: compiled environments write float32, its observations are images: choose 'sync' or"
            " 'executor'"
        )
    return known


def expect_native_spaces(plan: Plan, env: NativeVectorEnv) -> None:
    """Refuses a compiled environment whose spaces are not those that the learner expects.

    Raises:
        CollectError
    """
    space = env.single_observation_space
    rows = ObsRows(space)
    # It writes the rows of a Dict or Tuple, too, unless bytes are to be in them.
    in_rows = rows.row_space if rows.dtype == np.float32 else space
    expect_spaces(plan, in_rows, env.single_action_space)


def expect_masks(plan: Plan, env: NativeVectorEnv | MultiAgentVectorEnv) -> None:
    """Refuses an environment without the action masks that the plan asks for.

    Raises:
        CollectError
    """
    if plan.action_masks and not env.num_masked:
        raise CollectError(f"{plan.env.id}: action masks were asked for, and it has none")


def native_spec(env_id: str) -> registration.EnvSpec | None:
    """The registration of a Gymnasium id that has a compiled vector environment; None for other ids."""
    module, _, name = env_id.rpartition(":")
    try:
        if module and not name.isidentifier():
            # Importing the module registers the id.
            importlib.import_module(module)
        known = gymnasium.spec(name)
        return known if issubclass(_vector_type(known), NativeVectorEnv) else None
    except (gymnasium.error.Error, ImportError, AttributeError, TypeError):
        return None


def _vector_type(known: registration.EnvSpec) -> Any:
    entry: Any = known.vector_entry_point
    return registration.load_env_creator(entry) if isinstance(entry, str) else entry
