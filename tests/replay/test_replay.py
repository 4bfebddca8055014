"""The storage of fastrl.replay: against lists of episodes, files, threads, queues."""

import itertools
import json
import threading
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_model import EXTRA, MASKS, OBS_SHAPE, Model, Writer, all_of, contents, rows_of

from fastrl.queue import Queue
from fastrl.replay import MixedSampler, PrioritizedSampler, Replay, ReplayError, UniformSampler
from fastrl.replay.prefetch import Prefetcher

flags = st.tuples(
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
)
operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "add_many", "append", "append", "append_steps", "append_steps", "cut"]
        ),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.lists(flags, min_size=1, max_size=6),
        st.sampled_from([True, True, True, False]),
    ),
    max_size=14,
)


def make(capacity, num_envs=1, stack=1, pad="zero", dtype=np.uint8, masks="none", **options):
    options |= {"stack": stack, "pad": pad, **MASKS[masks]}
    replay = Replay(capacity, OBS_SHAPE, dtype, num_envs=num_envs, extra=EXTRA, **options)
    return replay, Model(num_envs, replay.rows_per_env, stack, pad, **MASKS[masks])


def everything(replay, n_step=1, gamma=0.99):
    """All that may be sampled, each once."""
    if len(replay) == 0:
        return []
    sampler = UniformSampler(replay, len(replay), n_step=n_step, gamma=gamma, replacement=False)
    batch = sampler.sample()
    assert len(set(batch.indices.tolist())) == len(replay)
    return rows_of(batch)


def check(replay, model, n_step=1, gamma=0.99):
    assert len(replay) == len(model.starts())
    assert sorted(everything(replay, n_step, gamma)) == sorted(model.transitions(n_step, gamma))


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(
    operations,
    st.integers(1, 14),
    st.integers(1, 3),
    st.sampled_from([1, 3]),
    st.sampled_from(["zero", "repeat"]),
    st.integers(1, 4),
    st.sampled_from(list(MASKS)),
)
def test_matches_the_model_of_lists_of_episodes(operations, capacity, num_envs, stack, pad, n_step, masks):
    replay, model = make(capacity, num_envs, stack, pad, masks=masks)
    writer = Writer(replay, model)
    for operation in operations:
        writer.do(operation)
        check(replay, model, n_step, 0.9)
        assert replay.lost == model.lost


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(operations, st.integers(1, 4), st.sampled_from(list(MASKS)))
def test_mixed_batches_drawn_ahead_have_transitions_of_each_model(operations, n_step, masks):
    parts, models = [], []
    for kind, number in ((UniformSampler, 0), (PrioritizedSampler, 1000)):
        replay, model = make(12, 3, masks=masks)
        writer = Writer(replay, model)
        writer.count = number
        for operation in operations:
            writer.do(operation)
        if len(replay) == 0:
            return
        parts.append(kind(replay, 16, n_step=n_step, gamma=0.9))
        models.append(model)
    with Prefetcher(MixedSampler(*parts)) as ahead:
        rows = rows_of(ahead.sample())
    for own, model in ((rows[:16], models[0]), (rows[16:], models[1])):
        assert set(own) <= set(model.transitions(n_step, 0.9))


def test_replays_with_other_masks_do_not_mix():
    samplers = {name: UniformSampler(make(5, masks=name)[0], 2) for name in MASKS}
    for first, second in itertools.permutations(MASKS, 2):
        with pytest.raises(ValueError, match="both replays must have the same rows"):
            MixedSampler(samplers[first], samplers[second])


@pytest.mark.parametrize("masks", ["none", "final"])
@pytest.mark.parametrize("stack", [1, 4])
def test_long_streams_through_many_turns_of_the_ring(stack, masks):
    replay, model = make(50, 3, stack, "repeat", np.float32, masks)
    writer = Writer(replay, model)
    generator = np.random.default_rng(5)
    for turn in range(300):
        kind = ("add", "add_many", "append", "append_steps")[generator.integers(4)]
        ends = [tuple(bool(end) for end in generator.random(3) < 0.06) for _ in range(7)]
        writer.do((kind, generator.integers(0, 3, 7).tolist(), ends, bool(generator.random() < 0.95)))
        if turn % 10 == 0:
            check(replay, model, 1 + turn % 4)
    check(replay, model, 3)
    assert model.rings[0].head > 10 * replay.rows_per_env


