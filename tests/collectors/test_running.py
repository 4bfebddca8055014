"""Running episodes replayed from their actions: with any collector, a resumed run equals one that never stopped."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from collect_cases import Lives, Remembering, chooser, plan, rows, updates

from fastrl.collectors import running
from fastrl.collectors.executor import ExecutorCollector
from fastrl.collectors.protocol import Plan
from fastrl.collectors.running import RunningEpisode, RunningEpisodes, packed, unpacked
from fastrl.collectors.sequential import SequentialCollector
from fastrl.collectors.synchronous import native_collector, sync_collector
from fastrl.envs.contract import CONTINUES
from fastrl.envs.pixels import make_stacked_pixels
from fastrl.envs.spec import as_spec
from random_actor import RandomActor

Maker = Callable[[Plan], Any]
PYTHON: dict[str, Maker] = {
    "sequential": SequentialCollector,
    "sync": partial(sync_collector, n_workers=2),
    "executor": partial(ExecutorCollector, n_workers=2),
}
COMPILED: dict[str, Maker] = {
    "sequential": SequentialCollector,
    "native": partial(native_collector, n_workers=2),
    "asynchronous": partial(native_collector, n_workers=2, asynchronous=2),
}


class Untrained(Remembering):
    """One without weights."""

    def __init__(self, forces: bool) -> None:
        super().__init__(forces)
        self.weights_nbytes = 0


def compiled_plan(continuous: bool, memory: bool = False) -> Plan:
    """Rows end at other steps than fragments, and not all at the same."""
    options: dict[str, Any] = {"episode_length": 30}
    if continuous:
        options = {"config": {"action": {"type": "ContinuousAction"}, "vehicles_count": 5, "duration": 11}}
    spec = as_spec("fastrl/highway-fast-v0" if continuous else "fastrl/Cage2-v0", **options)
    env = spec.make()
    actor: Any = partial(Untrained, continuous) if memory else partial(RandomActor, env.action_space)
    return Plan(spec, actor, env.observation_space, env.action_space, num_envs=5, num_steps=7, seed=4)


def expect_same(found: Any, expected: Any) -> None:
    """Of `rows`."""
    for mine, theirs in zip(found, expected, strict=True):
        assert [key for key in theirs if mine[key] != theirs[key]] == []


@pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
@pytest.mark.parametrize("forces", [False, True], ids=["discrete", "continuous"])
def test_collectors_of_python_environments_resume_bit_exactly(forces: bool, memory: bool) -> None:
    same = plan(forces=forces, memory=memory, num_steps=11)
    with SequentialCollector(same) as straight:
        expected = updates(straight, 2)
        state = straight.state_dict()
        assert any(each.actions for each in state["running"].values())
        later = updates(straight, 2)
        end = straight.state_dict()
    for name, make in PYTHON.items():
        with make(same) as first:
            expect_same(updates(first, 2), expected)
            assert first.state_dict() == state, name
        with make(same) as second:
            second.load_state_dict(state)
            assert second.state_dict() == state, name
            expect_same(updates(second, 2), later)
            assert second.state_dict() == end, name
            assert second.report().diverged == 0


@pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
def test_games_whose_lives_are_episodes_resume_bit_exactly(memory: bool) -> None:
    same = replace(plan(env=Lives, memory=memory, num_steps=11), episode_info=(CONTINUES,))
    with SequentialCollector(same) as straight:
        expected, states = [], []
        for update in range(5):
            straight.publish(chooser(update))
            expected.append(rows(straight.collect()))
            states.append(straight.state_dict())
    lives = [[each.lives for each in state["running"].values()] for state in states]
    assert {0, 1, 2} <= {count for counts in lives for count in counts}
    lengths = [len(each.actions) for state in states for each in state["running"].values()]
    assert max(lengths) > same.num_steps
    for name, make in PYTHON.items():
        for stop in (0, 2):
            with make(same) as second:
                second.load_state_dict(unpacked(packed(states[stop])))
                assert second.state_dict() == states[stop], name
                for update in range(stop + 1, 5):
                    second.publish(chooser(update))
                    expect_same([rows(second.collect())], [expected[update]])
                    assert second.state_dict() == states[update], name
                assert second.report().diverged == 0


def test_games_that_end_elsewhere_are_restarted() -> None:
    same = replace(plan(env=Lives, num_steps=11), episode_info=(CONTINUES,))
    with SequentialCollector(same) as first:
        updates(first, 3)
        state = first.state_dict()
    counted = {index: each for index, each in state["running"].items() if each.lives}
    assert counted
    # A life fewer than the actions take.
    wrong = {index: each._replace(lives=each.lives - 1) for index, each in counted.items()}
    for make in (PYTHON["sequential"], PYTHON["sync"]):
        with make(same) as collector:
            collector.load_state_dict(state | {"running": state["running"] | wrong})
            collector.publish(chooser(0))
            [fragment] = collector.collect()
            assert collector.report().diverged == len(wrong)
            for index in wrong:
                mine = [number for env_index, number in fragment.episodes.tolist() if env_index == index]
                assert mine == list(range(state["numbers"][index], state["numbers"][index] + len(mine)))
    with pytest.raises(ValueError, match="episode 0 of the state continues 1 episodes"):
        RunningEpisodes(same, range(5)).load([0] * 5, {2: RunningEpisode(lives=1)})


def test_lives_of_an_atari_game_resume_bit_exactly() -> None:
    pytest.importorskip("ale_py")
    spec = as_spec(make_stacked_pixels, env_id="ALE/Breakout-v5", size=8, life_loss_ends=True)
    env = spec.make()
    same = Plan(
        spec,
        partial(RandomActor, env.action_space),
        env.observation_space,
        env.action_space,
        num_envs=2,
        num_steps=70,
        seed=1,
        episode_info=(CONTINUES,),
    )
    with SequentialCollector(same) as straight:
        straight.collect()
        state = straight.state_dict()
        expected = rows(straight.collect())
    assert max(each.lives for each in state["running"].values()) > 0
    with SequentialCollector(same) as second:
        second.load_state_dict(state)
        expect_same([rows(second.collect())], [expected])
        assert second.report().diverged == 0


@pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_collectors_of_compiled_environments_resume_bit_exactly(continuous: bool, memory: bool) -> None:
    same = compiled_plan(continuous, memory)

    def collected(collector: Any) -> list[Any]:
        return [rows(collector.collect()) for _ in range(4)]

    with SequentialCollector(same) as straight:
        collected(straight)
        state = straight.state_dict()
        expected = collected(straight)
        end = straight.state_dict()
    lengths = {len(each.actions) for each in state["running"].values()}
    assert max(lengths) > same.num_steps
    for name, make in COMPILED.items():
        with make(same) as collector:
            collector.load_state_dict(state)
            expect_same(collected(collector), expected)
            assert collector.state_dict() == end, name
            assert collector.report().diverged == 0


@pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ["sequential", "sync", "executor"])
def test_episodes_that_diverge_are_restarted_and_counted(name: str, memory: bool) -> None:
    same = plan(memory=memory, num_steps=11)
    with SequentialCollector(same) as first:
        updates(first, 1)
        state = first.state_dict()
    saved = state["running"]
    elsewhere = {
        env_index: saved[env_index]._replace(obs=bytes(len(saved[env_index].obs))) for env_index in (0, 3)
    }
    # One that has ended by then leads elsewhere, too.
    elsewhere[4] = saved[4]._replace(actions=bytes(10))
    with PYTHON[name](same) as collector:
        collector.load_state_dict(state | {"running": saved | elsewhere})
        got = updates(collector, 1)
        assert collector.report().diverged == 3
        after = collector.state_dict()
    lacking = {env_index: each for env_index, each in saved.items() if env_index not in elsewhere}
    with PYTHON[name](same) as collector:
        collector.load_state_dict(state | {"running": lacking})
        expect_same(updates(collector, 1), got)
        assert collector.report().diverged == 0
        assert collector.state_dict() == after


@pytest.mark.parametrize("memory", [False, True], ids=["plain", "memory"])
def test_compiled_episodes_that_diverge_are_restarted(memory: bool) -> None:
    same = compiled_plan(False, memory)
    with SequentialCollector(same) as first:
        first.collect()
        state = first.state_dict()
    saved = state["running"]
    # One that ended long ago, and one whose observation is another.
    elsewhere = {
        1: saved[1]._replace(actions=bytes(40)),
        4: saved[4]._replace(obs=bytes(len(saved[4].obs))),
    }
    expected = None
    for make in COMPILED.values():
        with make(same) as collector:
            collector.load_state_dict(state | {"running": saved | elsewhere})
            got = rows(collector.collect())
            assert collector.report().diverged == 2
        expected = expected or got
        expect_same([got], [expected])


def test_of_long_episodes_no_actions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LONGEST", 20)
    same = compiled_plan(False)
    with SequentialCollector(same) as collector:
        found = []
        for _ in range(5):
            collector.collect()
            found.append([len(each.actions) for each in collector.state_dict()["running"].values()])
            # Memory is bounded, too.
            assert collector.running_episodes.steps <= 20 + same.num_steps
    assert found == [[7] * 5, [14] * 5, [], [], [5] * 5]


def test_episodes_of_another_plan_are_refused() -> None:
    discrete, continuous, remembering = plan(), plan(forces=True), plan(memory=True)
    for same, episode in (
        (discrete, RunningEpisode(bytes([3]))),
        (discrete, RunningEpisode(b"", bytes(4))),
        (continuous, RunningEpisode(bytes(9))),
        (discrete, RunningEpisode(b"", bytes(16), bytes(8))),
        (remembering, RunningEpisode(b"", bytes(16))),
        (remembering, RunningEpisode(b"", bytes(16), bytes(4))),
        (remembering, RunningEpisode(b"", bytes(16), b"\xff" * 8)),
    ):
        with pytest.raises(ValueError, match="the state's running episodes have"):
            RunningEpisodes(same, range(5)).load([0] * 5, {2: episode})
