"""Sequences of rollouts: all steps of an episode, in order, from the right state, each once."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastrl.rollout.fragment import STEP_ARRAYS, Fragment
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.rollout.sequences import Sequences, obs_at

STATE = 3


def fragment(rng, steps, rows, number):
    """One whose observations are [number, row, step, 0], or with 1 at the end where they are final ones."""
    names = [(number, row, t) for t in range(steps + 1) for row in range(rows)]
    obs = np.array([[*name, 0] for name in names], np.float32).reshape(steps + 1, rows, 4)
    final = obs[1:].copy()
    final[..., 3] = 1
    states = rng.normal(size=(rows, STATE)).astype(np.float32)
    states[rng.random(rows) < 0.3] = 0
    return Fragment(
        obs=obs,
        actions=np.zeros((steps, rows), np.int64),
        log_probs=np.zeros((steps, rows), np.float32),
        rewards=np.zeros((steps, rows), np.float32),
        terminations=rng.random((steps, rows)) < 0.2,
        truncations=rng.random((steps, rows)) < 0.2,
        final_obs=final,
        version=1,
        env_indices=np.arange(rows),
        returns=np.zeros(0),
        lengths=np.zeros(0, np.int64),
        episodes=np.zeros((0, 2), np.int64),
        states=states,
        next_states=states,
    )


def team(rng, steps, rows, number):
    """The same of environments of 2 agents that come and go."""
    flat = fragment(rng, steps, 2 * rows, number)
    alive = rng.random((steps + 1, 2 * rows)) < 0.6
    for t in range(steps):
        flat.terminations[t] &= alive[t]
        flat.truncations[t] &= alive[t]
        alive[t + 1] |= alive[t] & ~(flat.terminations[t] | flat.truncations[t])
    flat.states[~alive[0]] = 0
    names = ("obs", *STEP_ARRAYS)
    given = {name: getattr(flat, name) for name in names}
    arrays = {name: array.reshape(len(array), rows, 2, *array.shape[2:]) for name, array in given.items()}
    states = flat.states.reshape(rows, 2, STATE)
    ends = np.zeros((steps, rows), np.bool_)
    own = dataclasses.replace(flat, **arrays, states=states, alive=alive.reshape(-1, rows, 2), ends=ends)
    return own, dataclasses.replace(flat, alive=alive)


def expected_sequences(fragments):
    """Sequences found by a loop over steps: of each its observations, the one that follows or None, and its state."""
    found = []
    for each in fragments:
        for row in range(each.num_rows):
            steps, state = [], each.states[row]
            for t in range(each.num_steps):
                if each.alive is not None and not each.alive[t, row]:
                    continue
                steps.append(each.obs[t, row])
                terminated, truncated = each.terminations[t, row], each.truncations[t, row]
                if terminated or truncated:
                    found.append((steps, None if terminated else each.final_obs[t, row], state))
                    steps, state = [], np.zeros(STATE, np.float32)
            if steps:
                found.append((steps, each.obs[-1, row], state))
    return found


def laid_out(sizes, seed):
    rng = np.random.default_rng(seed)
    fragments = [fragment(rng, steps, rows, number) for number, (steps, rows) in enumerate(sizes)]
    return fragments, lay_out(fragments, Rollout(1, 1, 4, 2, state_size=STATE))


def unpacked(rollout, sequences, nexts):
    """Of each sequence its observations, from the packed ones."""
    packed = sequences.packed(nexts)
    obs, at = obs_at(rollout, packed.places), 0
    found = [[] for _ in range(len(sequences))]
    for size in packed.batch_sizes.tolist():
        for sequence in range(size):
            found[sequence].append(obs[at + sequence])
        at += size
    assert at == len(obs)
    return found


def key(obs):
    return tuple(np.concatenate(obs).tolist())


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(
        st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4),
        st.tuples(st.integers(1, 6), st.integers(1, 4)).map(lambda size: [size] * 2),
    ),
    st.integers(0, 2**32),
)
def test_sequences_are_those_that_a_loop_finds(sizes, seed):
    fragments, rollout = laid_out(sizes, seed)
    sequences = Sequences.of(rollout)
    expected = {
        key(steps): (steps, following, state) for steps, following, state in expected_sequences(fragments)
    }
    assert len(sequences) == len(expected)
    with_nexts = unpacked(rollout, sequences, True)
    row_numbers = {}
    for i, steps in enumerate(unpacked(rollout, sequences, False)):
        expected_steps, following, state = expected.pop(key(steps))
        np.testing.assert_array_equal(steps, expected_steps)
        np.testing.assert_array_equal(sequences.states[i], state)
        assert sequences.continues[i] == bool(state.any())
        assert len(with_nexts[i]) == len(steps) + (following is not None)
        if following is not None:
            # The last step of a row that is laid end to end is a truncation there.
            np.testing.assert_array_equal(with_nexts[i][-1][:3], following[:3])
        row_numbers.setdefault(int(sequences.rows[i]), set()).add(tuple(steps[0][:2].tolist()))
    assert not expected
    assert sorted(row_numbers) == list(range(sum(rows for _, rows in sizes)))
    assert all(len(names) == 1 for names in row_numbers.values())


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(
        st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=4),
        st.tuples(st.integers(1, 6), st.integers(1, 4)).map(lambda size: [size] * 2),
    ),
    st.integers(0, 2**32),
)
def test_those_of_agents_that_come_and_go_are_those_that_a_loop_finds(sizes, seed):
    rng = np.random.default_rng(seed)
    made = [team(rng, steps, rows, number) for number, (steps, rows) in enumerate(sizes)]
    rollout = lay_out([own for own, _ in made], Rollout(1, 1, 4, 2, state_size=STATE, many_agents=True))
    sequences = Sequences.of(rollout)
    expected = {
        key(steps): (following, state)
        for steps, following, state in expected_sequences([flat for _, flat in made])
    }
    assert len(sequences) == len(expected)
    if not expected:
        return
    with_nexts = unpacked(rollout, sequences, True)
    for i, steps in enumerate(unpacked(rollout, sequences, False)):
        following, state = expected.pop(key(steps))
        np.testing.assert_array_equal(sequences.states[i], state)
        assert len(with_nexts[i]) == len(steps) + (following is not None)
        if following is not None:
            np.testing.assert_array_equal(with_nexts[i][-1][:3], following[:3])
    assert not expected


@settings(deadline=None, max_examples=60)
@given(st.tuples(st.integers(1, 8), st.integers(1, 5)), st.integers(0, 2**32), st.integers(1, 9))
def test_burn_in_takes_the_first_steps_of_what_continues(size, seed, num_steps):
    fragments, rollout = laid_out([size], seed)
    before = Sequences.of(rollout)

    def run(heads):
        assert heads.continues.all()
        return np.array(
            [np.concatenate(steps)[:STATE] + len(steps) for steps in unpacked(rollout, heads, False)]
        )

    left = before.burnt_in(num_steps, run)
    expected = {}
    for steps, _, state in expected_sequences(fragments):
        burnt = min(num_steps, len(steps)) if state.any() else 0
        if burnt:
            state = np.concatenate(steps[:burnt])[:STATE] + burnt
        if steps[burnt:]:
            expected[key(steps[burnt:])] = state
    found = unpacked(rollout, left, False) if len(left) else []
    assert len(found) == len(expected)
    for i, steps in enumerate(found):
        np.testing.assert_array_equal(left.states[i], expected[key(steps)])
    assert before.lengths.sum() == size[0] * size[1]


def test_fragments_of_another_memory_are_refused():
    fragments, _ = laid_out([(2, 2)], 0)
    for state_size in (0, STATE + 1):
        with pytest.raises(ValueError, match="memory of the actor that collected fragments has another size"):
            lay_out(fragments, Rollout(2, 2, 4, 2, state_size=state_size))