# The mistakes of well-known buffers.


def fill(replay, lengths, env=0, terminated=True, first=0):
    """Episodes whose observations count up from ``first``; all end in ``terminated``, or else truncated."""
    number = first
    for length in lengths:
        for i in range(length):
            last = i == length - 1
            obs = np.full(replay.dtype["obs"].shape, number, replay.dtype["obs"].base)
            replay.add(obs, i, 1.0, obs + 1, last and terminated, last and not terminated, env)
            number += 1
        number += 1
    return number


def test_terminated_and_truncated_are_separate():
    replay = Replay(100, (1,))
    fill(replay, [3], terminated=True)
    fill(replay, [3], terminated=False, first=10)
    batch = all_of(replay)
    by_obs = {int(obs): i for i, obs in enumerate(batch.obs[:, 0])}
    ended, cut = by_obs[2], by_obs[12]
    assert (bool(batch.terminated[ended]), bool(batch.truncated[ended])) == (True, False)
    assert (bool(batch.terminated[cut]), bool(batch.truncated[cut])) == (False, True)
    assert batch.discounts[ended] == 0
    assert batch.discounts[cut] == np.float32(0.99)


def test_both_terminated_and_truncated_counts_as_terminated():
    replay = Replay(10, (1,))
    replay.add(np.zeros(1, np.float32), 0, 1.0, np.ones(1, np.float32), True, True)
    batch = all_of(replay)
    assert batch.terminated[0] and batch.truncated[0] and batch.discounts[0] == 0


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("terminated", [True, False])
def test_true_last_observation_is_kept(stack, terminated):
    replay = Replay(100, (1,), stack=stack)
    fill(replay, [3, 2], terminated=terminated)
    batch = all_of(replay)
    newest = batch.obs.reshape(5, -1)[:, -1], batch.next_obs.reshape(5, -1)[:, -1]
    assert torch.equal(newest[1], newest[0] + 1)


def test_last_observation_is_kept_when_add_many_continues_with_the_reset():
    replay = Replay(100, (1,), num_envs=2)
    flags = np.array([[0, 0], [1, 0], [0, 1], [0, 0]], bool)
    now, model = np.array([[0.0], [100.0]], np.float32), []
    for ended in flags:
        after = now + 1
        replay.add_many(now, np.zeros(2, np.int64), np.zeros(2, np.float32), after, np.zeros(2, bool), ended)
        model += [(float(now[i, 0]), float(after[i, 0])) for i in range(2)]
        now = np.where(ended[:, None], after + 50, after)
    batch = all_of(replay)
    pairs = zip(batch.obs[:, 0].tolist(), batch.next_obs[:, 0].tolist(), strict=True)
    assert sorted(pairs) == sorted(model)


@pytest.mark.parametrize("n_step", [2, 3, 10])
@pytest.mark.parametrize("terminated", [True, False])
def test_n_steps_end_with_the_episode(n_step, terminated):
    replay = Replay(100, (1,))
    fill(replay, [4, 4], terminated=terminated)
    batch = all_of(replay, n_step=n_step, gamma=0.5)
    for obs, rewards, after, discount in zip(
        batch.obs[:, 0], batch.rewards, batch.next_obs[:, 0], batch.discounts, strict=True
    ):
        steps = min(n_step, 4 - int(obs) % 5)
        is_last = int(obs) % 5 + steps == 4
        assert after == obs + steps
        assert rewards == sum(0.5**i for i in range(steps))
        assert discount == (0 if is_last and terminated else 0.5**steps)


def test_n_steps_end_at_the_cursor_of_a_full_ring():
    replay = Replay(5, (1,))
    for i in range(23):  # one episode without an end
        obs = np.full(1, i, np.float32)
        replay.add(obs, 0, 1.0, obs + 1, False, False)
        batch = all_of(replay, n_step=3, gamma=1.0)
        assert (batch.next_obs[:, 0] == torch.clamp(batch.obs[:, 0] + 3, max=i + 1)).all()
        assert torch.equal(batch.rewards, batch.next_obs[:, 0] - batch.obs[:, 0])
        assert (batch.discounts == 1).all()


