"""Demonstrations: recorded episodes of experts.

```python
fastrl.demos.record("CartPole-v1", "runs/cart", episodes=100, out="demos/cart", noise=0.1)

demos = fastrl.demos.load("demos/cart")        # mapped into memory
demos[0].observations                          # [T + 1, ...], in the dtype of the space
train, validation = demos.filter(top=0.5).split(0.9, seed=0)
fastrl.demos.save(train, "demos/best")
fastrl.demos.replay("demos/cart").agrees       # the actions lead to the same observations, to the bit
```
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastrl.demos.minari_sets import export_minari, import_minari
    from fastrl.demos.recorder import record
    from fastrl.demos.replaying import ReplayReport, replay
    from fastrl.replay.episode_columns import DemosError
    from fastrl.replay.episode_writer import EpisodeWriter, save
    from fastrl.replay.episodes import Episode, EpisodeDataset, load, merge

__all__ = [
    "DemosError",
    "Episode",
    "EpisodeDataset",
    "EpisodeWriter",
    "ReplayReport",
    "export_minari",
    "import_minari",
    "load",
    "merge",
    "record",
    "replay",
    "save",
]

# Modules by name. They are imported at the first use: workers of recordings import modules of this package, and should
# load neither PyTorch nor pyarrow.
_MODULES = {
    "export_minari": "fastrl.demos.minari_sets",
    "import_minari": "fastrl.demos.minari_sets",
    "record": "fastrl.demos.recorder",
    "replay": "fastrl.demos.replaying",
    "ReplayReport": "fastrl.demos.replaying",
    "DemosError": "fastrl.replay.episode_columns",
    "EpisodeWriter": "fastrl.replay.episode_writer",
    "save": "fastrl.replay.episode_writer",
    "Episode": "fastrl.replay.episodes",
    "EpisodeDataset": "fastrl.replay.episodes",
    "load": "fastrl.replay.episodes",
    "merge": "fastrl.replay.episodes",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
