"""Kinds of layers and weights that settings choose among; without PyTorch."""

import re
from typing import Literal

# Those that compiled actors have.
Activation = Literal["tanh", "relu"]
PerceptronActivation = Literal["relu", "tanh", "elu"]
EncoderKind = Literal["auto", "mlp", "nature", "impala", "rows"]
# Of policies alone: see `fastrl.networks.pointer_policy`.
PolicyEncoderKind = EncoderKind | Literal["pointer"]
# Residual networks of numbers, see `fastrl.networks.simba` and `fastrl.networks.simba_v2`.
SimbaKind = Literal["simba", "simba_v2"]
Init = Literal["orthogonal", "he", "xavier"]
MemoryKind = Literal["none", "gru", "lstm"]
# The deviation of a Gaussian policy stays between exp(-5) and exp(2).
LOG_STD_RANGE = (-5.0, 2.0)
# The network of Mnih et al., "Human-level control through deep reinforcement learning", 2015.
NATURE = ("32x8/4", "64x4/2", "64x3/1")

_CONV = re.compile(r"([1-9]\d*)x([1-9]\d*)/([1-9]\d*)")


def parse_conv(layer: str) -> tuple[int, int, int]:
    """Channels, kernel size and stride of a convolution written as ``32x8/4``.

    Raises:
        ValueError: it is written in another way.
    """
    match = _CONV.fullmatch(layer)
    if match is None:
        raise ValueError(f"should be CHANNELSxKERNEL/STRIDE, such as 32x8/4, got {layer!r}")
    channels, kernel, stride = map(int, match.groups())
    return channels, kernel, stride