def test_n_steps_stay_in_their_environment():
    replay = Replay(40, (1,), num_envs=2)
    for i in range(50):
        for env in range(2):
            obs = np.full(1, i + 1000 * env, np.float32)
            replay.add(obs, 0, float(env), obs + 1, False, False, env)
    batch = all_of(replay, n_step=5, gamma=1.0)
    own = batch.obs[:, 0] >= 1000
    assert torch.equal(own, batch.next_obs[:, 0] >= 1000)
    assert (batch.rewards[~own] == 0).all()
    assert torch.equal(batch.rewards[own], (batch.next_obs - batch.obs)[own, 0])


@pytest.mark.parametrize("pad", ["zero", "repeat"])
def test_stacks_stay_in_their_episode_in_a_full_ring_too(pad):
    replay = Replay(23, (1,), stack=4, pad=pad)
    number = 1
    for turn in range(30):
        first = number
        number = fill(replay, [1 + turn % 5], first=first)
        batch = all_of(replay)
        stacks = torch.cat([batch.obs, batch.next_obs])[:, :, 0]
        newest = stacks[:, -1]
        assert (newest >= number - 40).all()
        for stack in stacks.tolist():
            frames = [frame for frame in stack if frame]
            steps = np.diff(frames)
            # In order, without a gap, and with what stands for older frames before.
            assert ((steps == 1) | ((steps == 0) & (pad == "repeat"))).all()
            assert (np.diff(steps) >= 0).all()


def test_stacks_never_have_overwritten_frames():
    replay = Replay(10, (1,), stack=4)
    fill(replay, [100], first=1)
    batch = all_of(replay)
    assert (batch.obs > 0).all()
    assert batch.obs[:, -1].min() == 101 - replay.rows_per_env + 4


def test_steps_without_next_observation_are_not_sampled():
    replay = Replay(100, (1,))
    records = np.zeros(3, replay.dtype)
    records["obs"][:, 0] = [0, 1, 2]
    replay.append(records[:1])
    assert len(replay) == 0
    with pytest.raises(ValueError, match="no transition yet"):
        UniformSampler(replay, 1).sample()
    replay.append(records[1:])
    batch = all_of(replay)
    assert sorted(batch.obs[:, 0].tolist()) == [0, 1]
    assert torch.equal(batch.next_obs, batch.obs + 1)


def test_drawing_takes_one_try_even_if_few_rows_are_valid():
    """One transition in a ring of 10,000 rows of single observations: every draw is that one."""
    replay = Replay(10_000, (1,))
    replay.add(np.zeros(1, np.float32), 7, 1.0, np.ones(1, np.float32), True, False)
    records = np.zeros(1, replay.dtype)
    for _ in range(9_000):
        replay.append(records)
        replay.cut(0)
    assert len(replay) == 1
    for sampler in (UniformSampler(replay, 256), PrioritizedSampler(replay, 256)):
        assert (sampler.sample().actions == 7).all()


def test_each_frame_is_stored_once():
    replay = Replay(1000, (84, 84), np.uint8, stack=4)
    assert replay.nbytes / 1000 <= 7500


def test_a_mask_takes_a_byte_for_each_action():
    sizes = [Replay(1000, (3,), num_masked=masked).dtype.itemsize for masked in (0, 80)]
    assert sizes[1] - sizes[0] <= 80


# Files.


def written(path=None, stack=1, masks="none"):
    replay, model = make(20, 2, stack, "repeat", masks=masks, path=path)
    writer = Writer(replay, model)
    for i in range(30):
        writer.add([0, 1, 1], [(i % 7 == 6, False, False), (False, i % 5 == 4, False)], True)
    writer.append([0, 0, 1], [(False, False, False)] * 3, True)
    return replay, model, writer


