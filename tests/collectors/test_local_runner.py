"""Contents of fragments, and the collector in the learner's process."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from collect_cases import ACTIONS, OBS, Broken, Chooser, Noise, chooser, plan, rows
from numpy.typing import NDArray

from fastrl.collectors.fragment_arrays import arrays_for, fragment_of
from fastrl.collectors.local_runner import LocalRunner
from fastrl.collectors.protocol import ACTIVITIES, CollectError, Plan
from fastrl.collectors.sequential import SequentialCollector
from fastrl.envs.spec import as_spec
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV, act_stream, env_seed


def collect(runner: LocalRunner, number: int | None = None, version: int = 0) -> Fragment:
    """The runner's next fragment, or the whole episode of a number."""
    arrays = arrays_for(runner.plan, len(runner.env_indices))
    return fragment_of(runner.plan, arrays, runner.collect(arrays, number), version, runner.env_indices)


def to_force(draw: NDArray[np.float32]) -> NDArray[np.float32]:
    """-1 and 1 are the bounds, which are [-1, 1] and [0, 10]."""
    return np.float32([min(max(draw[0], -1), 1), min(max(5 + 5 * draw[1], 0), 10)])


def episode(
    env_index: int, number: int, most: int, weight: float = 0.0, forces: bool = False
) -> dict[str, Any]:
    """Plays one, as slowly and plainly as can be."""
    env, actor = Noise(forces), Chooser(forces)
    actor.load(chooser(weight))
    obs, _ = env.reset(seed=env_seed(3, env_index, number))
    seen: dict[str, Any] = {name: [] for name in ("obs", "actions", "log_probs", "rewards", "ends")}
    seen["obs"].append(np.float32(obs).ravel())
    for step in range(most):
        action = np.zeros((1, 2), np.float32) if forces else np.zeros(1, np.int64)
        log_prob = np.zeros(1, np.float32)
        streams = np.array([act_stream(3, env_index, number)], np.uint64)
        actor.act(seen["obs"][-1][None], streams, np.array([step]), action, log_prob)
        obs, reward, terminated, truncated, _ = env.step(to_force(action[0]) if forces else action[0])
        truncated = truncated or (step == most - 1 and not terminated)
        seen["obs"].append(np.float32(obs).ravel())
        seen["actions"].append(action[0])
        seen["log_probs"].append(log_prob[0])
        seen["rewards"].append(np.float32(reward))
        seen["ends"].append((terminated, truncated))
        if terminated or truncated:
            break
    return seen


@pytest.mark.parametrize("forces", [False, True])
def test_rows_are_episodes_one_after_the_other(forces: bool) -> None:
    runner = LocalRunner(plan(forces=forces), [2, 3])
    fragments = [collect(runner, version=7) for _ in range(3)]
    for row, env_index in enumerate((2, 3)):
        number, place = 0, 0
        model = episode(env_index, 0, 99, forces=forces)
        lanes_episodes = []
        for fragment in fragments:
            assert fragment.version == 7
            assert fragment.env_indices.tolist() == [2, 3]
            np.testing.assert_array_equal(fragment.obs[0, row], model["obs"][place])
            for t in range(12):
                np.testing.assert_array_equal(fragment.actions[t, row], model["actions"][place])
                assert fragment.log_probs[t, row] == model["log_probs"][place]
                assert fragment.rewards[t, row] == model["rewards"][place]
                ends = fragment.terminations[t, row], fragment.truncations[t, row]
                assert ends == model["ends"][place]
                place += 1
                if any(ends):
                    np.testing.assert_array_equal(fragment.final_obs[t, row], model["obs"][place])
                    lanes_episodes.append((sum(map(float, model["rewards"])), place, number))
                    number, place = number + 1, 0
                    model = episode(env_index, number, 99, forces=forces)
                else:
                    assert not fragment.final_obs[t, row].any()
                np.testing.assert_array_equal(fragment.obs[t + 1, row], model["obs"][place])
        found = [
            (value, length, number)
            for fragment in fragments
            for value, length, (mine, number) in zip(
                fragment.returns, fragment.lengths, fragment.episodes.tolist(), strict=True
            )
            if mine == env_index
        ]
        assert found == lanes_episodes
        assert len(found) > 3


