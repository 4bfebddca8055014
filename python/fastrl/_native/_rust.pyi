"""The part of fastrl that is compiled from Rust.

Arrays belong to the caller. They are C-contiguous, aligned, in native byte order, of exactly the dtype and shape
given here, writeable where they are written, and no two of one call share memory; otherwise TypeError (dtype) or
ValueError says what was expected and what came, and nothing has changed. Long calls release the GIL: no other thread
may touch the arrays meanwhile. N is `num_envs`, D `obs_dim`, A `num_actions`.
"""

import sys
from collections.abc import Sequence
from typing import Any, Literal, Self, final, type_check_only

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

__version__: str

CAGE2_ACTIONS: list[str]
"""The 145 actions of blue, as the challenge prints them, in its order."""
CAGE2_HOSTS: list[str]
CAGE2_IMAGES: list[str]
"""The images of CybORG that hosts of a scenario can have."""
CAGE2_SUBNETS: list[str]
CAGE2_EXPLOITS: list[str]
CAGE2_RED_KINDS: list[str]
"""Kinds of red's actions."""
CAGE2_RED_ACTIONS: list[str]
"""The 56 actions of red in a game of two agents: Sleep, then each kind on each subnet or host."""
CAGE2_RED_VIEW: list[str]
"""Names of the values that red observes there."""
CAGE2_RED_AGENTS: list[str]
CAGE2_TRUTH: list[str]
"""Names of the values of the true state that observations may have."""
CAGE2_ROW: list[str]
"""Names of the numbers of a row of observations by rows of hosts."""
CAGE2_UNIT_TYPES: list[str]
CAGE2_TYPE_OF_HOST: list[int]
"""Index into `CAGE2_UNIT_TYPES` of each host."""
CAGE2_EFFECTIVE_ACTIONS: list[int]
CAGE4_ACTIONS: list[list[str]]
"""Names of each blue agent's actions."""
CAGE4_OBS_LENGTHS: list[int]
"""Values of each blue agent's observation; zeros follow."""
CAGE4_HOSTS: list[str]
"""Hosts by slot: 17 a subnet, of which an episode has some."""
CAGE4_SUBNETS: list[str]
CAGE4_EXPLOITS: list[str]
CAGE4_RED_KINDS: list[str]
CAGE4_RED_STATES: list[str]
CAGE4_RED_AGENTS: list[str]
CAGE4_RULES: list[str]
CAGE4_MESSAGE_BITS: int
CAGE4_DECISIONS: dict[str, str]
"""Purposes of decisions by their numbers in traces."""
"""Actions that can ever have an effect."""

@type_check_only
class NativeVec:
    """Methods of all vector classes below (there is no such class at run time). N environments of A agents each have
    K = N * A rows, row = environment * A + agent.

    MemoryError: the environments and the memory that their episodes need do not fit. No object may be used by two
    threads at once (RuntimeError) nor in a process forked from its own (RuntimeError). After `close` every
    method but `close` raises `gymnasium.error.ClosedEnvironmentError`.

    Simulators of several agents may have `set_difficulty(num_agents, density)`, with int64 [N] and float64 [N] or None;
    `episodes()`, as `MultiAgentVectorEnv.episodes`; `scene(index)`, the scene of one environment.
    """

    @property
    def num_envs(self) -> int:
        """Environments, N."""

    @property
    def num_agents(self) -> int:
        """Rows of one environment, A."""

    @property
    def obs_dim(self) -> int:
        """Length of an observation, D."""

    def reset(
        self,
        obs: NDArray[np.float32],
        seeds: NDArray[np.uint64] | None = None,
        reset_mask: NDArray[np.bool_] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        """Starts new episodes where `reset_mask` [N] says so (everywhere without it) and writes these rows of `obs`
        [K, D], and all of `alive` [K]: whose agents act next. `seeds` [N] restart the streams. A mask without a True
        is a ValueError; one that leaves out an environment that was never reset raises
        `gymnasium.error.ResetNeeded`."""

    def observe(self, obs: NDArray[np.float32], alive: NDArray[np.bool_] | None = None) -> None:
        """Writes the present observations of all rows, [K, D], zeros where no agent lives, and the flags of living
        agents, [K]."""

    def step(
        self,
        actions: NDArray[Any],
        obs: NDArray[np.float32],
        rewards: NDArray[np.floating],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32] | None = None,
        alive: NDArray[np.bool_] | None = None,
    ) -> None:
        """One step of every environment. `actions` int64 [K] or, where they are numbers, float32 [K, n]; `obs` [K, D];
        `rewards` float32 or float64 [K]; `terminations`, `truncations`, `alive` [K]; `final_obs` [K, D] only with
        autoreset "same_step": rows of environments whose episode ended get its last observations. ValueError: an action
        of a living agent out of range or NaN. `gymnasium.error.ResetNeeded`: an environment was never reset, or has
        ended with autoreset "disabled"."""

    @property
    def num_masked(self) -> int:
        """Width of an action mask; 0: the simulator has none."""

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        """Writes, [K, num_masked], which actions may have an effect now, as far as the agents can know. ValueError: the
        simulator has no masks."""

    def episode_info(self, key: str, out: NDArray[np.float64]) -> None:
        """Writes, [N], a number of each environment; NaN: it does not know the key. CAGE Challenge 2 knows `red_agent`
        of the present episode, the index into `CAGE2_RED_AGENTS`; roads know the results of the last that has ended, by
        the names of `fastrl.envs.MultiAgentVectorEnv.episodes`."""

    def save_state(self, index: int | None = None) -> bytes:
        """Everything that the future depends on, generators included, of all environments or of one. MemoryError: there
        is no room for it. IndexError: there is no such environment."""

    def load_state(self, state: bytes, index: int | None = None) -> None:
        """Restores it, in all environments or in one. ValueError: damaged, of another version, of other options or
        another number of environments, or altered so that the simulator cannot continue from it; IndexError,
        MemoryError. Nothing has changed then."""

    def branch(self, state: bytes, seeds: NDArray[np.uint64] | None = None) -> None:
        """Restores the state of one environment in all. `seeds` [N] start random streams that the episodes continue
        with. Errors as of `load_state`."""

    def asynchronous(
        self, seed: int, *, same_step: bool, num_threads: int = 0, episode_info: list[str] = ...
    ) -> AsyncVec:
        """Closes this object and moves its environments to one that steps them asynchronously. `num_threads` 0: one for
        each core. `episode_info`: K keys whose numbers `recv` gives of episodes that ended. ValueError: environments of
        several agents. MemoryError: the environments are lost."""

    def rollout(
        self,
        actor: Mlp,
        *,
        seed: int,
        env_indices: NDArray[np.int64],
        numbers: NDArray[np.int64],
        steps: NDArray[np.int64],
        returns: NDArray[np.float64],
        streams: NDArray[np.uint64],
        took_part: NDArray[np.bool_],
        scored: int,
        states: NDArray[np.float32] | None,
        obs: NDArray[np.float32],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        rewards: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None,
        final_masks: NDArray[np.bool_] | None,
        alive: NDArray[np.bool_] | None,
        ends: NDArray[np.bool_] | None,
        scaling: NDArray[np.float32] | None,
        episode_info: Sequence[str],
    ) -> tuple[list[tuple[int, int, int, float, int, list[float]]], float]:
        """T steps of every environment with actions of `actor`, by threads that each take some environments through all
        of them. Where an episode ends, the next of its sequence starts, as of `AsyncVec`.

        Of the running episodes: `env_indices` [N], their sequences; `numbers`, `steps` and `returns` (sums of rewards)
        [N] so far; `streams` [K], `fastrl.utils.seeding.act_stream` or, with `alive`, `agent_streams`; `took_part` [K],
        agents that have taken part; `scored`, from 1 to A, the first agents, whose rewards returns have; `states` [K,
        S] as of `Mlp.act`. They are brought up to date. `obs` [T + 1, K, D] and `alive` [T + 1, K] (None: each
        environment has one agent): the first row is read. Written of each step, [T, K, ...]: `actions`, `log_probs`,
        `rewards`, `terminations`, `truncations`, `masks` (None: all actions are allowed) and, [T, N], `ends` of
        episodes (or None). Agents that are not alive get zeros, and masks of ones. Where an episode ends or an agent is
        cut off, `final_obs` of its environment is written; where an episode is truncated, `final_masks` (or None).

        `actions` are int64 [T, K], or float32 [T, K, n] with `scaling` [4, n]: an action is a draw of the Gaussian
        times the first row, plus the second, kept between the third and the fourth.

        Returns the episodes that ended (step, environment, number, return, length and the numbers of `episode_info`),
        by environments, and the share of the time that the network took. The return is the mean over the scored agents
        that took part. ValueError: arrays or an actor that do not fit, or an action that an environment does not take.
        RuntimeError: the actor has no weights. `gymnasium.error.ResetNeeded`: an environment waits for a reset."""

    def close(self) -> None:
        """Ends it. May be called again."""

