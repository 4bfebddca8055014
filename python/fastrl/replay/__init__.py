"""Circular replay: one storage of experience, several ways of drawing from it.

```python
replay = Replay(1_000_000, (84, 84), np.uint8, num_envs=8, stack=4)      # every frame is kept once
sampler = PrioritizedSampler(replay, batch_size=256, n_step=3, gamma=0.99, seed=1)

replay.add_many(frames, actions, rewards, next_frames, terminated, truncated)   # a row for each environment
with queue.peek(1024) as records:                                              # or straight from a queue
    replay.append(records)

batch = sampler.sample()                       # torch tensors, valid until two more batches have been drawn
sampler.update_priorities(batch.indices, errors)
```

**Storage.** Each environment has a ring of rows of its own, and each observation is stored once: the next observation
of a step is the observation of the row after it. Where an episode ends, one more row, an end row, holds its true last
observation. `terminated` and `truncated` are kept apart. What may be sampled is known when it is written, so drawing
never tries until it is lucky.

**Sequences and goals.** `SequenceSampler` draws sequences of one episode each, with steps before them to warm up a
recurrent network; `HindsightSampler` gives transitions goals that were reached later.

**Threads.** One thread may write while another one samples; the bulk of both happens without the GIL. In a forked child
of the process that made a replay, using it raises RuntimeError: what a thread of the parent was writing at the time of
the fork would never be complete there.

**Files.** `Replay.load` reads everything into memory and looks at checksums. `Replay(path=...)` and `Replay.open` map
their files, whose lengths are compared first. Who cuts off such a file while it is mapped ends each process that
reaches for the missing part, by SIGBUS; nothing can prevent that for a file on disk. Only open directories that nobody
else writes to.
"""

from fastrl.replay.hindsight import HindsightSampler
from fastrl.replay.samplers import Batch, PrioritizedSampler, UniformSampler
from fastrl.replay.sequences import SequenceBatch, SequenceSampler
from fastrl.replay.storage import Replay, ReplayError

__all__ = [
    "Batch",
    "HindsightSampler",
    "PrioritizedSampler",
    "Replay",
    "ReplayError",
    "SequenceBatch",
    "SequenceSampler",
    "UniformSampler",
]