def test_whole_episodes_end_with_their_last_step() -> None:
    runner = LocalRunner(plan("episodes", num_steps=6))
    lengths = set()
    for number in (5, 0, 6, 7, 8, 9, 10):
        model = episode(NO_ENV, number, 6)
        fragment = collect(runner, number, 2)
        steps = len(model["rewards"])
        lengths.add(steps)
        np.testing.assert_array_equal(fragment.obs[:, 0], model["obs"])
        np.testing.assert_array_equal(fragment.actions[:, 0], model["actions"])
        np.testing.assert_array_equal(fragment.rewards[:, 0], model["rewards"])
        ends = np.stack([fragment.terminations[:, 0], fragment.truncations[:, 0]], 1)
        np.testing.assert_array_equal(ends, model["ends"])
        np.testing.assert_array_equal(fragment.final_obs[-1], fragment.obs[-1])
        assert fragment.lengths.tolist() == [steps] == [fragment.num_steps]
        assert fragment.returns.tolist() == [sum(map(float, model["rewards"]))]
        assert fragment.episodes.tolist() == [[NO_ENV, number]]
        assert fragment.env_indices.tolist() == [NO_ENV]
        assert fragment.version == 2
    assert len(lengths) > 2
    assert max(lengths) == 6


def test_an_episode_does_not_depend_on_its_company() -> None:
    together = LocalRunner(plan(), range(5))
    both = [collect(together), collect(together)]
    for env_index in range(5):
        alone = LocalRunner(plan(), [env_index])
        for fragment in both:
            assert rows([collect(alone)])[env_index] == rows([fragment])[env_index]


def test_time_is_counted_by_parts() -> None:
    runner = LocalRunner(plan(sleep=0.001), [0, 1])
    fragment = collect(runner)
    runner.load(chooser(1.0))
    assert set(runner.seconds) == set(ACTIVITIES)
    assert runner.seconds["environment"] >= fragment.rewards.size * 0.001
    assert all(runner.seconds[part] > 0 for part in ("inference", "buffer", "weights"))
    assert runner.seconds["waiting"] == 0


@pytest.mark.parametrize(
    ("obs", "actions", "message"),
    [
        (gymnasium.spaces.Box(-1, 1, (2, 2), np.float64), ACTIONS, "observation space .* learner expects"),
        (gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64), ACTIONS, "observation space"),
        (
            OBS,
            gymnasium.spaces.Discrete(4),
            r"action space of .*Noise is Discrete\(3\).* expects Discrete\(4\)",
        ),
    ],
)
def test_differing_spaces_are_refused(obs: Any, actions: Any, message: str) -> None:
    other = Plan(as_spec(Noise), Chooser, obs, actions, num_envs=1, num_steps=4)
    with pytest.raises(CollectError, match=message):
        collect(LocalRunner(other, [0]))


def test_after_a_failure_the_episodes_are_restarted(tmp_path: Any) -> None:
    runner = LocalRunner(plan(env=Broken, share=0.3, what="raise", once=str(tmp_path)), [0, 1])
    failures = 0
    ended = set()
    for _ in range(10):
        try:
            fragment = collect(runner)
        except ValueError:
            failures += 1
        else:
            ended |= {tuple(episode) for episode in fragment.episodes.tolist()}
    assert failures > 1
    for env_index in (0, 1):
        numbers = sorted(number for mine, number in ended if mine == env_index)
        assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_the_sequential_collector_collects(unit: Any) -> None:
    with SequentialCollector(plan(unit)) as collector:
        with pytest.raises(CollectError, match="publish"):
            collector.collect()
        assert collector.publish(chooser(1.0)) == 1
        fragments = collector.collect()
        assert len(fragments) == (17 if unit == "episodes" else 1)
        report = collector.report()
        assert report.steps == sum(map(len, fragments))
        assert report.episodes == sum(len(fragment.episodes) for fragment in fragments)
        assert report.cold_start > 0
        assert report.workers == 0
        assert collector.publish(chooser(2.0)) == 2
        taken = collector.take()
        assert taken.version == 2
        first = taken.episodes[0].tolist()
        assert first == [NO_ENV, 17] if unit == "episodes" else first[1] > 0


