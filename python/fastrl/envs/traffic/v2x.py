"""Resource allocation for vehicles: V2V links send payloads in spectrum that V2I links use too.

The task is that of L. Liang, H. Ye and G. Y. Li, "Spectrum Sharing in Vehicular Networks Based on Multi-Agent
Reinforcement Learning" (IEEE JSAC 37, 2019), with the numbers of their simulation: N vehicles in half the grid of TR
36.885, each the transmitter of a V2I link with a block of 1 MHz of its own and of a V2V link to the nearest vehicle.
Each V2V link has 100 ms to send its payload, and chooses a block and a power every millisecond. Fast fading (Rayleigh)
is drawn anew for each millisecond and block; places, path loss and shadowing for each episode. Random actions deliver
about 0.88 of the payloads, with about 45 Mb/s over all V2I links. It is the same task, not the same episodes.

**Observation** of an agent, float32 [N^2 + 4 N + 3], N numbers each unless said: fast fading of its channels to the
base station by block; N^2: fast fading of the channels to its receiver, from itself and then from the other vehicles in
their order, by block (each (loss + 10 dB) / 35 dB, without path loss and shadowing); interference and noise at its
receiver in the last step by block ((-dBm - 60) / 60); 1: loss to the base station; losses to its receiver, from itself
and then the others ((dB - 80) / 60); 1: share of the time that is left; 1: share of the payload that is left; one per
agent, 1 for itself.

**Actions**: `Discrete(N x powers)`, block + N x index of the power. A link that has sent its payload is silent.

**Reward**, the same for all: v2i_weight x (sum of V2I rates) / (10 N) + (1 - v2i_weight) x (mean over V2V links of
rate / 10, or 1 once the payload is sent); rates in bit/s/Hz.

**End**: after the time budget all agents are terminated. Statistics of episodes have `success`, the share of the links
that have sent their payload, and `v2i_rate`, the mean sum of the V2I rates in Mb/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from fastrl._native import _rust
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.viewer import View
from fastrl.utils.arguments import as_integer, as_number

VIEW = View(screen_width=480, screen_height=800)
POWERS = (23.0, 15.0, 5.0, -100.0)
"""The powers of the paper, dBm; the last one is silence."""


class V2xResourceVectorEnv(MultiAgentVectorEnv):
    """K environments of resource allocation; the module documents observations, actions and rewards.

    Args:
        num_envs: K.
        num_links: N, the agents: 4, 8, 12 or 16.
        payload: bytes that each V2V link has to send; the paper's are multiples of 1060.
        time_budget: ms, an integer: steps of an episode.
        powers: dBm that agents choose from, at most 16.
        v2i_weight: weight of the V2I links in the reward, 0 to 1.
        autoreset_mode: Gymnasium's enum or the name of a mode.
        num_threads: threads that step the environments, 0 for one a core.

    Raises:
        ValueError: an option out of range.
        TypeError: an option of another type.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        num_links: int = 4,
        payload: float = 2120.0,
        time_budget: int = 100,
        powers: Sequence[float] = POWERS,
        v2i_weight: float = 0.1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        num_threads: int = 0,
    ) -> None:
        options: dict[str, Any] = {
            "num_links": as_integer("num_links", num_links, 0),
            "payload": as_number("payload", payload),
            "time_budget": as_integer("time_budget", time_budget, 0),
            "powers": [as_number("powers", power) for power in powers],
            "v2i_weight": as_number("v2i_weight", v2i_weight),
            "num_threads": as_integer("num_threads", num_threads, 0),
        }
        count = as_integer("num_envs", num_envs, 0)
        self.num_links: int = options["num_links"]
        self.powers: tuple[float, ...] = tuple(options["powers"])
        native = lambda mode: _rust.V2xVec(count, autoreset_mode=mode, **options)  # noqa: E731
        n = self.num_links
        super().__init__(
            native,
            Box(-np.inf, np.inf, (n * n + 4 * n + 3,), np.float32),
            Discrete(max(n * len(self.powers), 1)),
            autoreset_mode=autoreset_mode,
            name="fastrl/v2x-resource-v0",
            view=VIEW,
            fps=1000.0,
        )