@final
class AsyncVec:
    """N environments of one agent each, stepped by threads as their actions come; a vector class's `asynchronous` makes
    it. `fastrl.envs.AsyncNativeVectorEnv` explains how it is used. M is the number of environments of a call.

    An environment is in flight from `reset` or `send` until `recv`. Episode `number` of the sequence `env_index` is
    reset with `fastrl.utils.seeding.env_seed(seed, env_index, number)`. `same_step`: the step that ends an episode
    starts the next one of its sequence.

    Arrays as in `NativeVec`. No object may be used by two threads at once nor in a forked process (RuntimeError).
    RuntimeError too after an environment has failed inside. After `close` every method but `close` raises
    `gymnasium.error.ClosedEnvironmentError`.
    """

    @property
    def num_envs(self) -> int: ...
    @property
    def obs_dim(self) -> int: ...
    @property
    def in_flight(self) -> int:
        """The number of environments in flight, which `recv` can return."""

    @property
    def busy_seconds(self) -> float:
        """Time that the threads have spent on steps and resets so far, summed over them."""

    def reset(
        self, env_ids: NDArray[np.int64], env_indices: NDArray[np.uint64], numbers: NDArray[np.uint64]
    ) -> None:
        """Starts episodes `numbers` of the sequences `env_indices` in the environments `env_ids`, each [M].
        ValueError: no such environment, one is named twice, or one is in flight; nothing has changed then."""

    def action_masks(self, env_ids: NDArray[np.int64], out: NDArray[np.bool_]) -> None:
        """Writes, [M, num_masked], which actions may have an effect now in the environments `env_ids` [M]. ValueError:
        as in `reset`, or the simulator has no masks."""

    def send(self, env_ids: NDArray[np.int64], actions: NDArray[Any]) -> None:
        """Sends `actions` int64 [M] or float32 [M, n] to the environments `env_ids` [M]. ValueError as `reset`, or an
        action is out of range or NaN. `gymnasium.error.ResetNeeded`: never reset, or ended without `same_step`."""

    def recv(
        self,
        env_ids: NDArray[np.int64],
        obs: NDArray[np.float32],
        rewards: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        final_obs: NDArray[np.float32],
        final_masks: NDArray[np.bool_],
        episode_info: NDArray[np.float64],
        timeout: float | None = None,
    ) -> bool:
        """Waits until M environments are ready and writes the first of them: their ids [M] and the results of their
        steps, `obs` and `final_obs` [M, D], `final_masks` [M, num_masked], `episode_info` [M, K], the others [M];
        `final_obs`, `final_masks` and `episode_info` where an episode ended, other rows stay as they are. After `reset`
        the reward is 0. False after `timeout` seconds: nothing has changed. ValueError: fewer than M are in flight."""

    def close(self) -> None:
        """Ends threads and environments. May be called again."""

@final
class Cage2Scenario:
    """A scenario of CAGE Challenge 2, compiled. `fastrl.envs.cage2.scenario` reads files and makes it.

    Args:
        hosts: names, 2 to 32. Hosts are indices into it elsewhere.
        images: one of `CAGE2_IMAGES` for each; OP_Server is for Op_Server0.
        confidentiality_tenths: the cost of a step while red is root there, for each.
        availability_tenths: the cost of a step while OTService is down.
        info: what an escalation on each shows red: hosts, with True where it shows the subnet too.
        shows_service: whether it shows OTService, for each.
        subnets: names, sizes, hosts, and how red reaches them from where it starts: "open", "gated" (while it has a
            session on a host with Enterprise in its name) or "closed".
        start: the host where red starts.
        blue_sessions: hosts of blue's sessions, the server's first.
        green_sessions: hosts of green's sessions.

    Raises:
        ValueError: no such scenario can be played.
    """

    def __new__(
        cls,
        *,
        hosts: list[str],
        images: list[str],
        confidentiality_tenths: list[int],
        availability_tenths: int,
        info: list[list[tuple[int, bool]]],
        shows_service: list[bool],
        subnets: list[tuple[str, int, list[int], str]],
        start: int,
        blue_sessions: list[int],
        green_sessions: list[int],
    ) -> Cage2Scenario: ...
    @staticmethod
    def challenge() -> Cage2Scenario:
        """The challenge's own, Scenario 2."""

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts."""

    @property
    def subnets(self) -> list[str]:
        """Names of the subnets, in the order of their first hosts."""

    @property
    def subnet_of(self) -> list[int]:
        """The subnet of each host, an index into `subnets`."""

    @property
    def access(self) -> list[str]:
        """Red's access to each subnet from where it starts: "open", "gated" or "closed"."""

    @property
    def start(self) -> int:
        """The host where red starts."""

    @property
    def target(self) -> int:
        """The host with OTService."""

    @property
    def server(self) -> int:
        """The host with the server of blue's sessions."""

    @property
    def root_costs(self) -> list[float]:
        """Cost of each host in a step in which red is root on it."""

    @property
    def scan_hosts(self) -> list[int]:
        """Hosts, in order, that the scan values of an observation speak of: all, but ten in Scenario 2."""

    @property
    def decoy_places(self) -> list[tuple[int, int]]:
        """Decoys and hosts where they can start, in the order of the actions."""

    @property
    def actions(self) -> list[str]:
        """Names of blue's actions in the challenge's order."""

    @property
    def red_agents(self) -> list[str]:
        """Those of `CAGE2_RED_AGENTS` that can play in it."""

    @property
    def effective_actions(self) -> list[int]:
        """Indices of the actions that can ever have an effect."""

@final
class Cage2Vec(NativeVec):
    """N games of CAGE Challenge 2. `fastrl.envs.Cage2VectorEnv` explains the options.

    Threads, forks and `close` as in `NativeVec`.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        ruleset: str,
        red_agents: list[str],
        red_weights: list[float],
        episode_length: int,
        memory: str,
        observe: str,
        actions: list[int],
        num_threads: int,
        autoreset_mode: str,
        python_random: bool,
        scenario: Cage2Scenario | None = None,
    ) -> Cage2Vec: ...
    def alerts(self, out: NDArray[np.bool_]) -> None:
        """Writes, [N, hosts], on which hosts Monitor named a suspicious process in the last step."""

    def truth(
        self,
        red_access: NDArray[np.uint8],
        red_sessions: NDArray[np.uint8],
        processes: NDArray[np.uint8],
        red_action: NDArray[np.int8],
    ) -> None:
        """Writes the true state, three times [N, 13] (access 0 none, 1 user, 2 root; counts up to 255), and red's
        last action [N, 3]: index into `CAGE2_RED_KINDS`, target host or subnet (-1 none), success (1, 0, -1)."""

    def render(self, index: int) -> str:
        """A table of blue's view and the truth of one game. IndexError: there is no such game."""

@final
class Cage2GameVec(NativeVec):
    """N games of CAGE Challenge 2 of two agents, blue and red: 2 rows a game. What an agent has fewer of is zero, and
    an action without effect with a mask of False. `fastrl.envs.Cage2GameVectorEnv` explains the options.

    Threads, forks and `close` as in `NativeVec`.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        ruleset: str,
        red_agents: list[str],
        red_weights: list[float],
        episode_length: int,
        memory: str,
        observe: str,
        actions: list[int],
        num_threads: int,
        autoreset_mode: str,
        python_random: bool,
    ) -> Cage2GameVec: ...
    def choose_red(self, out: NDArray[np.int64]) -> None:
        """Moves the scripted reds: writes, [N], the actions that they take next, indices into `CAGE2_RED_ACTIONS`. They
        draw from the games' random streams."""

