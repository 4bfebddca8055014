"""Circular replay: one storage of experience, and samplers that draw from it.

```python
replay = Replay(1_000_000, (84, 84), np.uint8, num_envs=8, stack=4)      # every frame is kept once
sampler = PrioritizedSampler(replay, batch_size=256, n_step=3, gamma=0.99, seed=1)

replay.add_many(frames, actions, rewards, next_frames, terminated, truncated)   # a step of each environment
with queue.peek(1024) as records:                                              # or directly from a queue
    replay.append(records)

batch = sampler.sample()                       # torch tensors, valid until two more batches have been drawn
sampler.update_priorities(batch.indices, errors)
```

**Storage.** Each environment has a ring of rows, and each observation is stored once: the next observation of a step is
the observation of the following row. At the end of an episode one more row, an end row, holds its true last
observation. `terminated` and `truncated` are stored separately. The storage maintains a list of the steps that can be
sampled, so sampling never rejects a draw.

**Action masks.** With `num_masked` each observation that is acted on has a mask of the allowed actions, with
`final_masks` the last one of an episode, too. Batches have them as `masks` and `next_masks`, which are None if the
replay has none. Only after a termination, where nothing follows, a mask may be all False.

**Sequences and goals.** `SequenceSampler` draws sequences within one episode, with steps before them to warm up a
recurrent network; `HindsightSampler` replaces goals by goals that were achieved later in the episode.
`MixedSampler` draws an exact part of each batch from a second replay.

**Threads.** One thread may write while another one samples; most of both runs without the GIL. In a forked child of the
process that made a replay, using it raises RuntimeError: a row that a thread of the parent was writing at the time of
the fork would stay incomplete.

**Files.** `Replay.load` reads everything into memory and verifies checksums. `Replay(path=...)` and `Replay.open` map
their files after checking their lengths. Truncating such a file while it is mapped ends each process that accesses the
missing part, by SIGBUS; nothing can prevent that for a file on disk. Only open directories that nobody else writes to.
"""

from fastrl.replay.hindsight import HindsightSampler
from fastrl.replay.mixed import MixedSampler
from fastrl.replay.samplers import Batch, Batches, PrioritizedSampler, UniformSampler
from fastrl.replay.sequences import SequenceBatch, SequenceSampler
from fastrl.replay.storage import Replay, ReplayError

__all__ = [
    "Batch",
    "Batches",
    "HindsightSampler",
    "MixedSampler",
    "PrioritizedSampler",
    "Replay",
    "ReplayError",
    "SequenceBatch",
    "SequenceSampler",
    "UniformSampler",
]