@pytest.mark.parametrize(("stack", "masks"), [(1, "final"), (3, "none"), (1, "acted")])
@pytest.mark.parametrize("how", ["load", "open"])
@pytest.mark.parametrize("sampler", [UniformSampler, PrioritizedSampler])
def test_a_loaded_replay_continues_exactly(tmp_path, stack, masks, how, sampler):
    replay, model, writer = written(stack=stack, masks=masks)
    first = sampler(replay, 8, n_step=3, seed=4)
    for _ in range(5):
        batch = first.sample()
        if sampler is PrioritizedSampler:
            first.update_priorities(batch.indices, batch.rewards.abs())
    replay.save(tmp_path / "saved")
    again = getattr(Replay, how)(tmp_path / "saved")
    second = sampler(again, 8, n_step=3, seed=0)
    second.load_state_dict(first.state_dict())
    assert (again.num_masked, again.final_masks) == (replay.num_masked, replay.final_masks)
    check(again, model, 3)
    for _ in range(20):
        writer.replay = replay
        count, now = writer.count, list(writer.now)
        writer.append([0, 1, 1], [(False, False, False), (True, False, False)], True)
        writer.count, writer.now, writer.replay, writer.model = count, now, again, Model(2, 21)
        writer.model.append = lambda record: None
        writer.append([0, 1, 1], [(False, False, False), (True, False, False)], True)
        a, b = first.sample(), second.sample()
        assert rows_of(a) == rows_of(b)
        assert torch.equal(a.indices, b.indices)
        assert torch.equal(a.weights, b.weights)
        if sampler is PrioritizedSampler:
            first.update_priorities(a.indices, a.rewards.abs())
            second.update_priorities(b.indices, b.rewards.abs())
    assert contents(replay) == contents(again)


def test_storage_on_disk_is_reopened(tmp_path):
    replay, model, writer = written(tmp_path / "disk")
    check(replay, model)
    replay.flush()
    del replay
    writer.replay = None
    again = Replay.open(tmp_path / "disk")
    check(again, model, 2)
    writer.replay = again
    writer.add([0, 1], [(False, False, False)], False)
    check(again, model, 2)
    check(Replay.load(tmp_path / "disk"), model, 2)
    with pytest.raises(FileExistsError):
        Replay(10, (3,), path=tmp_path / "disk")


def test_saving_replaces_saved_replays_and_nothing_else(tmp_path):
    replay, model, writer = written()
    replay.save(tmp_path / "saved")
    writer.add([0], [(True, False, False)], True)
    replay.save(tmp_path / "saved")
    check(Replay.load(tmp_path / "saved"), model)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError):
        replay.save(tmp_path / "mine")