@final
class Cage4Vec(NativeVec):
    """N games of CAGE Challenge 4 with five blue agents each: 5 rows a game, 210 values and 242 actions a row. What an
    agent has fewer of is zero, and Sleep with a mask of False. None is ever terminated.

    Args:
        red_agent: `"fsm"` (FiniteStateRedAgent, of the challenge's evaluation) or `"discovery"` (DiscoveryFSRed).
        episode_length: 2 to 1,000. As in the original an episode is over, here truncated, one step earlier.
        numpy_random: draws as NumPy does: the episodes of the original after `reset(seed=...)`, whose generator runs on
            through the next ones. A game then takes 19 kB more.
        rules: `"original"`, or names of `CAGE4_RULES` joined by `"+"`.
        host_view: observations and actions of `fastrl.envs.cage4.host_view`, 147 values and 11 actions a row.
        messages: bits of the messages there, up to 4: for each bit 4 values more and twice as many actions.
        zone_rewards: an agent is rewarded for its zone and its own actions alone.

    Threads, forks and `close` as in `NativeVec`. `episode_info` knows the sums of rewards by cause, `work_failed`,
    `access_failed`, `impact` and `action_cost`, the steps taken, `time`, and the `phase` of the last one.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        red_agent: str,
        episode_length: int,
        num_threads: int,
        autoreset_mode: str,
        numpy_random: bool,
        host_view: bool = False,
        messages: int = 0,
        zone_rewards: bool = False,
        rules: str = "original",
    ) -> Cage4Vec: ...
    def send(self, messages: NDArray[np.uint8]) -> None:
        """Messages of the agents, [N, 5] with the first of 8 bits highest, which the others observe after the next
        step; without, zeros."""

    def busy(self, out: NDArray[np.uint8]) -> None:
        """Writes, [N, 5], the steps that the agents' actions in progress still take. An agent whose number is not 0
        cannot choose: what it submits is ignored, but a Restore costs."""

    def ledger(self, out: NDArray[np.int32]) -> None:
        """Writes the sums of rewards, [N, 3, 6, 4] by phase, zone (the agents', then the contractor's) and cause (work
        failed, access failed, impact, cost of actions)."""

    def truth(
        self,
        hosts: NDArray[np.bool_],
        red_access: NDArray[np.uint8],
        red_sessions: NDArray[np.uint8],
        processes: NDArray[np.uint8],
        alerts: NDArray[np.uint8],
        blocked: NDArray[np.uint16],
        red_action: NDArray[np.int16],
        blue_action: NDArray[np.int16],
    ) -> None:
        """Writes the true state: five times [N, 136] by slot, whether the host exists, red's access (0 none, 1 user, 2
        root), red's sessions, all processes (up to 255) and alerts of the last step (1 process, 2 connection, 3 both);
        [N, 8], the subnets, a bit each, that each subnet blocks; [N, 6, 3], the actions in progress of red's agents:
        index into `CAGE4_RED_KINDS` (-1 none), slot or subnet, steps left; [N, 5, 2], those of blue's: index into
        `CAGE4_ACTIONS` (-1 none), steps left."""

@final
class BlueMemory:
    """Blue's memory of N games of CAGE Challenge 2 that run elsewhere. `fastrl.envs.cage2.memory` explains it."""

    def __new__(cls, num_envs: int, memory: str, ruleset: str) -> BlueMemory: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def obs_dim(self) -> int: ...
    def reset(self, reset_mask: NDArray[np.bool_] | None = None) -> None:
        """Forgets the games that `reset_mask` [N] selects, all without it."""

    def observe(
        self, bits: NDArray[np.float32], actions: NDArray[np.int64] | None, obs: NDArray[np.float32]
    ) -> None:
        """Notes the observations `bits` [N, 52] after `actions` [N] (-1: before the first action; None: -1 everywhere)
        and writes `obs` [N, D]. ValueError: bits other than 0 and 1, an action out of range, or, where the values
        depend on it, none within an episode; nothing has changed then."""

    def action_masks(self, out: NDArray[np.bool_]) -> None:
        """Writes, [N, 145], which actions may have an effect now."""

@final
class Cage2RowsVec(NativeVec):
    """N games of CAGE Challenge 2 by rows of hosts. `fastrl.envs.cage2.rows` explains them and the options.

    Threads, forks and `close` as in `NativeVec`. `episode_info` knows "network" beside what `Cage2Vec` knows: the index
    of the network that an episode is played in.

    Args:
        networks: 1 to 65,535, among which each episode's is drawn.
        rows: of an observation, of `CAGE2_ROW` numbers each; at least as many as a network has hosts.
        kinds: of actions on hosts that are on offer, of 0 Analyse, 1 Remove, 2 to 9 the decoys, 10 Restore.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        networks: list[Cage2Scenario],
        rows: int,
        kinds: list[int],
        ruleset: str,
        red_agents: list[str],
        red_weights: list[float],
        episode_length: int,
        num_threads: int,
        autoreset_mode: str,
        python_random: bool,
    ) -> Cage2RowsVec: ...

@final
class Cage2WorkflowVec(NativeVec):
    """N games of CAGE Challenge 2 with workflows. `fastrl.envs.cage2.workflow` explains them and the options.

    Threads, forks and `close` as in `NativeVec`. A workflow is a row of 5: indices into `CAGE2_UNIT_TYPES`, the most
    urgent type first.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        ruleset: str,
        red_agents: list[str],
        red_weights: list[float],
        episode_length: int,
        memory: str,
        observe: str,
        actions: list[int],
        compliance_weight: float,
        num_threads: int,
        autoreset_mode: str,
    ) -> Cage2WorkflowVec: ...
    def set_workflows(self, workflows: NDArray[np.int8]) -> None:
        """The workflow of each game, [N, 5], from its next episode on; already in the present one if it has not made
        a step. ValueError: a row that is no order of the five types; nothing has changed then."""

    def workflows(self, out: NDArray[np.int8]) -> None:
        """Writes the workflows of the present episodes, [N, 5]."""

    def episodes(
        self,
        finished: NDArray[np.int64],
        returns: NDArray[np.float64],
        compliance: NDArray[np.float64],
        fixes: NDArray[np.int64],
        red_agent: NDArray[np.uint8],
        workflow: NDArray[np.int8],
    ) -> None:
        """Writes how many episodes of each game have ended, [N], and of the last of them: the game's return, the
        compliance, the fixes, the red agent's index, [N] each, and the workflow, [N, 5]. Where none has ended the
        others mean nothing."""

class _Columns(NativeVec):
    """Methods of the vector classes whose agents drive vehicles among traffic, for `fastrl.envs.DrivingTask` (there is
    no such class at run time). V is `num_columns`: columns 0 to A - 1 are the agents' vehicles, the others follow in
    the order of the simulator. What belongs to no vehicle stays as it is."""

    @property
    def num_columns(self) -> int:
        """Columns of the environment that needs the most now, V; an agent has one if its vehicle is gone, too."""

    def column(self, name: str, out: NDArray[Any]) -> None:
        """Writes a property of all vehicles [N, V]. float64: x, y, along, offset (m, the last two on the nearest lane,
        to its right), heading, lane_heading (rad), speed, target_speed (m/s), acceleration (m/s²). int64: lane,
        target_lane, lane_number (from the left among those beside it). bool: present, crashed, on_road. ValueError:
        another name."""

    def leaders(self, gaps: NDArray[np.float64], speeds: NDArray[np.float64]) -> None:
        """Writes of each agent's vehicle [N, A] the gap to what is before it on its lane, bumper to bumper, m, and the
        speed of that, m/s; infinity and its own speed if there is nothing."""

    def progress(self, arrived: NDArray[np.bool_], time: NDArray[np.float64]) -> None:
        """Writes whether agents have reached their goals [N, A], and the seconds since the episodes began [N]."""

    def end(self, ended: NDArray[np.bool_], alive: NDArray[np.bool_]) -> None:
        """Ends the episode for the agents of rows [K] that act, as if it had ended with the last step; their vehicles
        stay on the road, and keep lane and speed. Writes whose agents act next, all of `alive` [K]."""

@final
class CoopVec(_Columns):
    """N environments of cooperative driving, M rows each. `fastrl.envs.CoopVectorEnv` explains the options; None takes
    the default of the road. Row = environment * M + agent; K = N * M rows in all.

    Threads, forks and `close` as in `NativeVec`.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        road: str,
        autoreset_mode: str,
        num_threads: int,
        num_agents: int | None = None,
        density: float | None = None,
        lanes: int | None = None,
        max_agents: int | None = None,
        background: int | None = None,
        action_type: str | None = None,
        simulation_frequency: int | None = None,
        policy_frequency: int | None = None,
        duration: float | None = None,
        cooperation: float | None = None,
        collision_reward: float | None = None,
        speed_reward: float | None = None,
        lane_reward: float | None = None,
        arrival_reward: float | None = None,
        age_reward: float | None = None,
        delivery_reward: float | None = None,
        reward_speed_range: tuple[float, float] | None = None,
        comms: dict[str, Any] | None = None,
    ) -> CoopVec:
        """`comms`: `fastrl.envs.traffic.links.LinkOptions.native`; None: agents see each other as they are."""

    @property
    def policy_frequency(self) -> int:
        """Steps a second."""

    @property
    def num_actions(self) -> int:
        """Number of discrete actions."""

    @property
    def action_len(self) -> int:
        """Numbers of a continuous action; 0 if actions are discrete."""

    @property
    def num_statistics(self) -> int:
        """Number of the statistics of links; 0: there are no links."""

    def comms(self, out: NDArray[np.float64]) -> None:
        """Writes the statistics of each agent's last message, [K, num_statistics]; NaN of agents that do not act."""

    def links(self, env: int) -> dict[str, NDArray[Any]]:
        """See `fastrl.envs.traffic.linked.LinkedVectorEnv.links`."""

    def set_difficulty(
        self, num_agents: NDArray[np.int64] | None = None, density: NDArray[np.float64] | None = None
    ) -> None:
        """Sets agents and density of each environment's coming episodes, [N] each. ValueError: out of range."""

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Results of ended episodes, as `fastrl.envs.MultiAgentVectorEnv.episodes` gives them."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of an environment, as `RingVec.scene`."""

