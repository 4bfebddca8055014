"""CAGE 2 with workflows: compared with a plain count of compliance, and as a Gymnasium environment."""

from __future__ import annotations

from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.envs.cage2.env import ACTIONS, HOSTS, Cage2VectorEnv
from fastrl.envs.cage2.memory import Ruleset
from fastrl.envs.cage2.workflow import (
    TYPE_OF_HOST,
    UNIT_TYPES,
    WORKFLOWS,
    Cage2WorkflowVectorEnv,
    Workflow,
    check_workflow,
    encode,
    parse_workflow,
    workflow_name,
)
from fastrl.testing import check_vector_env

LENGTH = 13


def unit_type(host: str) -> str:
    if host == "Defender":
        return "defender"
    return {"Enterprise": "enterprise", "Op_Server": "op_server", "Op_Host": "op_host", "User": "user"}[
        host.rstrip("0123456789")
    ]


class ComplianceCount:
    """Compliance of one episode, counted from the names of actions and the true sessions."""

    def __init__(self, workflow: Workflow) -> None:
        self.order = [UNIT_TYPES[t] for t in workflow]
        self.fixes: list[bool] = []

    def step(self, action: str, sessions: dict[str, int]) -> float:
        """Counts an action, given red's sessions before it; returns the change of compliance."""
        kind, _, target = action.partition(" ")
        before = self.compliance
        if kind in ("Remove", "Restore"):
            held = {unit_type(host) for host, n in sessions.items() if n and host != "User0"}
            urgent = next((t for t in self.order if t in held), None)
            self.fixes.append(urgent is None or unit_type(target) == urgent)
        return self.compliance - before

    @property
    def compliance(self) -> float:
        return sum(self.fixes) / len(self.fixes) if self.fixes else 0.5


# Blue fixes, blue sleeps, blue does anything: what a game comes to depends on it.
FIXES = [i for i, name in enumerate(ACTIONS) if name.startswith(("Remove", "Restore"))]
HABITS = {"anything": range(len(ACTIONS)), "fixes": FIXES, "fixes seldom": [0] * 120 + FIXES, "sleeps": [0]}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ruleset=st.sampled_from(get_args(Ruleset)),
    red_agent=st.sampled_from(["bline", "meander", "sleep", "mix"]),
    habit=st.sampled_from(sorted(HABITS)),
    weight=st.sampled_from([0.0, 1.0, 7.5]),
    workflows=st.lists(st.sampled_from(WORKFLOWS), min_size=6, max_size=6),
)
def test_agrees_with_a_count_by_hand(
    seed: int, ruleset: Any, red_agent: str, habit: str, weight: float, workflows: list[Workflow]
) -> None:
    n, length = 6, 60
    options: dict[str, Any] = {
        "ruleset": ruleset,
        "red_agent": red_agent,
        "episode_length": length,
        "autoreset_mode": "same_step",
    }
    game = Cage2VectorEnv(n, info_state=True, **options)
    env = Cage2WorkflowVectorEnv(n, compliance_weight=weight, **options)
    env.set_workflows(workflows)
    (plain, info), (obs, _) = game.reset(seed=seed), env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    counts: list[ComplianceCount] = []
    for t in range(2 * length):
        np.testing.assert_array_equal(obs, np.concatenate([plain, encode(workflows)], axis=1))
        if t % length == 0:
            counts = [ComplianceCount(workflow) for workflow in workflows]
            reds = game.red_agents()
            returns, additions = np.zeros(n), np.zeros(n)
        actions = rng.choice(HABITS[habit], n)
        sessions = info["red_sessions"]
        changes = [
            count.step(ACTIONS[a], dict(zip(HOSTS, row, strict=True)))
            for count, a, row in zip(counts, actions, sessions, strict=True)
        ]
        plain, reward, _, ended, info = game.step(actions)
        obs, shaped, terminated, truncated, _ = env.step(actions)
        start = 0.5 if t % length == 0 else 0.0
        np.testing.assert_allclose(shaped, reward + weight * (np.array(changes) + start), atol=1e-9)
        np.testing.assert_array_equal(terminated, ended)
        assert not truncated.any()
        returns += reward
        additions += shaped - reward
    assert ended.all()
    statistics = env.episodes()
    np.testing.assert_array_equal(statistics["finished"], 2)
    np.testing.assert_allclose(statistics["return"], returns, atol=1e-9)
    np.testing.assert_allclose(statistics["compliance"], [count.compliance for count in counts])
    np.testing.assert_allclose(additions, weight * statistics["compliance"], atol=1e-9)
    np.testing.assert_array_equal(statistics["fixes"], [len(count.fixes) for count in counts])
    np.testing.assert_array_equal(statistics["red_agent"], reds)
    np.testing.assert_array_equal(statistics["workflow"], workflows)


