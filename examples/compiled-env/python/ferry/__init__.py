"""A compiled environment outside fastrl: `ferry/Ferry-v0`. `src/ferry.rs` describes it."""

import numpy as np
from gymnasium import register
from gymnasium.spaces import Box, Discrete

from fastrl.envs.single import SingleEnv
from fastrl.envs.vector import NativeVectorEnv
from ferry._ferry import FerryVec


class FerryVectorEnv(NativeVectorEnv):
    """N ferries. Actions: ahead, towards row 0, away from it. An episode has at most `limit` steps."""

    def __init__(
        self, num_envs=1, *, limit=32, num_threads=0, autoreset_mode="next_step", render_mode=None
    ) -> None:
        super().__init__(
            lambda mode: FerryVec(num_envs, limit, num_threads, mode),
            Box(-1, 1, (5,), np.float32),
            Discrete(3),
            autoreset_mode=autoreset_mode,
            render_mode=render_mode,
            render_modes=(),
        )


class FerryEnv(SingleEnv):
    """One ferry."""

    vector_class = FerryVectorEnv


register("ferry/Ferry-v0", entry_point="ferry:FerryEnv", vector_entry_point="ferry:FerryVectorEnv")