@final
class ClassicVec(NativeVec):
    """N environments of a task of classic control. `fastrl.envs.classic.control` explains the options.

    `task`: Gymnasium's name without a version. `option`: the value of the task's one option, a flag as 0 or 1; Acrobot
    has none and ignores it. `limit`: steps after which an episode is truncated. Threads, forks and `close` as in
    `NativeVec`. ValueError: an option is out of range.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        task: str,
        option: float,
        limit: int,
        num_threads: int,
        autoreset_mode: str,
    ) -> ClassicVec: ...
    def variables(self, env: int) -> list[float]:
        """The variables of an environment, four numbers; those that the task does not have are zeros. IndexError: there
        is no such environment."""

@final
class V2xVec(NativeVec):
    """N environments of resource allocation. `fastrl.envs.traffic.v2x` explains the options. Threads, forks and `close`
    as in `NativeVec`.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        num_links: int,
        payload: float,
        time_budget: int,
        powers: list[float],
        v2i_weight: float,
        autoreset_mode: str,
        num_threads: int,
    ) -> V2xVec: ...
    def episodes(self) -> dict[str, NDArray[Any]]:
        """Results of ended episodes, as `fastrl.envs.MultiAgentVectorEnv.episodes` gives them, and `v2i_rate`."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of an environment, as `RingVec.scene`."""

@final
class HighwayVec(_Columns):
    """N highways of highway-env 1.12.1, an agent each. `fastrl.envs.traffic.highway` explains the options and checks
    them.

    `observation` and `action` are dicts as that module makes them. `all_collisions` False: only the controlled
    vehicles look for collisions. `step` takes continuous actions in float32 or float64. Threads, forks and `close`
    as in `NativeVec`. V is the number of vehicles.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        lanes: int,
        vehicles: int,
        controlled_vehicles: int = 1,
        vehicle_type: str,
        initial_lane: int | None,
        simulation_frequency: float,
        policy_frequency: float,
        frames: int,
        duration: float,
        ego_spacing: float,
        density: float,
        collision_reward: float,
        right_lane_reward: float,
        high_speed_reward: float,
        speed_range: tuple[float, float],
        normalize_reward: bool,
        offroad_terminal: bool,
        all_collisions: bool,
        observation: dict[str, Any],
        action: dict[str, Any],
        num_threads: int,
        autoreset_mode: str,
    ) -> HighwayVec: ...
    @property
    def action_len(self) -> int:
        """Numbers of a continuous action; 0 if actions are discrete."""

    def info(
        self,
        speed: NDArray[np.float64],
        crashed: NDArray[np.bool_],
        rewards: NDArray[np.float64],
        action: NDArray[Any],
    ) -> None:
        """Writes of each agent: speed [N], m/s; whether it crashed [N]; the parts of its reward [N, 4] (collision,
        right lane, high speed, on road); its last action, int64 [N] or float32 [N, n], the neutral one after a
        reset."""

    def vehicles(self, index: int) -> dict[str, NDArray[Any]]:
        """Copies of what highway `index` knows of its vehicles, in highway-env's order: float64 [V] x, y (m), heading
        (rad), speed, target_speed (m/s), the commands acceleration (m/s²) and steering (rad), timer (s), delta; int64
        [V] lane, target_lane, speed_index; bool [V] crashed. IndexError: there is no such highway."""

    def copy_generators(self, other: HighwayVec) -> None:
        """Copies the random generators of `other`. ValueError: it has another number of environments."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of a highway, as `RingVec.scene`."""

@final
class RoadVec(_Columns):
    """N environments of highway-env 1.12.1 on road networks. `fastrl.envs.traffic.roads` explains the options and
    checks them.

    `options` are those of the scenario: a list of numbers each, flags as 0 or 1, None as no number. `shared`: one agent
    acts, whatever the number of controlled vehicles. `ends`: "together" (one reward and end for all), "each", "wrapped"
    (each its own, but all act until all have ended). Threads, forks and `close` as in `NativeVec`. V is the number of
    vehicles, L of lanes, A of agents that act, C of controlled vehicles, P of the parts of a reward. ValueError: an
    option is out of range.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        scenario: str,
        options: dict[str, list[float]],
        vehicle_type: str,
        simulation_frequency: float,
        policy_frequency: float,
        frames: int,
        duration: float,
        connected: bool,
        observation: dict[str, Any],
        action: dict[str, Any],
        shared: bool,
        ends: str,
        num_threads: int,
        autoreset_mode: str,
        comms: dict[str, Any] | None = None,
        age_reward: float = 0.0,
        delivery_reward: float = 0.0,
    ) -> RoadVec:
        """`comms`: `fastrl.envs.traffic.links.LinkOptions.native`; None: agents see each other as they are."""

    @property
    def part_names(self) -> list[str]:
        """highway-env's names of the parts of a reward."""

    def info(
        self,
        speed: NDArray[np.float64],
        crashed: NDArray[np.bool_],
        succeeded: NDArray[np.bool_],
        parts: NDArray[np.float64],
        action: NDArray[Any],
        rewards: NDArray[np.float64] | None,
        terminated: NDArray[np.bool_] | None,
    ) -> None:
        """Writes of each environment: the first agent's speed [N], m/s, and whether it crashed [N]; whether each
        controlled vehicle reached its goal [N, C]; the parts of the shared reward [N, P]; the last actions, int64
        [N, A] or float32 [N, A, n], the neutral one after a reset; rewards [N, C] and ends [N, C] of the controlled
        vehicles, unless they are None."""

    def observe_double(self, obs: NDArray[np.float64]) -> None:
        """Writes the current observations in double precision [N * A, D], for the kinds that have it in highway-env
        ("KinematicsGoal", "AttributesObservation"); zeros for others and before the first reset."""

    def vehicles(self, index: int) -> dict[str, NDArray[Any]]:
        """Copies of what environment `index` knows of its vehicles, in highway-env's order: float64 [V] x, y (m),
        heading (rad), speed, target_speed (m/s), the commands acceleration (m/s²) and steering (rad), timer (s), delta;
        int64 [V] lane, target_lane, speed_index, agent (-1: none); bool [V] crashed. IndexError: there is no such
        environment."""

    def lane_indices(self) -> list[tuple[str, str, int]]:
        """highway-env's index of each lane [L]: two nodes and a number."""

    def lanes_at(
        self, x: float, y: float
    ) -> list[tuple[float, float, float | None, bool, int, tuple[float, float], float]]:
        """Lanes [L]: length, width, speed limit, whether it is forbidden, priority, and the coordinates (m) and the
        heading (rad) of a place on it."""

    def place_on(self, lane: int, longitudinal: float, lateral: float) -> tuple[float, float]:
        """The place with these coordinates on a lane. IndexError: there is no such lane."""

    def closest_lane(self, x: float, y: float, heading: float, lane: int) -> tuple[int, int]:
        """The lane closest to a place with a heading, sought from `lane` on, and by trying all."""

    def route(self, lane: int, goal: str) -> list[int]:
        """The way from a lane to a node: the first lane of each section; only its own if there is no way."""

    def copy_generators(self, other: RoadVec) -> None:
        """Copies the random generators of `other`. ValueError: it has another number of environments."""

    @property
    def num_statistics(self) -> int:
        """Number of the statistics of links; 0: there are no links."""

    @property
    def num_actions(self) -> int:
        """Number of discrete actions; 0 if actions are numbers."""

    @property
    def action_len(self) -> int:
        """Numbers of a continuous action; 0 if actions are discrete."""

    def comms(self, out: NDArray[np.float64]) -> None:
        """See `CoopVec.comms`."""

    def set_difficulty(
        self, num_agents: NDArray[np.int64] | None = None, density: NDArray[np.float64] | None = None
    ) -> None:
        """Sets agents and density of each environment's coming episodes, [N] each, at most those of the options, which
        have density 1. It multiplies the numbers and the rates of the other vehicles. ValueError: out of range."""

    def links(self, env: int) -> dict[str, NDArray[Any]]:
        """See `CoopVec.links`."""

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Results of ended episodes, as `fastrl.envs.MultiAgentVectorEnv.episodes` gives them; `min_ttc` is NaN,
        `throughput` counts the agents that arrive, NaN on roads without a goal."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of an environment, as `RingVec.scene`."""

@final
class LightsVec(NativeVec):
    """N networks of SUMO whose traffic lights are agents. `fastrl.envs.traffic.lights` explains the options.

    `options`: those of `RoadVec`'s scenario "trips", without agents. The times are whole seconds,
    `simulation_frequency` frames a second. Threads, forks and `close` as in `NativeVec`. ValueError: an option is out
    of range, or the network has no lights.
    """

    def __new__(
        cls,
        num_envs: int,
        *,
        options: dict[str, list[float]],
        simulation_frequency: int,
        delta_time: int,
        yellow_time: int,
        min_green: int,
        duration: int,
        fixed: bool,
        num_threads: int,
        autoreset_mode: str,
    ) -> LightsVec: ...
    @property
    def num_actions(self) -> int:
        """Number of green phases to choose from."""

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Results of ended episodes, as `fastrl.envs.MultiAgentVectorEnv.episodes` gives them, and `waiting_time`,
        `arrived` and `crashes`."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of an environment, as `RingVec.scene`."""

