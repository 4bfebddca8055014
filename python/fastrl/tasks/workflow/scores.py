"""How well a policy of CAGE 2 does by the challenge's protocol, and how far it keeps to a workflow meanwhile."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.cage2.env import RED_AGENTS, Ruleset
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv, Workflow, workflow_name
from fastrl.tasks.cage2.evaluate import BATCH, HORIZONS, Evaluation, Score, episode_seeds, mean_and_error
from fastrl.training.policy import Policy


@dataclass(frozen=True)
class Compliance:
    """Of episodes against one red agent over one horizon. Without a fix the compliance of an episode is 0.5, which is
    what a defender has against Sleep who knows that there is nothing to fix."""

    red_agent: str
    horizon: int
    episodes: int
    mean: float
    standard_error: float
    fixes: float
    """Fixes an episode, in the mean."""


@dataclass(frozen=True)
class WorkflowEvaluation:
    """Scores, as `fastrl.tasks.cage2.evaluate.evaluate` gives them, and the compliance beside each.

    Attributes:
        workflow: by which compliance is told.
        evaluation: the scores.
        compliance: one for each of ``evaluation.scores``.
    """

    workflow: Workflow
    evaluation: Evaluation
    compliance: tuple[Compliance, ...]

    def to_tree(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return self.evaluation.to_tree() | {
            "workflow": workflow_name(self.workflow),
            "compliance": [asdict(compliance) for compliance in self.compliance],
        }


def score_by_protocol(
    policy: Policy,
    workflow: Workflow,
    name: str,
    *,
    ruleset: Ruleset,
    episodes: int = 1000,
    seed: int = 0,
    horizons: Sequence[int] = HORIZONS,
    red_agents: Sequence[str] = RED_AGENTS,
    num_threads: int = 0,
    advance: Callable[[int], object] = lambda steps: None,
) -> WorkflowEvaluation:
    """Plays ``episodes`` against each red agent over each horizon, with the most probable actions.

    The games are those of `fastrl.tasks.cage2.evaluate.evaluate`, and so are the scores.

    Args:
        policy: of a workflow (`fastrl.tasks.workflow.training.fold`), or one that knows of none.
        workflow: by which its compliance is told.
        name: what to call the policy.
        advance: as of `fastrl.tasks.cage2.evaluate.evaluate`.
    """
    scores, compliance = [], []
    for red_agent in red_agents:
        for horizon in horizons:
            _, seeds = episode_seeds(seed, red_agent, horizon, episodes)
            options: dict[str, Any] = {
                "workflow": workflow,
                "ruleset": ruleset,
                "red_agent": red_agent,
                "episode_length": horizon,
                "scan_memory": policy.needs_scan_memory,
                "num_threads": num_threads,
                "autoreset_mode": "disabled",
            }
            batches = (seeds[start : start + BATCH] for start in range(0, episodes, BATCH))
            told = [
                _play(Cage2WorkflowVectorEnv(len(batch), **options), policy, batch, advance)
                for batch in batches
            ]
            returns, complying, fixes = (
                np.concatenate([part[key] for part in told]) for key in ("return", "compliance", "fixes")
            )
            scores.append(Score(red_agent, horizon, episodes, *mean_and_error(returns)))
            compliance.append(
                Compliance(red_agent, horizon, episodes, *mean_and_error(complying), float(fixes.mean()))
            )
    return WorkflowEvaluation(workflow, Evaluation(name, ruleset, seed, tuple(scores)), tuple(compliance))


def _play(
    env: Cage2WorkflowVectorEnv, policy: Policy, seeds: list[int], advance: Callable[[int], object]
) -> dict[str, NDArray[Any]]:
    """One episode of every game."""
    obs, _ = env.reset(seed=seeds)
    rewards, ends = np.empty(env.num_envs), np.empty((2, env.num_envs), np.bool_)
    for _ in range(env.episode_length):
        masks = env.action_masks() if policy.needs_action_mask else None
        # The order's code, which stands last, is nothing to it.
        actions = policy.act(np.ascontiguousarray(obs[:, : policy.obs_dim]), action_mask=masks)
        env.step_into(actions, obs, rewards, *ends)
        advance(env.num_envs)
    told = env.episodes()
    env.close()
    return told
