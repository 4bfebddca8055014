"""Blue's memory: against a slow model, and the environments' observations against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.envs.cage2.env import ACTIONS, EFFECTIVE_ACTIONS, HOSTS, Cage2VectorEnv
from fastrl.envs.cage2.memory import (
    DECOY_PLACES,
    MEMORIES,
    OBS_BITS,
    BlueMemory,
    Ruleset,
    observation_high,
    observation_names,
)
from fastrl.envs.cage2.scenario import Cage2Scenario, challenge, load_scenario
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv

SCENARIOS = Path(__file__).parents[1] / "support" / "golden" / "cage2_scenarios"

LENGTHS = {"none": 52, "scan": 62, "decoys": 103, "full": 240}


class Model:
    """Blue's memory of one game, as plainly as it can be written: lists of what happened at which step."""

    def __init__(self, scenario: Cage2Scenario | None = None) -> None:
        network = scenario or challenge()
        self.hosts, self.actions = network.hosts, network.actions
        self.effective = {network.actions[action] for action in network.effective_actions}
        names = observation_names("decoys", "blue", scenario)
        self.scan_hosts = [name.split(":")[0] for name in names if name.endswith(": scanned")]
        self.places = [name.removesuffix(" stands") for name in names if name.endswith(" stands")]
        self.steps = 0
        # Of (event, host): the steps after which it happened.
        self.events: dict[tuple[str, str], list[int]] = {}
        self.scans: list[set[str]] = []
        self.standing: set[str] = set()
        self.kind: str | None = None
        self.could = False

    def allowed(self, action: str) -> bool:
        kind, _, host = action.partition(" ")
        if action not in self.effective:
            return False
        if kind == "DecoyApache":
            return not {action, f"DecoyVsftpd {host}"} & self.standing
        return kind == "DecoyVsftpd" or action not in self.standing

    def observe(self, bits: np.ndarray, action: int | None) -> list[float]:
        if action is not None:
            self.steps += 1
            self._act(self.actions[action])
        activity = bits.reshape(-1, 4)[:, :2].tolist()
        for event, code in (("scan", [1, 0]), ("exploit", [1, 1])):
            for host in (host for host, seen in zip(self.hosts, activity, strict=True) if seen == code):
                self.events.setdefault((event, host), []).append(self.steps)
        scanned = {host for host in self.scan_hosts if activity[self.hosts.index(host)] == [1, 0]}
        self.scans += [scanned] if scanned else []
        return [*bits.tolist(), *self._values()]

    def _act(self, action: str) -> None:
        kind, _, host = action.partition(" ")
        self.could = self.allowed(action)
        self.kind = "decoy" if kind.startswith("Decoy") else kind
        if self.kind == "decoy" and self.could:
            self.standing.add(action)
        if kind == "Restore":
            self.standing = {place for place in self.standing if place.split()[1] != host}
        if kind in ("Analyse", "Remove", "Restore"):
            self.events.setdefault((kind, host), []).append(self.steps)

    def _values(self) -> list[float]:
        values = [
            2.0 if self.scans and host in self.scans[-1] else float(any(host in s for s in self.scans))
            for host in self.scan_hosts
        ]
        values += [float(place in self.standing) for place in self.places]
        for event in ("Analyse", "Remove", "Restore", "scan", "exploit"):
            times = [self.events.get((event, host), []) for host in self.hosts]
            values += [1 / (1 + self.steps - t[-1]) if t else 0.0 for t in times]
            values += [min(len(t), 10) / 10 for t in times]
        for kinds in (("Sleep", "Monitor"), ("Analyse",), ("Remove",), ("Restore",), ("decoy",)):
            values.append(float(self.kind in kinds))
        return [*values, float(self.could), self.steps / 100]


@pytest.mark.parametrize("name", ["shop", "offices"])
@pytest.mark.parametrize("ruleset", ["main", "leaderboard"])
def test_it_is_as_the_plain_model_says_in_other_scenarios(name: str, ruleset: Ruleset) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.yaml")
    options: dict[str, Any] = {
        "scenario": scenario,
        "red_agent": "mix",
        "ruleset": ruleset,
        "episode_length": 60,
    }
    games = {
        memory: Cage2VectorEnv(4, memory=memory, autoreset_mode="disabled", **options) for memory in MEMORIES
    }
    models, rng = [Model(scenario) for _ in range(4)], np.random.default_rng(0)
    found = {memory: env.reset(seed=2)[0] for memory, env in games.items()}
    # Half of the actions are on two hosts, so that decoys meet their like and Restores.
    few = [i for i, action in enumerate(scenario.actions) if action.endswith(("Enterprise0", "User1"))]
    actions: Any = [None] * 4
    for _ in range(60):
        bits = found["none"]
        expected = np.float32(
            [model.observe(*row) for model, *row in zip(models, bits, actions, strict=True)]
        )
        for memory, env in games.items():
            names = observation_names(memory, "blue", scenario)
            np.testing.assert_array_equal(found[memory], expected[:, : len(names)])
            assert env.single_observation_space.shape == (len(names),) and len({*names}) == len(names)
            assert env.single_observation_space.contains(found[memory][0])
            masks = [[model.allowed(action) for action in scenario.actions] for model in models]
            np.testing.assert_array_equal(env.action_masks(), masks)
        any_action = rng.integers(len(scenario.actions), size=4)
        actions = np.where(rng.random(4) < 0.5, rng.choice(few, 4), any_action)
        found = {memory: env.step(actions)[0] for memory, env in games.items()}
    other = games["full"].rebuilt(4)
    other.load_state(games["full"].save_state())
    observed = np.empty_like(found["full"])
    other.observe_into(observed)
    np.testing.assert_array_equal(observed, found["full"])


