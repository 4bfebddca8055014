"""CAGE 2 with workflows: cost of the workflow in the simulator, and an order learnt and scored beside plain PPO.

Run: ``pytest benches/bench_workflow.py -s`` on an otherwise idle machine; about three minutes on two cores.
"""

import time

import pytest

from fastrl.envs.cage2.env import ACTIONS, Cage2VectorEnv, action_indices
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv, parse_workflow
from fastrl.play.policy import Policy
from fastrl.tasks.cage2.evaluate import RULESETS
from fastrl.tasks.cage2.task import TASK as CAGE2
from fastrl.tasks.workflow.learner import WorkflowPPO
from fastrl.tasks.workflow.scores import score_by_protocol
from fastrl.tasks.workflow.settings import SearchConfig
from fastrl.tasks.workflow.source import WorkflowSource
from fastrl.tasks.workflow.strategies import make_search
from fastrl.tasks.workflow.task import TASK, plain_settings
from fastrl.training.trainer import Trainer
from fastrl.utils.config import build
from fastrl.utils.output import plain_console
from fastrl.utils.tables import show
from results import Case
from rounds import measure_in_turns, number_table
from vector_envs import Cage2Steps

WORKFLOW = parse_workflow("enterprise,op_server,op_host,user,defender")
EPISODES, SCORED = 100_000, 1000  # of a training, of each cell of a score
GAMES = 1024


def test_a_workflow_costs_the_simulator_little(record):
    makers = {"fastrl, with workflows": Cage2WorkflowVectorEnv, "without": Cage2VectorEnv}
    steps = {name: Cage2Steps(GAMES, "mix", make=make) for name, make in makers.items()}
    speeds = measure_in_turns({name: lambda s=each: s.measure(0.1) for name, each in steps.items()}, 15)
    case = Case(f"{GAMES:,} games, one thread", speeds)
    record("CAGE 2 with workflows", "steps/s", [case], ["fastrl, with workflows"])


def as_policy(state, games):
    environment = {"memory": games.memory}
    return Policy(
        {
            "algorithm": "ppo",
            "policy": state,
            "config": {"env": environment, "ppo": {"action_masks": False}},
            "steps": EPISODES * games.episode_length,
            "actions": list(action_indices(games.actions)),
            "num_actions": len(ACTIONS),
        }
    )


@pytest.mark.usefixtures("one_thread")
def test_one_order_beside_plain_ppo(record):
    """All orders together, then one of them; plain PPO for as many episodes."""
    settings = build(TASK.settings_type("ppo"), {"run.total_episodes": EPISODES, "run.device": "cpu"})
    inner, games = settings.inner, settings.env
    start = time.perf_counter()
    together = int(inner.pretrain_share * EPISODES)
    together -= together % inner.episodes_per_update
    # One training, to the end.
    config = SearchConfig(trial_share=1.0, trial_episodes=EPISODES - together)
    search = make_search(config, [WORKFLOW], EPISODES - together)
    source = WorkflowSource(inner, games, search, joint_episodes=together, seed=0)
    ppo = WorkflowPPO(inner.ppo(games.episode_length), source.problem(EPISODES * games.episode_length, 0))
    for _ in Trainer(settings.run, ppo, source).rows():
        pass
    seconds = {"workflow": time.perf_counter() - start}

    start = time.perf_counter()
    plain = CAGE2.make_trainer(plain_settings(settings))
    for _ in plain.rows():
        pass
    seconds["plain PPO"] = time.perf_counter() - start

    policies = {
        "workflow": as_policy(ppo.policy_of(WORKFLOW), games),
        "plain PPO": Policy(plain.policy_checkpoint()),
    }
    table = number_table(
        f"{EPISODES:,} episodes each; return (compliance) over 100 steps, {SCORED:,} episodes",
        "policy",
        *("seconds", "steps/s", "ruleset", "B_line", "Meander", "total of nine"),
    )
    totals = {ruleset: {} for ruleset in RULESETS}
    for name, policy in policies.items():
        for ruleset in RULESETS:
            scored = score_by_protocol(policy, WORKFLOW, name, ruleset=ruleset, episodes=SCORED, seed=1)
            cells = {
                score.red_agent: f"{score.mean:.2f} ± {score.standard_error:.2f} ({compliance.mean:.3f})"
                for score, compliance in zip(scored.evaluation.scores, scored.compliance, strict=True)
                if score.horizon == 100
            }
            totals[ruleset][name] = [scored.evaluation.total]
            speed = EPISODES * games.episode_length / seconds[name]
            table.add_row(
                name,
                f"{seconds[name]:.0f}",
                f"{speed:,.0f}",
                ruleset,
                cells["bline"],
                cells["meander"],
                f"{scored.evaluation.total:.2f} ± {scored.evaluation.total_standard_error:.2f}",
            )
    show(plain_console(), table)
    cases = [Case(ruleset, of) for ruleset, of in totals.items()]
    record(
        "One workflow beside plain PPO",
        "total of nine",
        cases,
        [],
        about=f"{EPISODES:,} episodes each, one seed.",
    )
