"""The CybORG adapter, on a stub of CybORG, and on the real one if it is installed."""

import importlib.util
import random
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fastrl  # noqa: F401 - registers it
from fastrl.envs.adapters.cyborg import CyborgEnv
from fastrl.envs.cage2.memory import BlueMemory

INSTALLED = importlib.util.find_spec("CybORG") is not None

STAND_IN = {
    "__init__.py": """
import random
class CybORG:
    def __init__(self, scenario, kind, agents):
        assert scenario.endswith("CybORG/Shared/Scenarios/Scenario2.yaml") and kind == "sim"
        self.red = agents["Red"]()
""",
    "Agents/__init__.py": """
class B_lineAgent: cost = 2.0
class RedMeanderAgent: cost = 1.0
class SleepAgent: cost = 0.0
""",
    "Agents/Wrappers/__init__.py": """
import random
class ChallengeWrapper:
    def __init__(self, env, agent_name):
        assert agent_name == "Blue"
        self.red = env.red
    def reset(self):
        return self.look()
    def look(self):
        return [random.randrange(2) for _ in range(52)]
    def step(self, action):
        return self.look(), -self.red.cost * random.random() - action / 1000, False, {}
""",
}


@pytest.fixture
def cyborg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in STAND_IN.items():
        file = tmp_path / "CybORG" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    forget(monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "CybORG"]:
        monkeypatch.delitem(sys.modules, name)


def play(env, seed, others=()):
    """Observations and rewards of an episode, between whose steps other environments step, too."""
    rng = np.random.default_rng(seed)
    seen, rewards = [env.reset(seed=seed)[0]], []
    while True:
        for other in others:
            other.step(0)
        obs, reward, terminated, truncated, _ = env.step(int(rng.integers(145)))
        seen.append(obs)
        rewards.append(reward)
        if terminated or truncated:
            assert truncated and not terminated
            return np.array(seen), np.array(rewards)


def check_episodes(red):
    env, other, bystander = (CyborgEnv(red, episode_length=20) for _ in range(3))
    play(other, 1)
    bystander.episode_length = 100
    bystander.reset(seed=3)
    state = random.getstate()
    a, b = play(env, 7, [bystander]), play(other, 7)
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    assert len(a[1]) == 20 and a[0].dtype == np.float32
    assert random.getstate() == state, "the global generator is as it was"
    return a


@pytest.mark.parametrize("red", ["bline", "meander", "sleep"])
@pytest.mark.usefixtures("cyborg")
def test_episodes_are_determined_by_their_seed(red):
    seen, rewards = check_episodes(red)
    assert not np.array_equal(seen, play(CyborgEnv(red, 20), 8)[0])
    cost = {"bline": 2.0, "meander": 1.0, "sleep": 0.0}[red]
    assert -cost - 0.145 < rewards.min() <= rewards.max() <= 0


@pytest.mark.usefixtures("cyborg")
@pytest.mark.parametrize("memory", ["none", "full"])
def test_passes_gymnasiums_checker(memory):
    env = gymnasium.make("fastrl/CybORG-v0", episode_length=30, memory=memory)
    check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.usefixtures("cyborg")
def test_memory_follows_the_episode():
    env, plain, blue = CyborgEnv(episode_length=5, memory="full"), CyborgEnv(episode_length=5), BlueMemory()
    for seed in (1, 2):
        blue.reset()
        expected = blue.observe(plain.reset(seed=seed)[0][None])
        np.testing.assert_array_equal(env.reset(seed=seed)[0], expected[0])
        for action in (29, 132, 0, 133, 5):
            expected = blue.observe(plain.step(action)[0][None], [action])
            np.testing.assert_array_equal(env.step(action)[0], expected[0])
            np.testing.assert_array_equal(env.action_masks(), blue.action_masks()[0])


@pytest.mark.usefixtures("cyborg")
def test_refuses():
    with pytest.raises(ValueError, match="red_agent should be bline, meander, sleep, got 'red'"):
        CyborgEnv("red")
    with pytest.raises(ValueError, match="episode_length should be at least 1"):
        CyborgEnv(episode_length=0)
    with pytest.raises(RuntimeError, match="call reset"):
        CyborgEnv().step(0)


def test_without_cyborg_the_error_is_one_line(monkeypatch):
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "CybORG", None)
    with pytest.raises(ImportError, match="needs CybORG, which is not installed: https://") as caught:
        gymnasium.make("fastrl/CybORG-v0")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("cyborg")
def test_without_cyborgs_dependencies_the_error_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "CybORG.Agents.Wrappers", None)
    with pytest.raises(ImportError, match="what CybORG needs"):
        CyborgEnv()


@pytest.mark.skipif(not INSTALLED, reason="the real CybORG is not installed")
@pytest.mark.parametrize("red", ["bline", "meander", "sleep"])
def test_the_real_one(red):
    seen, rewards = check_episodes(red)
    assert seen.shape == (21, 52) and set(np.unique(seen)) <= {0.0, 1.0}
    assert (rewards <= 0).all()
