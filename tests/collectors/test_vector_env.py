"""Vector environments of the user's own: in every autoreset mode, all that belongs to an episode and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from collect_cases import Remembering, chooser
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from space_cases import ObsActor

from fastrl.collectors.factory import choose, make_collector
from fastrl.collectors.protocol import CollectError, Plan
from fastrl.envs.cage2.env import Cage2VectorEnv
from fastrl.envs.rows import ActionRows, ObsRows
from fastrl.envs.spec import EnvSpec, as_spec
from fastrl.rollout.fragment import Fragment
from random_actor import RandomActor

MODES = ["next_step", "same_step", "disabled"]
ROWS = 4


def allowed(episode: int, count: int) -> Any:
    """The action mask of a `Count`."""
    mask = np.zeros(5, np.bool_)
    mask[[(episode + count) % 3, 3 + count % 2]] = True
    return mask


class Count(gymnasium.Env[Any, Any]):
    """Counts its steps: observes episode, step and what it was given last. Episodes take as many steps as their number
    says, from 2 on, and every second one is truncated.

    Args:
        first: number of the first episode.
        masks: in its infos; one choice of each number is allowed.
    """

    def __init__(self, first: int = 0, masks: bool = False) -> None:
        self.observation_space = Dict(
            where=Box(-np.inf, np.inf, (2,), np.float64), action=MultiDiscrete([3, 2], start=[1, 0])
        )
        self.action_space = MultiDiscrete([3, 2], start=[1, 0])
        self.episode, self.masks = first - 1, masks
        self.seeds: list[int | None] = []

    def allowed(self) -> Any:
        return allowed(self.episode, self.count)

    def _result(self, action: Any) -> Any:
        obs = {"where": np.array([self.episode, self.count], np.float64), "action": action}
        info: dict[str, Any] = {"action_mask": self.allowed()} if self.masks else {}
        return obs, info | {"count": self.count}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.count = 0
        obs, info = self._result(np.array([1, 0]))
        return obs, info | {"start": float(self.episode)}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        if self.masks:
            assert self.allowed()[np.array([0, 3]) + action - [1, 0]].all()
        self.count += 1
        over = self.count >= 2 + self.episode % 5
        even = self.episode % 2 == 0
        obs, info = self._result(action)
        return obs, 10.0 * self.episode + self.count, over and even, over and not even, info


def make_vec(num_envs: int = ROWS, mode: str = "next_step", masks: bool = False) -> VectorEnv[Any, Any, Any]:
    makers = [functools.partial(Count, 7 * i, masks) for i in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode[mode.upper()])


def make_three() -> VectorEnv[Any, Any, Any]:
    return make_vec(3)


def plan_of(env: Any = make_vec, num_steps: int = 12, masks: bool = False, **options: Any) -> Plan:
    single = Count()
    return Plan(
        _as_vector(as_spec(env, **options, **({"masks": True} if masks else {}))),
        functools.partial(ObsActor, ActionRows(single.action_space).flat_space),
        single.observation_space,
        single.action_space,
        num_envs=ROWS,
        num_steps=num_steps,
        seed=3,
        action_masks=masks,
        final_masks=masks,
        episode_info=("start", "count"),
    )


def _as_vector(spec: EnvSpec) -> EnvSpec:
    return dataclasses.replace(spec, is_vector=True)


def collect(what: Plan, updates: int = 3, state: Any = None) -> tuple[list[list[Fragment]], Any]:
    with make_collector("vector", what) as collector:
        if state is not None:
            collector.load_state_dict(state)
        found = []
        for _ in range(updates):
            collector.publish(b"")
            # Arrays are valid until the next call.
            found.append([_copied(each) for each in collector.collect()])
        return found, collector.state_dict()


def _copied(fragment: Fragment) -> Fragment:
    return copy.deepcopy(fragment)


def check_steps(
    fragments: list[list[Fragment]], first: dict[int, int] | None = None
) -> dict[int, tuple[int, int]]:
    """Checks every row's steps over all updates against the rules of `Count`; returns each row's next step."""
    rows = ObsRows(Count().observation_space)
    at = {row: ((first or {}).get(row, 7 * row), 0) for row in range(ROWS)}
    for update in fragments:
        assert sorted(index for each in update for index in each.env_indices.tolist()) == list(range(ROWS))
        for fragment in update:
            ends: dict[int, list[tuple[float, int, float, float]]] = {row: [] for row in range(ROWS)}
            for column, row in enumerate(fragment.env_indices.tolist()):
                episode, count = at[row]
                for t in range(fragment.num_steps):
                    obs, action = fragment.obs[t, column], fragment.actions[t, column]
                    assert obs[rows.parts[0].place].tolist() == [episode, count]
                    count += 1
                    over = count == 2 + episode % 5
                    even = episode % 2 == 0
                    assert fragment.rewards[t, column] == 10 * episode + count
                    assert fragment.terminations[t, column] == (over and even)
                    assert fragment.truncations[t, column] == (over and not even)
                    if over and not even and fragment.final_masks is not None:
                        assert (fragment.final_masks[t, column] == allowed(episode, count)).all()
                    if over:
                        last = fragment.final_obs[t, column]
                        ends[row].append(
                            (sum(10 * episode + k + 1 for k in range(count)), count, episode, count)
                        )
                    else:
                        last = fragment.obs[t + 1, column]
                    assert last[rows.parts[0].place].tolist() == [episode, count]
                    given = np.zeros(5)
                    given[np.array([0, 3]) + action] = 1
                    assert last[rows.parts[1].place].tolist() == given.tolist()
                    if over:
                        episode, count = episode + 1, 0
                at[row] = episode, count
            found: dict[int, list[Any]] = {row: [] for row in range(ROWS)}
            info = fragment.episode_info
            for i, (row, _) in enumerate(fragment.episodes.tolist()):
                found[row].append(
                    (fragment.returns[i], fragment.lengths[i], info["start"][i], info["count"][i])
                )
            assert found == ends
    return at


@pytest.mark.parametrize("masks", [False, True], ids=["", "masks"])
@pytest.mark.parametrize("mode", MODES)
def test_fragments_hold_the_agents_steps_and_no_others(mode: str, masks: bool) -> None:
    what = plan_of(mode=mode, masks=masks)
    fragments, state = collect(what)
    check_steps(fragments)
    lengths = {each.num_steps for update in fragments for each in update}
    assert lengths == {12} if mode != "next_step" else len(lengths) > 1 and max(lengths) < 12
    for each in (each for update in fragments for each in update):
        assert (each.masks is not None) == (each.final_masks is not None) == masks
    numbers = dict.fromkeys(range(ROWS), 0)
    for update in fragments:
        for each in update:
            for row, number in each.episodes.tolist():
                assert number == numbers[row]
                numbers[row] += 1
    assert state["numbers"] == numbers and state["running"] == {}


def test_episodes_are_the_same_in_all_modes() -> None:
    """Though not in the same updates: a step that only resets takes the time of one."""

    def steps(mode: str) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {row: [] for row in range(ROWS)}
        for update in collect(plan_of(mode=mode), 4)[0]:
            for each in update:
                for column, row in enumerate(each.env_indices.tolist()):
                    found[row] += [
                        (
                            each.obs[t, column].tobytes(),
                            each.actions[t, column].tolist(),
                            each.rewards[t, column],
                        )
                        for t in range(each.num_steps)
                    ]
        return found

    expected = steps("same_step")
    assert steps("disabled") == expected
    for row, own in steps("next_step").items():
        assert 20 < len(own) < 48 and own == expected[row][: len(own)]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_reset_alone_has_a_seed(mode: str) -> None:
    env: Any = make_vec(mode=mode)
    spec = as_spec(env)
    assert spec.is_vector
    what = plan_of(env)
    fragments, state = collect(what)
    check_steps(fragments)
    seeds = [list(each.seeds) for each in env.envs]
    assert [own[0] for own in seeds] == list(range(seeds[0][0], seeds[0][0] + ROWS))
    assert all(own[1:] == [None] * (len(own) - 1) for own in seeds)
    # It is the caller's, and still open. A collector that resumes restarts all episodes, by another seed.
    later, after = collect(what, 1, state)
    assert env.envs[0].seeds[len(seeds[0])] not in (None, seeds[0][0])
    assert all(after["numbers"][row] > state["numbers"][row] for row in range(ROWS))
    first = next(each for each in later[0] if 0 in each.env_indices)
    assert first.obs[0, 0, 1] == 0
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_fragments_are_taken_too(mode: str) -> None:
    with make_collector("vector", plan_of(mode=mode)) as collector:
        collector.publish(b"")
        updates = []
        for _ in range(3):
            update: list[Fragment] = []
            while sum(each.num_rows for each in update) < ROWS:
                fragment = collector.take(60.0)
                assert fragment is not None
                update.append(fragment)
            updates.append(update)
    check_steps(updates)


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_vector_environment_is_one_too(mode: str) -> None:
    options: dict[str, Any] = {"episode_length": 7, "red_agent": "mix", "autoreset_mode": mode}
    env = Cage2VectorEnv(ROWS, **options)
    what = Plan(
        as_spec(env),
        functools.partial(RandomActor, env.single_action_space),
        env.single_observation_space,
        env.single_action_space,
        num_envs=ROWS,
        num_steps=20,
        action_masks=True,
        final_masks=mode != "same_step",
    )
    fragments, _ = collect(what, 2)
    for update in fragments:
        for each in update:
            assert set(each.lengths.tolist()) == {7}
            assert each.final_masks is None or each.final_masks[each.truncations].any(-1).all()
            assert np.take_along_axis(each.masks, each.actions[..., None], -1).all()
            ended = each.terminations | each.truncations
            assert each.final_obs[ended].any()
    if mode == "same_step":
        # Its masks are those of the next episode then.
        with pytest.raises(CollectError, match="infos\\['final_info'\\] has no 'action_mask'"):
            collect(dataclasses.replace(what, final_masks=True), 1)
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_memory_starts_with_each_episode(mode: str) -> None:
    """The actor asserts it."""
    env = SyncVectorEnv(
        [functools.partial(gymnasium.make, "Acrobot-v1", max_episode_steps=5 + i) for i in range(ROWS)],
        autoreset_mode=AutoresetMode[mode.upper()],
    )
    what = Plan(
        as_spec(env),
        Remembering,
        env.single_observation_space,
        env.single_action_space,
        num_envs=ROWS,
        num_steps=17,
    )
    with make_collector("vector", what) as collector:
        collector.publish(chooser(0.0))
        before: dict[int, Any] = {}
        for _ in range(3):
            for fragment in collector.collect():
                assert fragment.states is not None and fragment.next_states is not None
                ended = fragment.terminations | fragment.truncations
                for column, row in enumerate(fragment.env_indices.tolist()):
                    assert (fragment.states[column] == before.get(row, 0)).all()
                    before[row] = fragment.next_states[column].copy()
                    since = int(ended[::-1, column].argmax())
                    assert before[row][0] == since
    env.close()


class Odd(VectorEnv[Any, Any, Any]):
    """A vector environment that breaks a rule."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int = ROWS, wrong: str = "") -> None:
        self.num_envs, self.wrong = num_envs, wrong
        self.single_observation_space = Count().observation_space
        self.single_action_space = Count().action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        if wrong == "mode":
            self.metadata = {}  # type: ignore[misc]
        if wrong == "space":
            self.single_action_space = Discrete(3)

    def _obs(self) -> Any:
        where = np.full((self.num_envs, 2), np.nan if self.wrong == "nan" else 0.5)
        return {
            "where": where[:-1] if self.wrong == "obs" else where,
            "action": np.ones((self.num_envs, 2), int) * [1, 0],
        }

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._obs() if self.wrong == "reset" else (self._obs(), {})

    def step(self, actions: Any) -> Any:
        if self.wrong == "raise":
            raise ValueError("this game is broken")
        if self.wrong == "exit":
            raise SystemExit(3)
        ended = np.ones(self.num_envs, np.bool_)
        rewards = np.zeros(self.num_envs - (self.wrong == "rewards"))
        result = self._obs(), rewards, ended, ended, {}
        return result[:4] if self.wrong == "step" else result


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("mode", "the metadata of a vector environment should state its autoreset_mode"),
        (
            "space",
            r"the action space of test_vector_env:Odd is Discrete\(3\), but the learner expects MultiDiscrete",
        ),
        (
            "obs",
            r"reset\(\) gave observations .* at 'where': expected numbers of shape \(4, 2\), got an array",
        ),
        ("reset", r"reset\(\) should return \(obs, infos\), got a dict"),
        ("step", r"step\(\) should return \(obs, rewards, .*\), got 4 values"),
        (
            "rewards",
            r"step\(\) should give rewards as an array of shape \(4,\), got an array of float64 of shape \(3,\)",
        ),
        ("nan", "observations should be finite float32 numbers"),
        (
            "final_obs",
            "in autoreset mode 'same_step' infos should have final_obs where episodes end, got nothing",
        ),
        ("raise", "ValueError: this game is broken"),
        ("exit", "SystemExit: 3"),
    ],
)
def test_broken_vector_environments_end_in_one_line(wrong: str, message: str) -> None:
    with pytest.raises(CollectError, match=message) as caught:
        collect(plan_of(Odd, wrong=wrong), 1)
    assert "test_vector_env:Odd" in str(caught.value) and "\n" not in str(caught.value)
    assert bool(caught.value.traceback) == (wrong in ("raise", "exit"))