@final
class Mlp:
    """Chooses actions with a multi-layer perceptron on the CPU: `fastrl.networks.compiled_actor.MlpActor` without
    its dict. K rows, D
    `obs_dim`, A `outputs`.

    A row's result is the same to the last bit whatever the batch, the row's place in it and the number of threads. All
    methods may be called by several threads at once; each call uses the weights that were the newest when it began.

    `kind` "discrete": outputs are logits of A actions; "multi_discrete": of the choices of n numbers, side by side, as
    many of each as `nvec` [n] says; "gaussian": means of A independent normal numbers, whose standard deviations do not
    depend on the observation. `hidden`: widths of the hidden layers, `activation` after each. `memory` "gru" or "lstm":
    a recurrent layer of `memory_size` outputs, with the equations of PyTorch's cells, lies between these and the last
    layer. `layer_norm`: layer normalisation, as PyTorch's, comes before each activation. `obs_clip`: observations are
    whitened, `(obs - mean) * scale`, and clipped to plus and minus this; None: they are taken as they are.
    `table_rows`: observations are tables of so many rows, 2 to 1024 of the same width, and the network is the policy of
    `fastrl.networks.pointer_policy.PointerPolicy` for at least as many actions, of the kind "discrete", without layer
    normalisation, whitening and memory. `pooling`: observations begin with so many tables of so many rows, 1024 at most
    together, of so many numbers, which go through `fastrl.networks.encoders.RowPooling`, of all tables the same, before
    the hidden layers; other numbers follow. It goes with none of layer normalisation, whitening and memory.
    `num_threads`: how many share out large batches. ValueError: an option is out of range.
    """

    def __new__(
        cls,
        *,
        kind: Literal["discrete", "multi_discrete", "gaussian"],
        obs_dim: int,
        outputs: int,
        hidden: list[int],
        activation: Literal["tanh", "relu"],
        layer_norm: bool = False,
        obs_clip: float | None = None,
        nvec: list[int] | None = None,
        memory: Literal["none", "gru", "lstm"] = "none",
        memory_size: int = 0,
        table_rows: int | None = None,
        pooling: tuple[int, int, int] | None = None,
        num_threads: int = 1,
    ) -> Mlp: ...
    @property
    def num_weights(self) -> int:
        """Numbers that `load` reads."""

    @property
    def state_size(self) -> int:
        """Length S of a row's state: the recurrent layer's outputs, then an LSTM's cell; 0 without memory."""

    def load(self, buffer: Buffer) -> None:
        """Copies new weights from a contiguous buffer of `num_weights` float32: with `obs_clip` mean [D] and scale [D];
        then of each layer the weights [inputs, outputs] and biases [outputs], of a hidden one with layer normalisation
        gains and shifts [outputs], of a recurrent one those of its inputs,
        then those of its state, gates in PyTorch's order; then with "gaussian" the logarithms of the standard
        deviations [A]; of a policy of tables its parameters in PyTorch's order. TypeError: no buffer. ValueError:
        another size, or NaN or infinity in it; the weights are those from before then."""

    def act(
        self,
        obs: NDArray[np.float32],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        """Writes an action for each row of `obs` [K, D] into `actions` (int64 [K]; with "multi_discrete" [K, n]; with
        "gaussian" float32 [K, A], not bounded), and its log-probability (log-density) into `log_probs` [K].

        Drawn with the random numbers of step `steps` [K] in `streams` [K], those of `fastrl.utils.seeding.uniforms`
        (`uniforms_of_parts` with "multi_discrete"), by inverting the cumulative distribution as
        `fastrl.networks.distributions.sample_actions` does; normal numbers after Box and Muller. `greedy`: the first of
        the most probable actions, the mean. `masks` [K, A], not with "gaussian": which choices are allowed; with none,
        all are. `states` [K, S]: the memory of each row's episode, zeros at its start; read and replaced. Where
        observations are NaN the action is some action, and its log-probability NaN. RuntimeError: `load` was never
        called."""

    def outputs(
        self,
        obs: NDArray[np.float32],
        out: NDArray[np.float32],
        states: NDArray[np.float32] | None = None,
    ) -> None:
        """Writes logits or means [K, A] at `obs` [K, D], and replaces `states` [K, S] as `act` does. RuntimeError:
        `load` was never called."""

def choose_bounded(
    outputs: NDArray[np.float32],
    streams: NDArray[np.uint64],
    steps: NDArray[np.int64],
    actions: NDArray[np.float32],
    log_probs: NDArray[np.float32],
    *,
    noise: float | None = None,
    greedy: bool = False,
) -> None:
    """Writes actions [K, n] from -1 to 1 and their log-densities [K]: tanh of draws of a Gaussian, whose means and
    logarithms of deviations `outputs` [K, 2 n] has. With `noise` tanh of outputs [K, n], with normal noise of that
    deviation added, within the bounds, and log-densities 0. `greedy`: without draws. Random numbers are those of
    `fill_normals`, of each stream [K] at a step [K]."""

def scale_actions(
    draws: NDArray[np.float32], scaling: NDArray[np.float32], actions: NDArray[np.float32]
) -> None:
    """Writes actions [..., n] of draws [..., n]: `draws * scale + middle`, kept from `low` to `high`. `scaling` [4, n]
    has these four."""

def fill_noise(stream: int, step: int, out: NDArray[np.float32]) -> None:
    """Fills `out` [size] with independent standard normal numbers of a stream at a step: up to rounding those of
    `fill_normals`, in a tenth of the time."""

def fill_normals(streams: NDArray[np.uint64], steps: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Fills `out` [K, size] with independent standard normal numbers of each stream [K] at a step [K], after Box and
    Muller: those that `Mlp.act` draws."""

def fill_uniforms(streams: NDArray[np.uint64], steps: NDArray[np.int64], out: NDArray[np.float32]) -> None:
    """Fills `out` [K, parts] with uniform numbers from 0 to 1 - 2**-24 of each stream [K] at a step [K]."""

def replay_cage2(
    mode: Literal["decisions", "seed"],
    ruleset: str,
    red_agent: str,
    seed: int,
    arrays: dict[str, NDArray[Any]],
    scenario: Cage2Scenario | None = None,
) -> tuple[int, int, tuple[int, int | None, str] | None]:
    """Replays a trace of a scenario, None for Scenario 2 (arrays as in a trace file), from its recorded decisions or
    from its seed. With the red agent `"given"` red's actions are read, and there is an array `red_known`.

    Returns the steps, how many of them differ from the record, and the first difference: episode, step (None at the
    reset) and words. KeyError: an array is missing. TypeError, ValueError: one is of another dtype or shape, or
    holds an impossible value.
    """

def replay_cage4(
    mode: Literal["decisions", "seed"],
    red_agent: str,
    seed: int,
    chained: bool,
    steps: int,
    arrays: dict[str, NDArray[Any]],
) -> tuple[int, int, tuple[int, int | None, str] | None]:
    """Replays a trace of episodes of `steps` steps from its recorded networks and decisions, or from its seed: of the
    first episode, 1 more for each, or, `chained`, of one generator that has drawn a network before the first episode.

    Arrays as in a trace file, one-dimensional, `host` uint8. Result and errors as of `replay_cage2`.
    """

@final
class TrafficScene:
    """The scene of a traffic simulator at one moment: lanes, cars, obstacles and the camera. A simulator's `scene`
    makes it; it does not change."""

    @property
    def time(self) -> float:
        """Seconds since the episode began."""

    @property
    def speeds(self) -> tuple[float, float]:
        """The range of speeds that colours show, m/s."""

    @property
    def lane_lengths(self) -> list[float]:
        """Metres, of each lane."""

    @property
    def closed(self) -> bool:
        """True if a lane leads back to its beginning."""

    def cars(self) -> dict[str, NDArray[Any]]:
        """The cars' properties, [V] each: id int64 (unique in the episode), x, y, heading,
        length, width, speed, along float64 (m, rad, m/s; the centre; along the lane), lane int64, agent int64 (the row
        of the agent that drives it, -1 if none does), crashed bool."""

    def links(self) -> dict[str, NDArray[Any]]:
        """Radio links between cars, [L] each: sender and receiver int64 (ids of cars), quality (probability that the
        last message arrived) and age (of information, s) float64."""

    def draw(
        self,
        out: NDArray[np.uint8],
        *,
        scaling: float,
        centering: tuple[float, float],
        legend: bool,
        trail: list[TrafficScene],
    ) -> None:
        """Draws it into `out` uint8 [height, width, 3] of any size, and faintly the cars of the scenes of `trail`.
        `fastrl.envs.viewer.View` explains the options. ValueError if one of them is out of range."""

    def filled_height(
        self, size: tuple[int, int], *, scaling: float, centering: tuple[float, float], legend: bool
    ) -> int:
        """The height that all lanes fill in a picture of `size`, width and height in pixels; at most that height. The
        other options are those of `draw`."""

    def between(self, later: TrafficScene, share: float) -> TrafficScene:
        """The scene between this one (`share` 0) and a later one (`share` 1) of the same episode; cars move evenly."""

@final
class RingVec(NativeVec):
    """N of Flow's ring roads, n `num_vehicles`, A `num_agents`, rows N*A. `fastrl.envs.traffic.ring.RingOptions`
    explains the
    options. Exceptions as for `NativeVec`, and ValueError for an action that is NaN or out of bounds."""

    def __new__(
        cls,
        num_envs: int,
        *,
        num_vehicles: int,
        num_agents: int,
        ring_length: tuple[float, float],
        dt: float,
        ballistic: bool,
        sims_per_step: int,
        warmup_steps: int,
        horizon: int,
        noise: float,
        bunching: float,
        max_accel: float,
        max_decel: float,
        distance_scale: float | None,
        memory: float,
        safe_speed: bool,
        speed_weight: float,
        action_weight: float,
        drive: str,
        desired_speed: float | None,
        num_threads: int,
        autoreset_mode: str,
    ) -> RingVec: ...
    @property
    def num_vehicles(self) -> int: ...
    @property
    def agent_vehicles(self) -> list[int]:
        """The vehicle that each agent drives, [A]."""

    def vehicles(
        self,
        positions: NDArray[np.float64],
        speeds: NDArray[np.float64],
        accelerations: NDArray[np.float64],
        ring_lengths: NDArray[np.float64],
    ) -> None:
        """Writes where the vehicles are, m from where the ring begins, m/s and m/s^2, [N, n] each, and the
        circumferences, m, [N]."""

    def scene(self, env: int) -> TrafficScene:
        """The scene of a ring. IndexError if there is no such ring, `gymnasium.error.ResetNeeded` before its first
        reset."""

    def set_vehicles(
        self, index: int, ring_length: float, positions: NDArray[np.float64], speeds: NDArray[np.float64]
    ) -> None:
        """Sets positions and speeds of the vehicles [n] of a ring. ValueError: they are out of order or overlap.
        IndexError: there is no such ring."""

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Results of ended episodes, as `fastrl.envs.MultiAgentVectorEnv.episodes` gives them."""

@final
class IdmPlatoon:
    """SUMO's IDM drivers one behind the other, on a ring or, with `ring_length` None, on an open road: no agents, no
    noise. `positions` are the fronts, m, ascending (vehicle i follows i + 1); `speeds` m/s, from 0; `dt` s. ValueError:
    they are out of order or overlap."""

    def __new__(
        cls,
        positions: list[float],
        speeds: list[float],
        *,
        ring_length: float | None = None,
        dt: float = 0.1,
        ballistic: bool = False,
    ) -> IdmPlatoon: ...
    def step(self, num_steps: int = 1, commands: list[float | None] | None = None) -> None:
        """Moves them all. `commands`: a vehicle's speed after the step, m/s, or None for one that drives itself."""

    @property
    def positions(self) -> NDArray[np.float64]: ...
    @property
    def speeds(self) -> NDArray[np.float64]: ...
    @property
    def accelerations(self) -> NDArray[np.float64]:
        """Accelerations of the last step, m/s^2."""

def ring_equilibrium_speed(num_vehicles: int, ring_length: float) -> float:
    """See `fastrl.envs.traffic.ring.equilibrium_speed`."""

def path_loss_37885(condition: str, distance: float, frequency: float) -> float:
    """See `fastrl.envs.traffic.links.path_loss`."""

class QueueError(RuntimeError):
    """A queue was used in a way that cannot work, or its memory is damaged; the text says how."""

if sys.version_info >= (3, 13):
    from queue import ShutDown as ShutDown
else:
    class ShutDown(Exception):  # noqa: N818 (its name in Python's queue)
        """The queue was shut down; `queue.ShutDown` where Python has it."""

@final
class QueueMemory:
    """A queue's memory, before Python knows the dtype of what lies in it; for `fastrl.queue`."""

    @staticmethod
    def create(
        record_size: int,
        schema: str,
        capacity: int,
        *,
        max_producers: int,
        policy: str,
        order: str,
        shared: bool,
        name: str | None,
    ) -> QueueMemory: ...
    @staticmethod
    def attach(name: str) -> QueueMemory: ...
    @property
    def schema(self) -> str:
        """The description of the records that the creator gave."""

    @property
    def record_size(self) -> int: ...

@disjoint_base
class Queue:
    """The base of `fastrl.queue.Queue`; that module explains it.

    Whatever the call: `QueueError` when this queue is closed, another process or object consumes (for those that take
    records), another thread is in such a call right now, or records are being shown by `peek`. A queue that is not
    shared cannot be used in a forked child (`QueueError`). `timeout` is in seconds, None to wait for ever;
    ValueError: it is negative or not a number.
    """

    def __new__(cls, memory: QueueMemory, dtype: np.dtype) -> Self: ...
    @property
    def name(self) -> str | None:
        """The name by which `attach` finds it; None if it is not shared."""

    @property
    def dtype(self) -> np.dtype[np.void]: ...
    @property
    def capacity(self) -> int:
        """Records that each producer may have waiting; with `order="total"` all of them together. A power of two."""

    @property
    def max_producers(self) -> int:
        """The largest number of producers at a time."""

    @property
    def policy(self) -> Literal["block", "error", "drop_newest", "drop_oldest"]: ...
    @property
    def order(self) -> Literal["per_producer", "total"]: ...
    def producer(self) -> Producer:
        """Makes a producer. QueueError: `max_producers` living ones exist. After a shutdown one can be made, but
        its first record raises `ShutDown`."""

    def get(self, block: bool = True, timeout: float | None = None) -> np.void:
        """A copy of the next record. `Empty`: none came within `timeout`, or at once with `block=False`. `ShutDown`:
        the queue was shut down, and is empty unless that was immediate."""

    def get_many(
        self,
        max: int,  # noqa: A002
        out: NDArray[np.void] | None = None,
        timeout: float | None = None,
    ) -> NDArray[np.void]:
        """Copies of 1 to `max` records, as many as are there once one is. Written to the beginning of `out` ([at
        least max], of the queue's dtype, C-contiguous), of which a view is returned; without it into a new array.
        Exceptions as for `get`; TypeError, ValueError: an `out` of another kind."""

    def peek(
        self,
        max: int | None = None,  # noqa: A002
        timeout: float | None = None,
    ) -> Peek:
        """`with q.peek(max) as rows:` gives a read-only view [k] of 1 to `max` records that lie side by side in the
        queue: all of one producer, up to the end of its ring. At the end of the block, however it ends, they are
        consumed, and producers write over them: copy what is to stay. Nothing else can be taken meanwhile. With
        policy "drop_oldest" none of them is dropped. Exceptions as for `get`."""

    def counters(self) -> tuple[list[tuple[str, int]], list[list[tuple[str, int]]]]:
        """The counters that `stats` is made of: those of the queue and those of each producer."""

    def shutdown(self, immediate: bool = False) -> None:
        """From now on `put` raises `ShutDown`, and so does `get` once the queue is empty, or at once if `immediate`.
        All waiting calls return. For all processes, and for good."""

    def close(self) -> None:
        """Frees the consumer's role and, in the process that made the queue, removes its name: no process can attach
        any more, attached ones continue (`shutdown` stops them). Records that `peek` shows count as consumed.
        Views of records stay valid memory. May be called again."""

@final
class Peek:
    """A view of records in the queue, which `Queue.peek` returns."""

    def __enter__(self) -> NDArray[np.void]: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class OffPolicySteps:
    """Gradient steps of SAC, TD3 and IQL: `fastrl.algorithms.compiled_off_policy` without torch. Policy, E `critics`
    and IQL's value function are multi-layer perceptrons with ReLU and hidden layers of the widths `hidden`, on D
    `obs_dim` numbers; of continuous actions critics see the n `numbers` too, of M discrete ones (`choices`) they have
    M outputs. For threads to share: calls take turns.

    `tau`: how far targets move. Of SAC: `has_temperature`, False for a temperature of 0; `target_entropy`, None where
    the temperature does not learn; `entropy_backup`; `mean_value`, whether the policy increases the mean of the
    critics, not the least. The noise is TD3's, the next three are IQL's. `bf16`: hidden layers multiply bfloat16 and
    add up float32. At most `num_threads` threads compute; the numbers are the same.

    Parameters are vectors as `fastrl.networks.ensemble.Ensemble` has them: of each layer weights [E, inputs, outputs],
    then biases [E, outputs]; E is 1 for policy and value function. ValueError: an option is out of range.
    """

    def __new__(
        cls,
        algorithm: Literal["sac", "td3", "iql"],
        *,
        obs_dim: int,
        hidden: list[int],
        critics: int,
        numbers: int = 0,
        choices: int = 0,
        tau: float = 0.005,
        has_temperature: bool = True,
        target_entropy: float | None = None,
        entropy_backup: bool = True,
        mean_value: bool = False,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        expectile: float = 0.7,
        beta: float = 3.0,
        max_weight: float = 100.0,
        bf16: bool = False,
        num_threads: int = 1,
    ) -> OffPolicySteps: ...
    @property
    def num_parameters(self) -> tuple[int, int]:
        """C and P: of all critics, and of the policy's optimiser, which has the logarithm of SAC's temperature, then
        the policy, then IQL's value function."""

    def step(
        self,
        critics: tuple[NDArray[np.float32], ...],
        policy: tuple[NDArray[np.float32], ...],
        targets: NDArray[np.float32],
        sums: NDArray[np.float32],
        td_errors: NDArray[np.float32],
        obs: NDArray[np.float32],
        next_obs: NDArray[np.float32],
        actions: NDArray[Any],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        *,
        learning_rate: float,
        learns_policy: list[bool],
        target_critics: list[int],
        target_policy: NDArray[np.float32] | None = None,
        masks: NDArray[np.bool_] | None = None,
        next_masks: NDArray[np.bool_] | None = None,
        noise: int | None = None,
        next_noise: int | None = None,
        number: int = 0,
    ) -> None:
        """Takes for each of K minibatches a step of Adam along the critics' loss, where `learns_policy` [K] is True one
        along the loss of the policy too, and moves the targets, those of TD3 only when its policy learns. Without the
        GIL. B transitions are those of the first minibatch, then as many of the second and so on.

        `critics`, `policy`: what learns, Adam's two moments of it, [C] or [P], and the number of steps float32 [].
        `targets` [C] and TD3's `target_policy` follow. `td_errors` [B] get the absolute TD errors before each step,
        means over the critics. To `sums` the means over each minibatch are added: the critics' loss, the value and the
        TD error; of SAC the policy's loss, the entropy and the temperature; of TD3 the policy's loss; of IQL the
        losses of policy and value function, the value and the weight of imitation.

        `obs`, `next_obs` [B, D]; `actions` float32 [B, n] or int64 [B]; `rewards`, `discounts` [B]; `masks`,
        `next_masks` [B, M], True where an action is allowed. `noise` (SAC) and `next_noise` (SAC, TD3): streams of the
        normal numbers of `fill_noise` at steps `number`, `number` + 1, ... `target_critics`: those whose least value
        counts, as many for each minibatch, one after the other; not for IQL.

        ValueError, TypeError: an array does not fit, or is missing, or names an action that is not there.
        """

@final
class QSteps:
    """Gradient steps of deep Q-learning: `fastrl.algorithms.compiled_q` without torch. The
    network is a multi-layer perceptron with ReLU and hidden layers of the widths `hidden`, on D `obs_dim` numbers, with
    A `actions` outputs; a dueling one has the last hidden layer twice. For threads to share: calls take turns.

    Parameters and gradients are vectors as PyTorch has those of `fastrl.networks.q_network.QNetwork`: of each linear
    layer weights [outputs, inputs], then biases. At most `num_threads` threads compute; the numbers are the same.
    ValueError: a width is out of range.
    """

    def __new__(
        cls,
        *,
        obs_dim: int,
        hidden: list[int],
        actions: int,
        dueling: bool = False,
        bf16: bool = False,
        num_threads: int = 1,
    ) -> QSteps: ...
    @property
    def num_parameters(self) -> int:
        """P."""

    def step(
        self,
        online: tuple[NDArray[np.float32], ...],
        target: NDArray[np.float32],
        gradient: NDArray[np.float32],
        sums: NDArray[np.float32],
        td_errors: NDArray[np.float32],
        obs: NDArray[np.float32],
        next_obs: NDArray[np.float32],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        weights: NDArray[np.float32],
        *,
        double: bool,
        huber: float,
        learning_rate: float,
        epsilon: float,
        steps: list[bool],
        taus: list[float | None],
        max_grad_norm: float | None = None,
        next_masks: NDArray[np.bool_] | None = None,
        demonstrations: int = 0,
        margin: float = 0.0,
        margin_coef: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        """Adds, for each of K minibatches, `weight` times the gradient of the loss to `gradient` [P], and writes the
        absolute TD errors to `td_errors` [B]. Where `steps` [K] is True it then takes a step of Adam along the
        gradient, scaled down to `max_grad_norm`, zeroes it, and moves the target by `taus` [K], if there is one.
        Without the GIL. B transitions are those of the first minibatch, then as many of the second and so on.

        `online`: parameters and Adam's two moments [P], and the number of steps float32 []. `target` [P]; `obs`,
        `next_obs` [B, D]; `actions`, `rewards`, `discounts`, `weights` of importance [B]; `next_masks` [B, A], True
        where an action is allowed. `double`: the network that learns chooses the next action. Errors beyond `huber`
        count linearly. The last `demonstrations` transitions of a minibatch that is alone have the loss of their
        `margin`, with the weight `margin_coef`. To `sums` [4] the loss, the mean value of the actions, the mean TD
        error, and with a step the gradient's norm are added.

        ValueError, TypeError: an array does not fit, or names an action that is not there.
        """

@final
class PpoUpdate:
    """Takes the gradient steps of PPO for an actor and a critic, multi-layer perceptrons with hidden layers of the same
    widths: `fastrl.algorithms.compiled_update.CompiledUpdate` without torch. D `obs_dim`, A the actor's outputs.

    `hidden`: widths of the hidden layers, `activation` after each. Of categorical actions `nvec` has the choices of
    each of their n numbers, and A is their sum; of Gaussian ones `numbers` is n, and A the same, with one standard
    deviation each that does not depend on the observation. The actor sees the first `actor_inputs` numbers of an
    observation (None: all). The critic has `critic_outputs`, one for each agent that it values. `networks`: which of
    the two learn; one alone needs nothing of the other, whose losses are 0. `layer_norm`: layer normalisation, as
    PyTorch's, comes before the activation of hidden layers. `bf16`: hidden layers multiply bfloat16 and add up float32,
    which they do not do with layer normalisation. `table_rows`: observations are tables of so many rows, 2 to 1024 of
    the same width, and both networks those of `fastrl.networks.pointer_policy.PointerPolicy`; `nvec` then is one
    number, at least as large, and the five options before this one have their defaults. `pooling`: as of `Mlp`, of both
    networks; it goes with none of `actor_inputs`, `layer_norm`, `bf16` and `table_rows`. `shared_trunk`: with `pooling`
    an actor and a critic of one value are one network but for their last layers. ValueError: an option is out of range.
    """

    def __new__(
        cls,
        *,
        obs_dim: int,
        hidden: list[int],
        activation: Literal["tanh", "relu"],
        nvec: list[int] | None = None,
        numbers: int = 0,
        actor_inputs: int | None = None,
        critic_outputs: int = 1,
        networks: Literal["both", "actor", "critic"] = "both",
        layer_norm: bool = False,
        bf16: bool = False,
        table_rows: int | None = None,
        pooling: tuple[int, int, int] | None = None,
        shared_trunk: bool = False,
    ) -> PpoUpdate: ...
    @property
    def num_parameters(self) -> int:
        """P, of the networks that learn; of an actor of Gaussians n more."""

    def run(
        self,
        parameters: NDArray[np.float32],
        mean: NDArray[np.float32],
        square: NDArray[np.float32],
        obs: NDArray[np.float32],
        groups: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        advantages: NDArray[np.float32],
        returns: NDArray[np.float32],
        values: NDArray[np.float32],
        masks: NDArray[np.bool_] | None,
        learned: NDArray[np.bool_] | None,
        order: NDArray[np.int64],
        *,
        steps: int,
        minibatches: int,
        max_grad_norm: float,
        learning_rate: float,
        num_threads: int,
        clip_range: float = 0.0,
        value_clip: float | None = None,
        value_coef: float = 1.0,
        entropy_coef: float = 0.0,
        normalize_advantages: bool = False,
        target_kl: float | None = None,
    ) -> tuple[float, float, float, float, float, float, int]:
        """Learns from S samples, of which some may share one of G observations, without the GIL.

        Changed in place are `parameters` [P] (the logarithms of standard deviations of Gaussians, which stay within -5
        and 2; then of each layer of the actor, then of the critic weights [outputs, inputs] and biases, and of hidden
        ones with layer normalisation gains and shifts) and Adam's moments `mean` [P] and `square` [P] after `steps`
        steps (Kingma and Ba, 2015, with epsilon 1e-5).

        `obs` [G, D]; `groups` [S]: which of these a sample has; `masks` [S, A], True where an action is allowed;
        `actions` int64 [S] with one number, else [S, n], or float32 [S, n] of Gaussians; `log_probs`, `advantages`,
        `returns` and `values` [S], or [S, `critic_outputs`] if there are several, like `learned`, True where a return
        is learned from. For a critic alone `actions` [0, 0], `log_probs` [0] and `advantages` [0] are empty. `order`
        [E, S]: in each of E epochs the samples in so many `minibatches`, whose sizes differ by one at most.
        `normalize_advantages`: those of a minibatch are brought to mean 0 and sample deviation 1. `target_kl`: the
        update ends after a step in which the KL was larger. `num_threads`: how many share out large minibatches; the
        numbers are the same to the last bit.

        Returns means over gradient steps: the policy's loss, the value's, entropy, KL, clipped share, the gradient's
        norm before clipping; and the number of steps.

        ValueError: an array does not fit, or names an action, sample or observation that is not there; `minibatches` or
        a clip range is out of range.
        """

    def values(
        self,
        parameters: NDArray[np.float32],
        obs: NDArray[np.float32],
        rows: NDArray[np.int64],
        out: NDArray[np.float32],
        *,
        num_threads: int,
    ) -> None:
        """Writes the critic's values of some rows of `obs` [G, D], int64 [R], to the same rows of `out` [G], or
        [G, `critic_outputs`] if there are several, without the GIL; arguments as of `run`. ValueError: an array does
        not fit, there is no such row, or there is no critic."""

    def imitate(
        self,
        parameters: NDArray[np.float32],
        mean: NDArray[np.float32],
        square: NDArray[np.float32],
        obs: NDArray[np.float32],
        actions: NDArray[Any],
        *,
        steps: int,
        squared: bool,
        label_smoothing: float,
        entropy_coef: float,
        max_grad_norm: float,
        learning_rate: float,
        num_threads: int,
    ) -> tuple[float, float, float, float]:
        """Takes a gradient step of an actor alone along the loss of behaviour cloning,
        `fastrl.algorithms.imitation_loss.imitation_loss`, without the GIL.

        Arguments are as of `run`; `obs` [B, D] and `actions` of an expert. `squared`: means of Gaussians learn from
        squared errors. `label_smoothing`: share of the target's probability that all choices have in equal parts.

        Returns the loss (without label smoothing and entropy), the share of the expert's numbers that are the likeliest
        or the mean square error, the entropy, and the gradient's norm before clipping. ValueError: an array does not
        fit, there is no sample, or an action is not there; `label_smoothing` is out of range; the critic learns, too.
        """

    def learn_values(
        self,
        parameters: NDArray[np.float32],
        mean: NDArray[np.float32],
        square: NDArray[np.float32],
        obs: NDArray[np.float32],
        groups: NDArray[np.int64],
        actions: NDArray[np.int64],
        returns: NDArray[np.float32],
        order: NDArray[np.int64],
        *,
        steps: int,
        minibatches: int,
        huber: float,
        max_grad_norm: float,
        learning_rate: float,
        epsilon: float,
        num_threads: int,
    ) -> tuple[float, float, float, float, int]:
        """Takes gradient steps of a critic alone, whose outputs are values of actions, along half the squared errors of
        those of the `actions` [S] that were taken to `returns` [S]; errors beyond `huber` count linearly. Without the
        GIL.

        Other arguments are as of `run`; `epsilon`: Adam's.

        Returns means over gradient steps: the loss, the value of the actions, absolute errors, the gradient's norm
        before clipping; and the number of steps. ValueError: an array does not fit, or names an action, sample or
        observation that is not there; an option is out of range; an actor learns, too.
        """

@final
class Producer:
    """One producer of a queue, for one thread at a time in the process that made it; otherwise `QueueError`, as when it
    is closed or records are reserved. At the end of a `with` block, or when it is deleted, another
    producer can take its place.

    `timeout` is in seconds, None to wait for ever; it matters only with policy "block". `ShutDown`: the queue was shut
    down.
    """

    def put(self, row: Any, timeout: float | None = None) -> None:
        """Puts one record: a scalar or array of one record of the queue's dtype (fast), or a tuple of its fields'
        values or a mapping from their names (through numpy, slower). `Full`: there was no room. TypeError,
        ValueError, OverflowError: the row is no such thing."""

    def put_many(self, rows: NDArray[np.void], timeout: float | None = None) -> int:
        """Puts the records of a C-contiguous array of the queue's dtype, of any shape, in C order. Returns how many.

        Policy "block": they are put as room becomes free, so the consumer may see the first before the last are
        there. If the time is over before all are put, how many were, less than `rows.size`; `Full` if none was.
        "error": all or none; `Full`. "drop_newest", "drop_oldest": always `rows.size`; `stats` counts what was dropped.
        TypeError: another dtype. ValueError: a strided view."""

    def reserve(self, n: int, timeout: float | None = None) -> Reservation:
        """`with p.reserve(n) as rows:` gives a writeable view [n] of memory in the queue, which holds whatever it held
        before. At the end of the block the records are published, all at once; if the block ends with an exception,
        not at all. After that the view is read-only: keep no view of a part of it to write through, since it would
        write to what the consumer is reading.

        n: at most half of the capacity (ValueError). `Full` as for `put`; with policies that drop, where there is no
        room the view is one of other memory, and what is written there is dropped. With `order="total"` what was
        reserved and not published takes room until the consumer comes by."""

    def close(self) -> None:
        """Frees its place; what is reserved is not published. May be called again."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Reservation:
    """Reserved records, which `Producer.reserve` returns."""

    def __enter__(self) -> NDArray[np.void]: ...
    def __exit__(self, exception: type[BaseException] | None, *rest: object) -> None: ...

@final
class Weights:
    """A weight broadcast: a block of `nbytes` bytes in shared memory, of which processes see the newest version.

    The process that creates it writes. It can be pickled for workers, or opened by name; they read. RuntimeError: it is
    closed. ValueError: `nbytes` is less than 1 or more than memory can hold. OSError: there is no room in /dev/shm,
    which takes twice `nbytes`.
    """

    def __new__(cls, nbytes: int) -> Self: ...
    @classmethod
    def attach(cls, name: str) -> Weights:
        """Opens the weights of this name, to read. FileNotFoundError: there are none. RuntimeError: what is there is
        damaged, of another version of fastrl, user or PID namespace, or something else."""

    @property
    def name(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def version(self) -> int:
        """The newest version; 0 before the first."""

    def publish(self, data: Buffer) -> int:
        """Makes a copy of these `nbytes` bytes the newest version. Returns its number, one more than the last. Never
        waits. RuntimeError: this is not the object, or the process, that created it, or another thread is
        publishing. ValueError: another size, or not contiguous. TypeError: no buffer."""

    def read(self, out: Buffer, newer_than: int = 0) -> int:
        """Copies the newest version into `out`, writeable and of `nbytes` bytes, and returns its number; or returns 0
        and leaves `out` alone, if there is none newer than `newer_than`. ValueError, TypeError as for `publish`."""

    def close(self) -> None:
        """Unmaps the memory; the creator removes its name, too. Processes that have it open continue. May be called
        again."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def __reduce__(self) -> tuple[Any, tuple[str]]: ...

@final
class LockstepBarrier:
    """A lockstep barrier in shared memory: the process that creates it leads, and `members` others each do their part
    of every round. `nbytes` bytes of data that they work on lie beside it. A round takes a few microseconds where no
    process has to be woken; a waiter polls, then yields its core, and sleeps after a tenth of a millisecond.

    It can be pickled for members, or opened by name. ValueError: a number below 1, or more than memory can hold.
    OSError: there is no room in /dev/shm. RuntimeError, in every method: two threads use it at once.
    """

    def __new__(cls, members: int, nbytes: int) -> Self: ...
    @classmethod
    def attach(cls, name: str) -> LockstepBarrier:
        """Opens the barrier of this name, to be a member. FileNotFoundError: there is none. RuntimeError: the memory is
        damaged, of another version of fastrl, user or PID namespace, or holds something else."""

    @property
    def name(self) -> str: ...
    @property
    def members(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def data(self) -> NDArray[np.uint8]:
        """A view of the shared bytes [nbytes], aligned to a page, zeros at first; it stays valid. The leader may touch
        them between rounds, members within a round."""

    def start_round(self) -> None:
        """Starts a round; for the leader. RuntimeError: the last one is not complete, or this process does not lead."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, without the GIL, until all members are done, at most `timeout` seconds; returns whether they are. For
        the leader. Signals are handled meanwhile: an exception of a handler is raised here, and the
        round continues."""

    def missing(self) -> list[int]:
        """Members that are not done with the present round."""

    def mark_dead(self, member: int) -> None:
        """Marks a missing member as dead, whose part counts as done; for the leader."""

    def join(self, member: int) -> None:
        """Takes part from the next round on, also in place of a dead member; for a member."""

    def done(self) -> None:
        """Marks the part of this member as done. From then on it may not touch the shared bytes."""

    def next(self) -> None:
        """Marks the part of this member as done, then waits, without the GIL, for the next round. RuntimeError: not
        joined."""

    def close(self) -> None:
        """Removes the name. Processes that have it open continue; the last one to close frees the memory."""

    def __reduce__(self) -> tuple[Any, tuple[str]]: ...