def test_random_fixes_comply_sometimes() -> None:
    """The comparison above needs fixes that comply and fixes that do not."""
    env = Cage2WorkflowVectorEnv(50, red_agent="mix", autoreset_mode="same_step")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(100):
        env.step(rng.choice(HABITS["fixes seldom"], 50))
    assert 0.1 < env.episodes()["compliance"].mean() < 0.9


def played(actions: list[str], workflow: Workflow, red_agent: str = "bline") -> tuple[float, int]:
    """Compliance and fixes of a game with these actions."""
    env = Cage2WorkflowVectorEnv(
        1, workflow=workflow, red_agent=red_agent, episode_length=len(actions), autoreset_mode="same_step"
    )
    env.reset(seed=1)
    for action in actions:
        env.step([ACTIONS.index(action)])
    statistics = env.episodes()
    return float(statistics["compliance"][0]), int(statistics["fixes"][0])


def test_compliance_without_a_fix_is_a_half() -> None:
    assert played(["Sleep"] * 9, WORKFLOWS[0]) == (0.5, 0)


def test_any_fix_complies_without_compromised_hosts_and_the_foothold_does_not_count() -> None:
    fixes = ["Restore Op_Host1", "Remove User3", "Restore User0", "Remove Defender", "Restore Enterprise2"]
    for workflow in WORKFLOWS[::17]:
        assert played(fixes, workflow, "sleep") == (1.0, 5)


@pytest.mark.parametrize(
    ("workflow", "compliance"),
    [
        ("user,enterprise,op_host,op_server,defender", 0.25),
        ("op_server,user,enterprise,op_host,defender", 0.75),
    ],
)
def test_fixes_of_the_first_type_that_red_holds_comply(workflow: str, compliance: float) -> None:
    # After 19 steps without a defence B_line holds user hosts, enterprise hosts and Op_Server0.
    fixes = ["Remove Op_Server0", "Restore Op_Server0", "Restore User0", "Restore Op_Host0"]
    order = parse_workflow(workflow)
    env = Cage2VectorEnv(1, info_state=True)
    env.reset(seed=1)
    for _ in range(19):
        info = env.step([0])[-1]
    held = {unit_type(host) for host, n in zip(HOSTS, info["red_sessions"][0], strict=True) if n}
    assert held == {"user", "enterprise", "op_server"}
    # After its Restore, Op_Server0 is free; user hosts are next.
    assert played(["Sleep"] * 19 + fixes, order) == (compliance, 4)


def test_a_workflow_takes_effect_at_the_next_or_an_unstarted_episode() -> None:
    env = Cage2WorkflowVectorEnv(2, workflow=WORKFLOWS[3], episode_length=3, autoreset_mode="same_step")
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.workflows(), [WORKFLOWS[3]] * 2)
    env.set_workflows([WORKFLOWS[10], WORKFLOWS[11]])
    env.observe_into(obs)
    np.testing.assert_array_equal(obs[:, 52:], encode([WORKFLOWS[10], WORKFLOWS[11]]))
    env.step([0, 0])
    env.set_workflows([WORKFLOWS[20], WORKFLOWS[21]])
    obs = env.step([0, 0])[0]
    np.testing.assert_array_equal(obs[:, 52:], encode([WORKFLOWS[10], WORKFLOWS[11]]))
    obs = env.step([0, 0])[0]
    np.testing.assert_array_equal(obs[:, 52:], encode([WORKFLOWS[20], WORKFLOWS[21]]))
    np.testing.assert_array_equal(env.episodes()["workflow"], [WORKFLOWS[10], WORKFLOWS[11]])


def test_state_has_workflows_and_episode_statistics() -> None:
    def make() -> Cage2WorkflowVectorEnv:
        return Cage2WorkflowVectorEnv(
            3, red_agent="mix", episode_length=5, compliance_weight=3, autoreset_mode="same_step"
        )

    env, twin = make(), make()
    env.set_workflows(WORKFLOWS[5:8])
    env.reset(seed=4)
    rng = np.random.default_rng(0)
    for _ in range(7):
        env.step(rng.integers(145, size=3))
    env.set_workflows(WORKFLOWS[50:53])
    twin.load_state(env.save_state())
    for key, value in env.episodes().items():
        np.testing.assert_array_equal(twin.episodes()[key], value)
    for _ in range(9):
        actions = rng.integers(145, size=3)
        for a, b in zip(env.step(actions)[:4], twin.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(a, b)
    for key, value in env.episodes().items():
        np.testing.assert_array_equal(twin.episodes()[key], value)
    other = Cage2WorkflowVectorEnv(3, red_agent="mix", episode_length=5, autoreset_mode="same_step")
    with pytest.raises(ValueError, match="compliance weight"):
        other.load_state(env.save_state())


@pytest.mark.slow
@pytest.mark.parametrize("ruleset", get_args(Ruleset))
@pytest.mark.parametrize(
    "options",
    [
        {"compliance_weight": 5.0},
        {"red_agent": "mix", "memory": "full", "actions": "effective", "workflow": WORKFLOWS[77]},
        {"red_agent": "mix", "observe": "truth"},
    ],
    ids=str,
)
def test_passes_the_conformance_kit(ruleset: Any, options: dict[str, Any]) -> None:
    def make(**kwargs: Any) -> VectorEnv:
        return Cage2WorkflowVectorEnv(ruleset=ruleset, episode_length=LENGTH, **options, **kwargs)

    check_vector_env(make, steps=4 * LENGTH)


def test_registered_for_make_vec() -> None:
    env = gymnasium.make_vec("fastrl/Cage2Workflow-v0", num_envs=3, workflow=WORKFLOWS[9])
    assert isinstance(env, Cage2WorkflowVectorEnv) and env.autoreset_mode is AutoresetMode.NEXT_STEP
    assert env.single_observation_space.shape == (77,) and env.single_action_space.n == 145
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs[:, 52:], encode([WORKFLOWS[9]] * 3))


