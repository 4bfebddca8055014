from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastrl.utils import seeding

WORD = 2**64 - 1
U64 = st.integers(0, WORD)


def slow_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


@given(U64)
def test_mix_is_splitmix64s_finaliser(x: int) -> None:
    assert int(seeding.mix(np.uint64(x))) == slow_mix(x)


def test_the_sequence_of_splitmix64_from_seed_0_is_the_published_one() -> None:
    words = [int(seeding.mix(np.uint64((i * int(seeding.GOLDEN)) & WORD))) for i in (1, 2, 3)]
    assert words == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(U64, st.lists(st.integers(0, 2**63), max_size=3))
def test_a_stream_chains_the_hash_over_its_indices(seed: int, indices: list[int]) -> None:
    golden = int(seeding.GOLDEN)
    state = slow_mix((seed + golden) & WORD)
    for index in indices:
        state = slow_mix(state ^ slow_mix((index + golden) & WORD))
    assert int(seeding.stream(seed, *indices)) == state


@given(U64, st.lists(st.integers(0, 2**40), min_size=1, max_size=8))
def test_streams_of_arrays_are_those_of_their_items(seed: int, indices: list[int]) -> None:
    together = seeding.stream(seed, 1, np.array(indices))
    assert [int(each) for each in together] == [int(seeding.stream(seed, 1, index)) for index in indices]


def test_environments_and_actions_draw_from_different_streams() -> None:
    seeds = {seeding.env_seed(3, index, number) for index in range(50) for number in range(50)}
    acts = {seeding.act_stream(3, index, number) for index in range(50) for number in range(50)}
    assert len(seeds) == len(acts) == 2500
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert not seeds & {act >> 33 for act in acts}


@given(U64, st.integers(0, 2**40), st.integers(0, 2**40))
def test_one_episode_is_drawn_as_many_are(seed: int, index: int, number: int) -> None:
    assert seeding.env_seed(seed, index, number) == int(seeding.stream(seed, 1, index, number)) >> 33
    assert seeding.act_stream(seed, np.int64(index), np.int64(number)) == int(
        seeding.stream(seed, 2, index, number)
    )


@given(st.lists(st.tuples(U64, st.integers(0, 2**40)), min_size=1, max_size=8))
def test_uniforms_are_the_top_bits_of_the_hash(draws: list[tuple[int, int]]) -> None:
    keys, steps = zip(*draws, strict=True)
    numbers = seeding.uniforms(np.array(keys, np.uint64), np.array(steps, np.int64))
    golden = int(seeding.GOLDEN)
    slow = [slow_mix((key + (step + 1) * golden) & WORD) >> 40 for key, step in draws]
    assert numbers.dtype == np.float32
    assert (numbers.astype(np.float64) * 2**24).tolist() == slow


def test_uniforms_are_uniform() -> None:
    keys = seeding.stream(1, np.arange(1000))
    numbers = np.array([seeding.uniforms(keys, np.full(1000, t)) for t in range(100)])
    counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
    # Chi-square with 49 degrees of freedom: beyond 110 once in a million.
    assert ((counts - 2000) ** 2 / 2000).sum() < 110
    assert abs(np.corrcoef(numbers[0], numbers[1])[0, 1]) < 0.15


@given(st.lists(st.tuples(U64, st.integers(0, 2**40)), min_size=1, max_size=8), st.integers(1, 5))
def test_numbers_of_parts_are_hashes_of_the_steps_bits(draws: list[tuple[int, int]], parts: int) -> None:
    keys, steps = (list(each) for each in zip(*draws, strict=True))
    streams, at = np.array(keys, np.uint64), np.array(steps, np.int64)
    bits = [[slow_part(*each, part) for part in range(parts)] for each in draws]
    uniforms = seeding.uniforms_of_parts(streams, at, parts)
    assert (uniforms.astype(np.float64) * 2**24).tolist() == [[x >> 40 for x in row] for row in bits]
    # Box and Muller: the cosine, then the sine of the angle.
    pairs = [[z for x in row for z in slow_normals(x)] for row in bits]
    for size in (2 * parts, 2 * parts - 1):
        normals = seeding.normals(streams, at, size)
        assert normals.dtype == np.float32
        np.testing.assert_allclose(normals, np.array(pairs)[:, :size], rtol=1e-6, atol=1e-12)


@given(U64, st.integers(0, 2**40), st.integers(1, 70))
def test_noise_has_the_pairs_of_a_step_side_by_side(key: int, step: int, size: int) -> None:
    noise, half = seeding.noise(key, step, size), (size + 1) // 2
    pairs = np.array([slow_normals(slow_part(key, step, pair)) for pair in range(half)])
    np.testing.assert_allclose(noise, pairs.T.reshape(-1)[:size], atol=2e-6)
    assert noise.dtype == np.float32


def slow_part(key: int, step: int, part: int) -> int:
    golden = int(seeding.GOLDEN)
    return slow_mix((slow_mix((key + (step + 1) * golden) & WORD) + (part + 1) * golden) & WORD)


def slow_normals(bits: int) -> tuple[float, float]:
    radius = math.sqrt(-2 * math.log1p(-(bits >> 40) / 2**24))
    angle = 2 * math.pi * ((bits << 24 & WORD) >> 40) / 2**24
    return radius * math.cos(angle), radius * math.sin(angle)
