"""Broadcast of a network's newest weights in shared memory: one process writes, any number read, none waits.

```python
weights = Weights(nbytes)                      # the learner; pickles to workers, which then read
version = weights.publish(buffer)

seen = 0                                       # a worker, before each step
if version := weights.read(buffer, newer_than=seen):
    seen = version                             # buffer holds the newest weights now
```

A reader gets one version whole, never a mixture of two; a writer that is killed while it writes leaves the version
before. Any object with a contiguous buffer of `nbytes` bytes will do, such as numpy arrays and bytearrays.
"""

from fastrl._native._rust import Weights

__all__ = ["Weights"]