def test_masks_and_memory_agree_with_the_game() -> None:
    options: dict[str, Any] = {"red_agent": "meander", "memory": "full", "actions": "effective"}
    game, env = Cage2VectorEnv(4, **options), Cage2WorkflowVectorEnv(4, **options)
    game.reset(seed=0)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(50):
        np.testing.assert_array_equal(game.action_masks(), env.action_masks())
        actions = rng.integers(len(game.actions), size=4)
        np.testing.assert_array_equal(env.step(actions)[0][:, :240], game.step(actions)[0])
    np.testing.assert_array_equal(game.red_agents(), env.red_agents())


def test_there_are_120_workflows_of_five_types() -> None:
    assert UNIT_TYPES == ("defender", "enterprise", "op_server", "op_host", "user")
    assert len(set(WORKFLOWS)) == 120
    assert [UNIT_TYPES[t] for t in TYPE_OF_HOST] == [unit_type(host) for host in HOSTS]


def test_row_r_of_the_code_is_the_type_at_position_r() -> None:
    (code,) = encode([(2, 1, 3, 0, 4)]).reshape(1, 5, 5)
    assert code.dtype == np.float32
    np.testing.assert_array_equal(code.argmax(axis=1), [2, 1, 3, 0, 4])
    np.testing.assert_array_equal(code.sum(axis=1), 1)


def test_names_are_parsed_back() -> None:
    assert workflow_name((2, 1, 3, 0, 4)) == "op_server,enterprise,op_host,defender,user"
    assert all(parse_workflow(workflow_name(workflow)) == workflow for workflow in WORKFLOWS)
    assert parse_workflow(" Op-Server > ENTERPRISE>op host, defender ,user") == (2, 1, 3, 0, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op_sever,enterprise,op_host,defender,user", "'op_sever'.*did you mean op_server"),
        ("op_server,enterprise,op_host,defender", "user missing"),
        ("user,enterprise,op_host,defender,user", "'user' twice"),
        ("", "unknown unit type ''.*defender, enterprise, op_server, op_host, user"),
    ],
)
def test_the_error_of_a_bad_name_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_workflow(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workflow": (0, 1, 2, 3, 3)}, "workflow: expected each of 0 to 4 once"),
        ({"workflow": (0, 1)}, "workflow: expected each"),
        ({"compliance_weight": -1.0}, "compliance_weight: expected 0 to"),
        ({"compliance_weight": float("nan")}, "compliance_weight: expected 0 to"),
        ({"red_agent": "blin"}, "red_agent: expected"),
        ({"ruleset": "mian"}, "ruleset: expected"),
        ({"num_envs": 0}, "num_envs: expected 1"),
        ({"episode_length": 0}, "episode_length: expected 1"),
        ({"actions": []}, "actions"),
        ({"render_mode": "ansi"}, "render_mode"),
    ],
    ids=str,
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cage2WorkflowVectorEnv(**options)


@pytest.mark.parametrize(
    "workflows",
    [[WORKFLOWS[0]], [WORKFLOWS[0], (0, 1, 2, 3, 5)], [WORKFLOWS[0], (0, 1, 2, 3, 259)], [[0.0] * 5] * 2],
    ids=str,
)
def test_bad_workflows_change_nothing(workflows: Any) -> None:
    env = Cage2WorkflowVectorEnv(2, workflow=WORKFLOWS[8])
    with pytest.raises(ValueError, match="workflows: expected"):
        env.set_workflows(workflows)
    np.testing.assert_array_equal(env.workflows(), [WORKFLOWS[8]] * 2)


def test_check_workflow_gives_plain_integers() -> None:
    assert check_workflow(np.array([4, 3, 2, 1, 0], np.int8)) == (4, 3, 2, 1, 0)
    with pytest.raises(ValueError, match="once"):
        check_workflow([1, 1, 2, 3, 4])