def test_masks_that_are_missing_end_in_one_line() -> None:
    what = plan_of(mode="same_step", masks=True)
    lacking = dataclasses.replace(what, env=_as_vector(as_spec(make_vec)))
    with pytest.raises(CollectError, match=r"neither a method action_masks\(\) nor infos\['action_mask'\]"):
        collect(lacking, 1)


def test_vector_environments_go_with_their_collector_only() -> None:
    what = plan_of()
    assert choose(what).name == "vector"
    with make_collector("auto", what) as collector:
        assert collector.name == "vector"
    with pytest.raises(
        ValueError, match="makes a vector environment, which the collector 'vector' steps, not 'sync'"
    ):
        make_collector("sync", what)
    with pytest.raises(
        ValueError, match=r"'vector' steps a gymnasium\.vector\.VectorEnv, CartPole-v1 makes single"
    ):
        make_collector("vector", Plan(EnvSpec("CartPole-v1"), ObsActor, Box(-1, 1, (4,)), Discrete(2), 2, 2))
    with pytest.raises(ValueError, match="a vector environment starts its episodes itself"):
        make_collector(
            "vector", Plan(what.env, ObsActor, what.obs_space, what.action_space, 2, 2, "episodes", 2)
        )


def test_specs_of_vector_environments() -> None:
    spec = EnvSpec("test_vector_env:make_vec", {"mode": "disabled"})
    env = spec.make_vector(5)
    assert env.num_envs == 5 and env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    with pytest.raises(
        ValueError, match="makes a vector environment, which only the collector 'vector' steps"
    ):
        spec.make()
    with pytest.raises(ValueError, match="makes 3 environments, expected 4: set num_envs to 3"):
        EnvSpec("test_vector_env:make_three").make_vector(4)
    with pytest.raises(ValueError, match=r"makes a single environment, a .*Count"):
        EnvSpec("test_vector_env:Count").make_vector(4)
    with pytest.raises(TypeError, match="a SyncVectorEnv takes no options"):
        as_spec(env, masks=True)
    env.close()