@pytest.mark.parametrize("breaks", [False, True])
def test_a_state_does_not_depend_on_when_states_were_asked_for(breaks: bool, tmp_path: Any) -> None:
    def collector(name: str) -> SequentialCollector:
        folder = tmp_path / name
        folder.mkdir()
        env: dict[str, Any] = (
            {"env": Broken, "share": 0.05, "what": "raise", "once": str(folder)} if breaks else {}
        )
        made = SequentialCollector(plan(num_steps=1, **env))
        made.publish(chooser(0.0))
        return made

    with (
        collector("often") as often,
        collector("once") as once,
        collector("new") as new,
        collector("both") as both,
    ):
        for i in range(150):
            [fragment] = often.collect()
            state = often.state_dict()
            assert np.array_equal(once.collect()[0].obs, fragment.obs)
            assert np.array_equal(new.take().obs, fragment.obs)
            taken = both.take() if i % 7 == 3 else both.collect()[0]
            assert np.array_equal(taken.obs, fragment.obs)
            if i % 40 == 39:
                assert once.state_dict() == both.state_dict() == state
        assert new.state_dict() == state
        assert bool(often.report().failures) == breaks


@pytest.mark.parametrize("unit", ["steps", "episodes"])
def test_another_collector_resumes_from_a_state(unit: Any) -> None:
    first, second = SequentialCollector(plan(unit)), SequentialCollector(plan(unit))
    first.publish(chooser(0.0))
    first.collect()
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.publish(chooser(0.0)) == 2
    ended = [episode for fragment in second.collect() for episode in fragment.episodes.tolist()]
    for env_index, number in state["numbers"].items():
        assert min(mine for other, mine in ended if other == env_index) == number
    with pytest.raises(ValueError, match="num_envs"):
        SequentialCollector(plan("steps", num_envs=9)).load_state_dict(state)


def test_repeated_failure_stops_the_sequential_collector() -> None:
    collector = SequentialCollector(plan("episodes", Broken, share=0.2, what="raise"), max_failures=4)
    collector.publish(chooser(0.0))
    with pytest.raises(CollectError, match=r"failed 4 times at episode .*this game is broken") as caught:
        collector.collect()
    assert "collect_cases.py" in caught.value.traceback
    assert len(collector.report().failures) == 4


def test_the_reference_is_what_it_was(tmp_path: Any) -> None:
    """Failed episodes are run again and give the same."""
    broken = plan("episodes", Broken, share=0.3, what="raise", once=str(tmp_path))
    with SequentialCollector(broken) as collector, SequentialCollector(plan("episodes")) as whole:
        for each in (collector, whole):
            each.publish(chooser(0.5))
        assert rows(collector.collect()) == rows(whole.collect())
        assert len(collector.report().failures) > 1


def test_a_failed_attempt_leaves_nothing_in_a_fragment(tmp_path: Any) -> None:
    broken = plan("steps", Broken, share=0.3, what="raise", once=str(tmp_path))
    with SequentialCollector(broken, max_failures=100) as collector:
        collector.publish(chooser(0.5))
        for _ in range(5):
            (fragment,) = collector.collect()
            assert not fragment.final_obs[~fragment.ended].any()
        assert len(collector.report().failures) > 1


def test_plans_of_functions_inside_functions_are_refused() -> None:
    with pytest.raises(TypeError, match="import path"):
        as_spec(functools.partial(Noise, wrapped=lambda: None))
