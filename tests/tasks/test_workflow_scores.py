"""Scores by the challenge's protocol, with the compliance."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from fastrl.envs.cage2.env import ACTIONS, action_indices
from fastrl.envs.cage2.memory import MEMORIES, Memory, observation_names
from fastrl.envs.cage2.workflow import WORKFLOW_LEN, WORKFLOWS, parse_workflow
from fastrl.networks.actor_critic import ActorCritic
from fastrl.play.policy import Policy
from fastrl.runs.settings import RunConfig
from fastrl.tasks.cage2.evaluate import RULESETS, Contender, evaluate
from fastrl.tasks.workflow.folding import fold
from fastrl.tasks.workflow.learner import WorkflowPPO
from fastrl.tasks.workflow.scores import WorkflowEvaluation, score_by_protocol
from fastrl.tasks.workflow.settings import EnvConfig, InnerConfig, SearchConfig
from fastrl.tasks.workflow.source import WorkflowSource, measure
from fastrl.tasks.workflow.strategies import make_search
from fastrl.training.trainer import Trainer
from fastrl.utils.files import to_json

ENTERPRISE_FIRST = parse_workflow("enterprise,op_server,op_host,user,defender")


pytestmark = pytest.mark.usefixtures("one_thread")


def as_policy(state: dict[str, Any], actions: Any = "effective", **env: Any) -> Policy:
    return Policy(
        {
            "algorithm": "ppo",
            "policy": state,
            "config": {"env": {"memory": "none"} | env, "ppo": {"action_masks": False}},
            "steps": 1,
            "actions": list(action_indices(actions)),
            "num_actions": len(ACTIONS),
        }
    )


def always(action: str) -> Policy:
    """A policy of one action."""
    network = ActorCritic(52, len(ACTIONS), (), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.actor[0].bias[ACTIONS.index(action)] = 1.0
    return as_policy(network.state(), None)


@pytest.mark.parametrize("ruleset", RULESETS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_scores_are_those_of_the_protocol(ruleset: Any, memory: Memory) -> None:
    obs_dim = len(observation_names(memory)) + WORKFLOW_LEN
    network = ActorCritic(obs_dim, 80, (16,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        network.actor[1].weight.mul_(100)
    policy = as_policy(fold(network.state(), ENTERPRISE_FIRST), memory=memory)
    options: dict[str, Any] = {"ruleset": ruleset, "episodes": 30, "seed": 5, "horizons": (10, 25)}
    scored = score_by_protocol(policy, ENTERPRISE_FIRST, "x", **options)
    expected = evaluate(Contender.from_policy(policy, "x"), **options)
    assert [(one.mean, one.standard_error) for one in scored.evaluation.scores] == [
        (pytest.approx(one.mean), pytest.approx(one.standard_error)) for one in expected.scores
    ]
    cells = [(score.red_agent, score.horizon) for score in scored.evaluation.scores]
    assert [(one.red_agent, one.horizon) for one in scored.compliance] == cells
    assert cells == [(one.red_agent, one.horizon) for one in expected.scores]
    assert all(0 <= one.mean <= 1 for one in scored.compliance)


def test_compliance_with_a_known_answer() -> None:
    options: dict[str, Any] = {"ruleset": "main", "episodes": 20, "horizons": (100,)}
    asleep = score_by_protocol(always("Sleep"), ENTERPRISE_FIRST, "asleep", **options)
    assert {(one.mean, one.standard_error, one.fixes) for one in asleep.compliance} == {(0.5, 0.0, 0.0)}
    busy = score_by_protocol(always("Restore Op_Host0"), ENTERPRISE_FIRST, "busy", **options)
    against = {one.red_agent: one for one in busy.compliance}
    assert against["sleep"].mean == 1.0 and against["sleep"].fixes == 100
    # Red takes a user host in a few steps and keeps it.
    assert 0 < against["bline"].mean < 0.1
    operational = score_by_protocol(always("Restore User1"), WORKFLOWS[-1], "user first", **options)
    assert operational.compliance[0].mean > 0.9


def test_a_trained_policy_is_scored_as_the_learner_measures_it() -> None:
    config = InnerConfig(
        episodes_per_update=16, measured_episodes=10, hidden=(8,), minibatch_size=240, action_masks=False
    )
    games = EnvConfig(red_agent="bline", episode_length=30, n_workers=1)
    source = WorkflowSource(
        config, games, make_search(SearchConfig(), WORKFLOWS, 36), joint_episodes=64, seed=0
    )
    ppo = WorkflowPPO(config.ppo(30), source.problem(3000, 0))
    run = RunConfig(total_timesteps=None, total_episodes=64)
    list(Trainer(run, ppo, source).rows())
    state = ppo.policy_of(ENTERPRISE_FIRST)
    own = measure(games, ENTERPRISE_FIRST, state, 400, 0, action_masks=False)
    scored = score_by_protocol(
        as_policy(state),
        ENTERPRISE_FIRST,
        "x",
        ruleset="main",
        episodes=400,
        horizons=(30,),
        red_agents=("bline",),
    )
    (score,), (compliance,) = scored.evaluation.scores, scored.compliance
    # Other episodes of the same games.
    assert abs(score.mean - own.mean_return) < 5 * math.hypot(score.standard_error, own.return_stderr)
    assert abs(compliance.mean - own.compliance) < 5 * math.hypot(
        compliance.standard_error, own.compliance_stderr
    )


def test_scores_survive_json() -> None:
    scored = score_by_protocol(
        always("Sleep"),
        ENTERPRISE_FIRST,
        "x",
        ruleset="main",
        episodes=2,
        horizons=(5,),
        red_agents=["bline"],
    )
    tree = json.loads(to_json(scored.to_tree()))
    assert WorkflowEvaluation.from_tree(tree) == scored
    assert tree["workflow"] == "enterprise,op_server,op_host,user,defender"
    assert tree["compliance"][0]["mean"] == 0.5 and tree["scores"][0]["horizon"] == 5
