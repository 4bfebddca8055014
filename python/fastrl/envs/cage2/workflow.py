"""CAGE Challenge 2 with workflows: a workflow is the order of unit types in which the defender should fix hosts.

The 13 hosts are of five types (`UNIT_TYPES`): the Defender, three enterprise hosts, the operational server, three
operational hosts and five user hosts. A **workflow** is an order of the five, written as a tuple of their indices, the
most urgent first; there are 120 (`WORKFLOWS`).

A *fix* is a Remove or a Restore. It *complies* if its target is of the first type in the workflow's order on whose
hosts red holds a session, in the true state before the step; if red holds no session, any fix complies. Sessions on
User0 do not count, because red's foothold there is permanent. The **compliance** of an episode is the share of its
fixes that comply, 0.5 if there was none.

**Observation**, float32 [77]: the challenge's 52 bits, then the workflow as a 5x5 one-hot, row by row: entry
52 + 5 r + t is 1 if position r of the order is type t. (With `memory` and `observe` their values come before it.)

**Reward**: the game's, plus `compliance_weight` x the change of the compliance so far at each fix. The first step of an
episode adds `compliance_weight` x 0.5, the compliance without a fix, for any action; so the added rewards of an episode
sum to `compliance_weight` x its compliance.

**End**: the last step of an episode terminates it, because compliance is defined for the episode as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from fastrl._native import _rust
from fastrl.envs.cage2.env import Cage2Games, GameOptions
from fastrl.utils.names import did_you_mean

Workflow = tuple[int, ...]
"""Indices into `UNIT_TYPES`, each once, the most urgent first."""

UNIT_TYPES: tuple[str, ...] = tuple(_rust.CAGE2_UNIT_TYPES)
TYPE_OF_HOST: tuple[int, ...] = tuple(_rust.CAGE2_TYPE_OF_HOST)
"""Index into `UNIT_TYPES` of each of `fastrl.envs.cage2.env.HOSTS`."""
WORKFLOWS: tuple[Workflow, ...] = tuple(itertools.permutations(range(len(UNIT_TYPES))))
WORKFLOW_LEN = len(UNIT_TYPES) ** 2
"""Entries that a workflow adds to an observation."""


def check_workflow(workflow: Iterable[int]) -> Workflow:
    """The workflow as a tuple of plain integers.

    Raises:
        ValueError: not an order of the five types.
    """
    order = tuple(int(t) for t in workflow)
    if sorted(order) != list(range(len(UNIT_TYPES))):
        raise ValueError(f"workflow: expected each of 0 to {len(UNIT_TYPES) - 1} once, got {list(order)}")
    return order


def parse_workflow(text: str) -> Workflow:
    """Parses the name of a workflow: the five types, the most urgent first, such as
    ``"op_server,enterprise,op_host,defender,user"``.

    Case does not matter, hyphens and blanks in a name count as underscores, and ``>`` may replace the commas.

    Raises:
        ValueError: an unknown, missing or repeated type.
    """
    names = [
        name.strip().lower().replace("-", "_").replace(" ", "_") for name in text.replace(">", ",").split(",")
    ]
    for name in names:
        if name not in UNIT_TYPES:
            raise ValueError(
                f"workflow: unknown unit type {name!r}, expected {', '.join(UNIT_TYPES)} in some order"
                f"{did_you_mean(name, UNIT_TYPES, 0.4)}"
            )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"workflow: expected each of {', '.join(UNIT_TYPES)} once, got {name!r} twice")
    missing = [name for name in UNIT_TYPES if name not in names]
    if missing:
        raise ValueError(
            f"workflow: expected all of {', '.join(UNIT_TYPES)} in some order, {', '.join(missing)} missing"
        )
    return tuple(UNIT_TYPES.index(name) for name in names)


def workflow_name(workflow: Iterable[int]) -> str:
    """The name of a workflow, for `parse_workflow`: the types, the most urgent first, with commas between."""
    return ",".join(UNIT_TYPES[t] for t in check_workflow(workflow))


def encode(workflows: NDArray[np.integer] | Sequence[Workflow]) -> NDArray[np.float32]:
    """The one-hot code of workflows [N, 5] at the end of observations, float32 [N, 25]."""
    orders = np.asarray(workflows)
    return np.eye(len(UNIT_TYPES), dtype=np.float32)[orders].reshape(len(orders), WORKFLOW_LEN)


class Cage2WorkflowVectorEnv(Cage2Games):
    """N games of CAGE Challenge 2 with workflows, stepped natively; the module documents observations and rewards.

    Args:
        num_envs: number of games, N.
        workflow: of the first episodes of all games; `set_workflows` changes it.
        compliance_weight: weight of compliance in the reward, 0 or more.
        games: ruleset, red_agent, episode_length, max_episode_steps, memory, observe, actions, num_threads,
            autoreset_mode: as in `Cage2VectorEnv`. Episodes terminate after that many steps.

    Raises:
        ValueError: an option out of its range; the message says what was expected.
    """

    _native: _rust.Cage2WorkflowVec

    def __init__(
        self,
        num_envs: int = 1,
        *,
        workflow: Workflow = WORKFLOWS[0],
        compliance_weight: float = 1.0,
        **games: Unpack[GameOptions],
    ) -> None:
        order = check_workflow(workflow)
        self.compliance_weight = float(compliance_weight)
        super().__init__(
            _rust.Cage2WorkflowVec,
            {"compliance_weight": self.compliance_weight},
            num_envs,
            render_modes=(),
            code_len=WORKFLOW_LEN,
            **games,
        )
        self.set_workflows([order] * self.num_envs)

    def set_workflows(self, workflows: NDArray[np.integer] | Sequence[Workflow]) -> None:
        """Sets the workflow of each game, [N, 5], from its next episode on.

        A game that is at the start of an episode uses it for that episode already; `observe_into` then writes the new
        observation.

        Raises:
            ValueError: another shape, or a row that is no order of the five types. Nothing has changed then.
        """
        orders = np.asarray(workflows)
        if orders.shape != (self.num_envs, len(UNIT_TYPES)) or orders.dtype.kind not in "iu":
            expected = f"integers of shape ({self.num_envs}, {len(UNIT_TYPES)})"
            raise ValueError(f"workflows: expected {expected}, got {orders.dtype} of shape {orders.shape}")
        self._native.set_workflows(np.ascontiguousarray(orders.clip(-1, len(UNIT_TYPES)), np.int8))

    def workflows(self) -> NDArray[np.int8]:
        """The workflows of the present episodes, [N, 5]."""
        out = np.empty((self.num_envs, len(UNIT_TYPES)), np.int8)
        self._native.workflows(out)
        return out

    def episodes(self) -> dict[str, NDArray[Any]]:
        """Statistics of the last finished episode of each game, [N]:

        - ``finished`` int64: the number of episodes finished so far; where it is 0 the others are undefined.
        - ``return`` float64: the game's own, without rewards for compliance.
        - ``compliance`` float64.
        - ``fixes`` int64.
        - ``red_agent`` uint8: index into `fastrl.envs.cage2.env.RED_AGENTS`.
        - ``workflow`` int8 [N, 5].
        """
        n = self.num_envs
        finished, fixes = np.empty(n, np.int64), np.empty(n, np.int64)
        returns, compliance = np.empty(n), np.empty(n)
        red_agent, workflow = np.empty(n, np.uint8), np.empty((n, len(UNIT_TYPES)), np.int8)
        self._native.episodes(finished, returns, compliance, fixes, red_agent, workflow)
        return {
            "finished": finished,
            "return": returns,
            "compliance": compliance,
            "fixes": fixes,
            "red_agent": red_agent,
            "workflow": workflow,
        }