def activities() -> st.SearchStrategy[list[int]]:
    """Four bits of each host; mostly quiet."""
    return st.lists(st.sampled_from([0] * 6 + list(range(16))), min_size=13, max_size=13)


def as_bits(nibbles: list[int]) -> np.ndarray:
    return np.float32([n >> k & 1 for n in nibbles for k in range(4)])


# Half of the draws are on two hosts, so that decoys meet their like and Restores.
some_actions = st.one_of(
    st.integers(0, 144),
    st.sampled_from([a for a, name in enumerate(ACTIONS) if name.endswith(("Enterprise0", "User3"))]),
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    games=st.lists(
        st.tuples(activities(), st.lists(st.tuples(some_actions, activities()), min_size=25, max_size=25)),
        min_size=2,
        max_size=2,
    ),
    reset_at=st.integers(1, 24),
)
def test_it_is_as_the_plain_model_says(games: list[Any], reset_at: int) -> None:
    blues = {memory: BlueMemory(2, memory) for memory in MEMORIES}
    models = [Model(), Model()]

    def check(bits: np.ndarray, actions: list[int] | None) -> None:
        given_actions = [None, None] if actions is None else [None if a == -1 else a for a in actions]
        expected = np.float32(
            [model.observe(*row) for model, *row in zip(models, bits, given_actions, strict=True)]
        )
        for memory, blue in blues.items():
            np.testing.assert_array_equal(blue.observe(bits, actions), expected[:, : LENGTHS[memory]])
            masks = [[model.allowed(action) for action in ACTIONS] for model in models]
            np.testing.assert_array_equal(blue.action_masks(), masks)

    check(np.stack([as_bits(first) for first, _ in games]), None)
    for t, steps in enumerate(zip(*(steps for _, steps in games), strict=True)):
        bits = np.stack([as_bits(nibbles) for _, nibbles in steps])
        actions = [action for action, _ in steps]
        if t == reset_at:
            # The second game starts an episode with this observation.
            for blue in blues.values():
                blue.reset(np.array([False, True]))
            models[1], actions[1] = Model(), -1
        check(bits, actions)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("ruleset", get_args(Ruleset))
@pytest.mark.parametrize("red_agent", ["bline", "meander", "sleep"])
@pytest.mark.parametrize("make", [Cage2VectorEnv, Cage2WorkflowVectorEnv])
def test_environments_have_what_blue_remembers(
    make: Any, red_agent: str, ruleset: Ruleset, mode: str
) -> None:
    n, length = 4, 19
    options = {"ruleset": ruleset, "red_agent": red_agent, "episode_length": length, "autoreset_mode": mode}
    envs = {memory: make(n, memory=memory, **options) for memory in MEMORIES}
    blues = {memory: BlueMemory(n, memory, ruleset) for memory in MEMORIES}
    rng = np.random.default_rng(0)
    after_code = 25 if make is Cage2WorkflowVectorEnv else 0

    def check(observations: dict[Any, np.ndarray], actions: np.ndarray | None, masks: bool = True) -> None:
        for memory, obs in observations.items():
            assert obs.shape == (n, LENGTHS[memory] + after_code) and obs in envs[memory].observation_space
            seen = blues[memory].observe(obs[:, :OBS_BITS], actions)
            np.testing.assert_array_equal(obs[:, : LENGTHS[memory]], seen)
            if masks:
                np.testing.assert_array_equal(envs[memory].action_masks(), blues[memory].action_masks())

    check({memory: env.reset(seed=7)[0] for memory, env in envs.items()}, None)
    ended = np.zeros(n, np.bool_)
    for t in range(3 * length):
        # Restores and decoys are what changes memory most.
        actions = np.where(
            rng.random(n) < 0.5, rng.integers(145, size=n), rng.choice([133, 143, 29, 66, 42], n)
        )
        if mode == "disabled" and (t % 17 == 16 or ended.any()):
            mask = ended if ended.any() else rng.permutation(np.arange(n) < 2)
            obs = {memory: env.reset(options={"reset_mask": mask})[0] for memory, env in envs.items()}
            for memory, blue in blues.items():
                rows = obs[memory][mask]
                blue.reset(mask)
                assert not rows[:, : LENGTHS[memory]].any()
            ended = np.zeros(n, np.bool_)
        results = {memory: env.step(actions) for memory, env in envs.items()}
        if mode == "next_step" and ended.any():
            # The action of an environment that starts an episode is ignored.
            for blue in blues.values():
                blue.reset(ended)
            actions = np.where(ended, -1, actions)
        now = results["none"][2] | results["none"][3]
        if mode == "same_step" and now.any():
            assert now.all()
            check({memory: result[4]["final_obs"] for memory, result in results.items()}, actions, False)
            for blue in blues.values():
                blue.reset()
            actions = np.full(n, -1)
        check({memory: result[0] for memory, result in results.items()}, actions)
        ended = now