def test_files_are_the_same_each_time(tmp_path):
    for name in ("a", "b"):
        written()[0].save(tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_missing_files(tmp_path):
    for how in (Replay.load, Replay.open):
        with pytest.raises(FileNotFoundError):
            how(tmp_path / "no")


@pytest.mark.parametrize("name", ["rows", "rings", "ages", "starts"])
@pytest.mark.parametrize("damage", ["cut", "longer", "gone", "flipped"])
def test_damaged_files_are_refused(tmp_path, name, damage):
    written()[0].save(tmp_path / "saved")
    file = tmp_path / "saved" / f"{name}.bin"
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    else:
        data[len(data) // 2] ^= 0x10
        file.write_bytes({"cut": data[:-1], "longer": data + b"x", "flipped": data}[damage])
    with pytest.raises(ReplayError) as caught:
        Replay.load(tmp_path / "saved")
    assert "\n" not in str(caught.value)


def test_damaged_descriptions_are_refused(tmp_path):
    written()[0].save(tmp_path / "saved")
    file = tmp_path / "saved" / "replay.json"
    whole = file.read_text()
    description = json.loads(whole)
    changes = [
        "",
        whole[:50],
        "[]",
        "7",
        {**description, "version": 99},
        {**description, "shape": [2]},
        {**description, "shape": []},
        {**description, "shape": [-2, -21]},
        {**description, "shape": [1 << 40, 1 << 40]},
        {**description, "shape": [1 << 63, 2]},
        {**description, "shape": "ab"},
        {**description, "stack": 0},
        {**description, "stack": 400},
        {**description, "pad": 3},
        {**description, "final_masks": True},
        {**description, "dtype": None},
        {**description, "dtype": {**description["dtype"], "names": ["a"]}},
        {**description, "dtype": {**description["dtype"], "itemsize": 1}},
        {**description, "dtype": {**description["dtype"], "offsets": [1 << 40] * 8}},
        {key: value for key, value in description.items() if key != "dtype"},
    ]
    for index, kind in [
        (1, "|O"),
        (3, "<f2"),
        (3, "<f8"),
        (0, "<i8"),
        (4, "<i4"),
        (6, "|u1"),
        (1, "nonsense"),
    ]:
        formats = [*description["dtype"]["formats"]]
        formats[index] = {**formats[index], "base": kind} if isinstance(formats[index], dict) else kind
        changes.append({**description, "dtype": {**description["dtype"], "formats": formats}})
    # A field of masks that are no vectors of bools.
    names = [*description["dtype"]["names"][:-1], "mask"]
    changes.append({**description, "dtype": {**description["dtype"], "names": names}})
    for change in changes:
        file.write_text(change if isinstance(change, str) else json.dumps(change))
        for how in (Replay.load, Replay.open):
            with pytest.raises(ReplayError) as caught:
                how(tmp_path / "saved")
            assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(-3, 1 << 40))
def test_states_that_contradict_themselves_are_refused_or_safe(tmp_path_factory, word, value):
    """A file may say anything: what can be read lies inside of the rows."""
    folder = tmp_path_factory.mktemp("replay") / "saved"
    written()[0].save(folder)
    rings = np.fromfile(folder / "rings.bin", np.int64)
    rings[word] = value
    rings.tofile(folder / "rings.bin")
    description = json.loads((folder / "replay.json").read_text())
    (folder / "replay.json").write_text(json.dumps({**description, "checksums": None}))
    try:
        again = Replay.load(folder)
    except ReplayError:
        return
    rows = np.fromfile(folder / "rows.bin", again.dtype)
    if len(again):
        assert np.isin(UniformSampler(again, 64, n_step=3).sample().obs, rows["obs"]).all()
        again.add(np.zeros(3, np.uint8), 0, 0.0, np.zeros(3, np.uint8), False, False, extra=1.0)


# Threads and queues.


def checked(rng, shape):
    """An observation whose last four bytes are the checksum of the others."""
    obs = rng.integers(0, 256, shape, np.uint8)
    obs[-4:] = np.frombuffer(np.uint32(zlib.crc32(obs[:-4].data)).tobytes(), np.uint8)
    return obs


@pytest.mark.parametrize("sampler", [UniformSampler, PrioritizedSampler])
def test_a_writer_and_a_sampler_at_once_tear_no_row(sampler):
    replay = Replay(64, (2000,), np.uint8)
    rng = np.random.default_rng(1)
    obs = [checked(rng, 2000) for _ in range(97)]
    number = {frame.tobytes(): i for i, frame in enumerate(obs)}
    many = np.stack(obs[:40])
    done = threading.Event()

    def write():
        records = np.zeros(40, replay.dtype)
        records["obs"] = many
        records["action"] = np.arange(40)
        for turn in range(400):
            for i in range(20):
                replay.add(obs[i], i, float(i), obs[i + 1], False, turn % 3 == 0 and i == 19)
            replay.cut(0)
            replay.append(records)
            replay.cut(0)
        done.set()

    thread = threading.Thread(target=write)
    draw = sampler(replay, 32, seed=3)
    thread.start()
    draws = 0
    try:
        while not done.is_set() or draws < 20:
            if len(replay) == 0:
                continue
            batch = draw.sample()
            draws += 1
            for frames, offset in ((batch.obs, 0), (batch.next_obs, 1)):
                for frame, action in zip(frames.numpy(), batch.actions.tolist(), strict=True):
                    assert number[frame.tobytes()] == action + offset
            if sampler is PrioritizedSampler:
                draw.update_priorities(batch.indices, np.full(32, 0.5))
    finally:
        thread.join()


def test_appends_directly_from_a_queue():
    direct, model = make(30, 2)
    queued, _ = make(30, 2)
    writer = Writer(direct, model)
    with Queue(queued.dtype, 64) as queue, queue.producer() as producer:
        sent = []
        direct_append = model.append
        model.append = lambda record: (sent.append(record.copy()), direct_append(record))
        for i in range(40):
            writer.append([0, 1, 0], [(i % 6 == 5, False, False), (False, i % 4 == 3, i % 4 == 0)], True)
            producer.put_many(np.array(sent, queued.dtype))
            # A view ends where the ring does; the rest comes with the next one.
            came = 0
            while came < len(sent):
                with queue.peek() as records:
                    queued.append(records)
                    came += len(records)
            sent.clear()
            check(queued, model, 2)
    assert contents(direct) == contents(queued)


def test_is_not_pickled():
    with pytest.raises(TypeError, match="save it"):
        make(3)[0].__reduce__()
