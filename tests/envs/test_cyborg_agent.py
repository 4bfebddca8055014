"""A trained policy as an agent of CybORG: beside the compiled simulator, on recorded traces and in whole episodes; in
the real CybORG and in the challenge's own evaluation, if they are installed."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_runs import train_small

import fastrl
from fastrl.envs.adapters import cyborg as adapter
from fastrl.envs.adapters.cyborg import Cage2Agent
from fastrl.envs.cage2.env import ACTIONS, Cage2VectorEnv
from fastrl.envs.cage2.memory import MEMORIES, Memory, Observe
from fastrl.envs.cage2.traces import load_trace
from fastrl.play.policy import Policy

INSTALLED = importlib.util.find_spec("CybORG") is not None
GOLDEN = sorted((Path(__file__).parents[1] / "support" / "golden" / "cage2").glob("*.npz"))
SHARED = Path(__file__).parents[3] / "shared" / "cage2" / "traces"
TRACES = sorted(SHARED.glob("*.npz")) or GOLDEN

# Settings by which policies differ in what they need besides the 52 bits.
KINDS: dict[str, tuple[str, ...]] = {
    "bits": ("--env.memory=none",),
    "scan": ("--env.memory=scan", "--env.actions=effective"),
    "full": ("--env.memory=full", "--ppo.action-masks", "--env.actions=none"),
    "gru": ("--env.memory=decoys", "--ppo.memory=gru", "--ppo.memory-size=9"),
}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("runs")

    def make(kind: str) -> Path:
        if not (folder / kind).exists():
            train_small(folder / kind, *KINDS[kind], iterations=1)
        return folder / kind

    return make


class Recorded:
    """A policy that takes the actions of a trace and keeps what it was given."""

    needs_action_mask, state_size, num_actions = True, 0, len(ACTIONS)
    observe: Observe = "blue"

    def __init__(self, memory: Memory, actions: Any) -> None:
        self.memory, self._actions = memory, iter(actions)
        self.obs: Any = None
        self.masks: Any = None

    def act(self, obs: Any, deterministic: Any = True, action_mask: Any = None, states: Any = None) -> Any:
        self.obs, self.masks = obs, action_mask
        return np.array([next(self._actions)], np.int64)


# "full" begins with the values of the others.
@pytest.mark.parametrize(
    ("path", "memory"),
    [(path, "full") for path in TRACES] + [(GOLDEN[0], memory) for memory in MEMORIES],
    ids=lambda value: getattr(value, "stem", value),
)
def test_inputs_from_recorded_observations_are_those_of_the_simulator(path: Path, memory: Memory) -> None:
    trace = load_trace(path)
    bits, first_bits = (
        np.unpackbits(trace.arrays[name], axis=1)[:, :52].astype(np.int64) for name in ("obs", "reset_obs")
    )
    assert set(trace.arrays["length"]) == {100}
    ruleset: Any = trace.ruleset
    env = Cage2VectorEnv(
        1,
        ruleset=ruleset,
        red_agent=trace.red_agent,
        memory=memory,
        random="python",
        autoreset_mode="same_step",
    )
    policy = Recorded(memory, trace.arrays["blue_action"])
    agent = Cage2Agent(policy)
    obs, _ = env.reset(seed=trace.seed)
    for step in range(len(bits)):
        observation = bits[step - 1] if step % 100 else first_bits[step // 100]
        masks = env.action_masks()
        action = agent.get_action(observation, 145)
        assert (policy.obs == obs).all() and (policy.masks == masks).all(), f"step {step}"
        obs, *_ = env.step(np.array([action]))
        if step % 100 == 99:
            agent.end_episode()


def episodes_here(policy: Policy, deterministic: bool, red_agent: str, number: int) -> tuple[Any, Any]:
    """Actions and rewards of a policy in the simulator's own environment."""
    env = Cage2VectorEnv(
        1, red_agent=red_agent, memory=policy.memory, random="python", autoreset_mode="same_step"
    )
    obs, _ = env.reset(seed=5)
    states = np.zeros((1, policy.state_size), np.float32) if policy.state_size else None
    actions, rewards = [], []
    for step in range(100 * number):
        if states is not None and step % 100 == 0:
            states[:] = 0
        masks = env.action_masks() if policy.needs_action_mask else None
        actions.append(policy.act(obs, deterministic, masks, states))
        obs, reward, *_ = env.step(actions[-1])
        rewards.append(reward[0])
    return np.concatenate(actions), np.array(rewards)


def episodes_of(agent: Cage2Agent, wrapped: Any, number: int) -> tuple[Any, Any]:
    """The loop of the challenge's ``evaluation.py``."""
    observation = wrapped.reset()
    action_space = wrapped.get_action_space("Blue")
    actions, rewards = [], []
    for _ in range(number):
        for _ in range(100):
            actions.append(agent.get_action(observation, action_space))
            observation, reward, _, _ = wrapped.step(actions[-1])
            rewards.append(reward)
        agent.end_episode()
        observation = wrapped.reset()
    return np.array(actions), np.array(rewards)