def test_every_value_has_a_name() -> None:
    for memory in MEMORIES:
        names = observation_names(memory)
        assert len(names) == len(set(names)) == LENGTHS[memory] == BlueMemory(1, memory).obs_dim
        assert names == observation_names("full")[: len(names)]
        assert len(observation_high(memory, 100)) == len(names)
    assert names[:3] == (
        "Defender: activity",
        "Defender: activity is exploit",
        HOSTS[0] + ": " + names[2][10:],
    )
    assert names[52] == "Defender: scanned" and names[102] == f"{DECOY_PLACES[-1]} stands"
    assert len(DECOY_PLACES) == 41 and all(
        ACTIONS.index(place) in EFFECTIVE_ACTIONS for place in DECOY_PLACES
    )
    assert names[-1] == "steps / 100" and names[103] == "Defender: age of Analyse"


def test_long_episodes_stay_in_the_observation_space() -> None:
    env = Cage2VectorEnv(1, memory="full", episode_length=250, autoreset_mode="disabled")
    obs, _ = env.reset(seed=0)
    for _ in range(250):
        obs, *_ = env.step([0])
        assert obs in env.observation_space
    assert obs[0, -1] == 2.5 and observation_high("full", 250)[-1] == 2.5


ZEROS = np.zeros((2, 52), np.float32)
BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (ZEROS[:1], [0, 0], ValueError, r"bits: expected a C-contiguous float32 array of shape \(2, 52\)"),
    (ZEROS + 0.5, [0, 0], ValueError, "bits: expected zeros and ones, got 0.5 in game 0"),
    (ZEROS * np.nan, [0, 0], ValueError, "bits: expected zeros and ones, got NaN"),
    (ZEROS, [0], ValueError, r"actions: expected a C-contiguous int64 array of shape \(2,\)"),
    (ZEROS, [0, 145], ValueError, "actions: expected integers from 0 to 144, got 145 for game 1"),
    (ZEROS, [-2, 0], ValueError, "actions: expected integers from 0 to 144, got -2 for game 0"),
    (ZEROS, [0.0, 1.0], TypeError, "actions: expected integers, got float64"),
    (ZEROS, None, ValueError, "actions: expected the action before this observation of game 0"),
    (ZEROS, [5, -1], ValueError, "of game 1, whose episode has begun, got none; reset starts an episode"),
]


@pytest.mark.parametrize(("bits", "actions", "kind", "message"), BAD, ids=lambda v: str(v)[:30])
def test_bad_input_is_named_and_changes_nothing(
    bits: Any, actions: Any, kind: type[Exception], message: str
) -> None:
    blue, twin = BlueMemory(2, "full"), BlueMemory(2, "full")
    for memory in (blue, twin):
        memory.observe(ZEROS)
        memory.observe(ZEROS, [29, 132])
    with pytest.raises(kind, match=message) as error:
        blue.observe(bits, actions)
    assert "\n" not in str(error.value)
    np.testing.assert_array_equal(blue.observe(ZEROS, [2, 3]), twin.observe(ZEROS, [2, 3]))


def test_scans_need_no_actions() -> None:
    blue, bits = BlueMemory(1, "scan"), ZEROS[:1].copy()
    bits[0, 4 * HOSTS.index("User1")] = 1
    blue.observe(bits)
    bits = np.roll(bits, 4)
    assert blue.observe(bits)[0, 52:].tolist() == [0] * 6 + [1, 2, 0, 0]
    blue.reset()
    assert not blue.observe(ZEROS[:1]).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "all"}, "memory: expected 'none', 'scan', 'decoys' or 'full', got 'all'"),
        ({"num_envs": 0}, "num_envs: expected 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlueMemory(**options)