class PlainGame:
    """The simulator behind the interface of ``ChallengeWrapper``: 52 bits and nothing else."""

    def __init__(self, red_agent: str) -> None:
        self._env = Cage2VectorEnv(1, red_agent=red_agent, random="python", autoreset_mode="disabled")
        self._seed: Any = 5

    def reset(self) -> Any:
        obs, _ = self._env.reset(seed=self._seed)
        self._seed = None
        return obs[0].astype(np.int64)

    def step(self, action: int) -> Any:
        obs, reward, _, _, _ = self._env.step(np.array([action]))
        return obs[0].astype(np.int64), float(reward[0]), False, {}

    def get_action_space(self, agent: str) -> int:
        return 145


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("red_agent", ["bline", "meander"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes_are_those_of_the_policy_in_the_simulator(
    kind: str, red_agent: str, deterministic: bool, run_of: Callable[[str], Path]
) -> None:
    expected = episodes_here(fastrl.load_policy(run_of(kind), seed=2), deterministic, red_agent, 3)
    agent = Cage2Agent(fastrl.load_policy(run_of(kind), seed=2), deterministic=deterministic)
    actions, rewards = episodes_of(agent, PlainGame(red_agent), 3)
    np.testing.assert_array_equal(actions, expected[0])
    np.testing.assert_array_equal(rewards, expected[1])


def test_it_has_the_methods_of_cyborgs_agents(
    run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = fastrl.load_policy(run_of("gru"))

    class MyAgent(Cage2Agent):
        def __init__(self) -> None:
            super().__init__(policy)

    agent, zeros = MyAgent(), np.zeros(52, np.int64)
    first = [agent.get_action(zeros) for _ in range(5)]
    agent.set_initial_values(action_space={}, observation={})
    agent.train(None)
    assert [agent.get_action(zeros, 145) for _ in range(5)] == first
    assert all(type(action) is int for action in first)
    # Its base is CybORG's class of agents where there is one.
    base = type("BaseAgent", (), {})
    monkeypatch.setattr(adapter.importlib, "import_module", lambda name: SimpleNamespace(BaseAgent=base))
    assert adapter.base_agent() is base
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "CybORG", None)
    for name in [name for name in sys.modules if name.startswith("CybORG.")]:
        monkeypatch.delitem(sys.modules, name)
    assert adapter.base_agent() is object


def test_it_refuses_other_policies_and_wrappers(run_of: Callable[[str], Path]) -> None:
    policy = fastrl.load_policy(run_of("scan"))
    agent = Cage2Agent(policy)
    for observation, action_space in (
        (np.zeros(62), 145),
        (np.full(52, 0.5), 145),
        (np.zeros(52), 54),
        (np.zeros(52), {"action": {}}),
    ):
        with pytest.raises(ValueError) as caught:
            agent.get_action(observation, action_space)
        assert "\n" not in str(caught.value)
    policy.observe = "truth"
    with pytest.raises(
        ValueError, match="observes the true state of the game, which CybORG shows to no agent"
    ):
        Cage2Agent(policy)
    policy.num_actions = 2
    with pytest.raises(ValueError, match="chooses among 145 actions, this one among 2"):
        Cage2Agent(policy)


@pytest.mark.skipif(not INSTALLED, reason="the real CybORG is not installed")
@pytest.mark.parametrize("red_agent", ["bline", "meander"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_real_cyborg(kind: str, red_agent: str, run_of: Callable[[str], Path]) -> None:
    import random

    policy = fastrl.load_policy(run_of(kind))
    cyborg, agents, wrappers = adapter.import_cyborg()
    scenario = Path(cyborg.__file__).parent / "Shared" / "Scenarios" / "Scenario2.yaml"
    env = cyborg.CybORG(
        str(scenario), "sim", agents={"Red": getattr(agents, adapter.RED_AGENT_CLASSES[red_agent])}
    )
    wrapped = wrappers.ChallengeWrapper(env=env, agent_name="Blue")
    assert [str(action) for action in wrapped.get_attr("possible_actions")] == list(ACTIONS)
    state = random.getstate()
    random.seed(5)
    actions, rewards = episodes_of(Cage2Agent(policy), wrapped, 2)
    random.setstate(state)
    expected = episodes_here(policy, True, red_agent, 2)
    np.testing.assert_array_equal(actions, expected[0])
    np.testing.assert_allclose(rewards, expected[1], atol=1e-9)


@pytest.mark.skipif(not INSTALLED, reason="the real CybORG is not installed")
def test_the_challenges_own_evaluation(tmp_path: Path, run_of: Callable[[str], Path]) -> None:
    """Its script, with the two lines changed that the manual names, and fewer episodes."""
    cyborg, _, _ = adapter.import_cyborg()
    text = (Path(cyborg.__file__).parent / "Evaluation" / "evaluation.py").read_text()
    for before, after in (
        (
            "from CybORG.Agents.SimpleAgents.BlueLoadAgent import BlueLoadAgent",
            "from fastrl import load_policy; from fastrl.envs.adapters.cyborg import Cage2Agent",
        ),
        ("agent = BlueLoadAgent()", f"agent = Cage2Agent(load_policy({str(run_of('full'))!r}))"),
        ("MAX_EPS = 100", "MAX_EPS = 2"),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    (tmp_path / "evaluation.py").write_text(text)
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for git in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *git], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "evaluation.py"],
        cwd=tmp_path,
        input="name\nteam\ntechnique\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = Path(re.search(r"Saving evaluation results to (.*)", done.stdout)[1])  # type: ignore[index]
    assert report.name.endswith("_Cage2Agent.txt")
    report.unlink()
    assert len(re.findall(r"Average reward for red agent (\w+) and steps (\d+) is: -?\d", done.stdout)) == 9
