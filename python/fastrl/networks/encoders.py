"""Encoders: networks from rows of observations to features, chosen by the observation space.

Convolutions work on images laid out as [B, H, W, C] in memory (``torch.channels_last``), which is how most
environments give them, and what oneDNN and cuDNN are fastest with.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows, Part
from fastrl.networks.kinds import Activation, EncoderKind, Init, SimbaKind
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.perceptron import Linear, initialize

# Images of which a side is shorter are too small for the network of Mnih et al.
NATURE_SIDE = 36

# Channels, kernel and stride of each convolution: Mnih et al., "Human-level control through deep reinforcement
# learning", 2015; and, with padding, for small images.
_NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_SMALL = ((32, 3, 1), (64, 3, 2), (64, 3, 2))

# Channels of each of IMPALA's three sections.
_IMPALA = (16, 32, 32)

# Features of numbers beside images.
_NUMBER_FEATURES = 128

# Features of a row of a table.
_ROW_FEATURES = 64

_HIDDEN_GAIN = math.sqrt(2)


def check_encoder(encoder: EncoderKind | SimbaKind, has_images: bool) -> None:
    """Refuses an encoder of images for observations that have none, and one of numbers for images.

    Raises:
        ValueError
    """
    if encoder in ("simba", "simba_v2") and has_images:
        raise ValueError(
            f"the encoder {encoder} is for numbers, the observations have images: set encoder to auto, nature or impala"
        )
    if encoder in ("nature", "impala") and not has_images:
        raise ValueError(
            f"the encoder {encoder} is for images (uint8, 2 or 3 dimensions), the observations have none: set"
            " encoder to auto"
        )


class ImagePlace(NamedTuple):
    """An image in a row.

    Attributes:
        part: of the row.
        shape: channels, height, width.
        channels_last: the order of its numbers in the row is [H, W, C]; else it is [C, H, W].
    """

    part: Part
    shape: tuple[int, int, int]
    channels_last: bool


def image_place(part: Part) -> ImagePlace:
    """Finds the channels of an image: of three dimensions the first or the last, whichever is shorter."""
    if len(part.shape) == 2:
        return ImagePlace(part, (1, part.shape[0], part.shape[1]), False)
    first, middle, last = part.shape
    if last < first:
        return ImagePlace(part, (last, first, middle), True)
    return ImagePlace(part, (first, middle, last), False)


class Decoder(nn.Module):
    """Takes rows apart into numbers and images.

    Args:
        obs_rows: of the observations.
        normalize: whiten the numbers by running statistics.
        flat: images are numbers like others, after these.

    Attributes:
        vector_size: how many numbers of an observation are not of images; if they are flat, all.
        images: in the order of the row.
        obs_rows, flat: as given.
        shapes: of the parts that are not images, in the order of the row.
        norm: whitens the numbers; None: nothing does.
    """

    def __init__(self, obs_rows: ObsRows, normalize: bool = False, *, flat: bool = False) -> None:
        super().__init__()
        self.obs_rows, self.flat = obs_rows, flat
        self.images = tuple(image_place(part) for part in obs_rows.parts if part.kind == "image")
        self._others = tuple(part for part in obs_rows.parts if part.kind != "image")
        self.shapes = tuple(part.shape for part in self._others)
        self.vector_size = sum(part.size for part in self._others)
        if flat:
            self.vector_size += sum(place.part.size for place in self.images)
        self.norm = RunningNorm(self.vector_size) if normalize and self.vector_size else None

    def vector(self, rows: Tensor) -> Tensor:
        """The numbers, float32 [B, vector_size], not whitened; those of images from 0 to 1.

        Args:
            rows: [B, size], float32 or uint8 as the rows are.
        """
        if not self.images:
            return rows
        vector = torch.empty((len(rows), 0), device=rows.device)
        if self._others:
            # A copy, for a view as float32 starts at a multiple of four bytes.
            columns = [
                rows[:, part.place].clone(memory_format=torch.contiguous_format) for part in self._others
            ]
            vector = torch.cat(columns, 1).view(torch.float32)
        if not self.flat:
            return vector
        return torch.cat([vector, *(_flat(image) for image in self._scaled(rows, torch.float32))], 1)

    def _scaled(self, rows: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """The images, [B, C, H, W] each, from 0 to 1."""
        return [
            image.to(dtype, memory_format=torch.channels_last).mul_(1 / 255) for image in self.pixels(rows)
        ]

    def pixels(self, rows: Tensor) -> list[Tensor]:
        """The images, uint8 [B, C, H, W] each; views of the rows."""
        found = []
        for place in self.images:
            channels, height, width = place.shape
            flat = rows[:, place.part.place]
            if place.channels_last:
                found.append(flat.unflatten(1, (height, width, channels)).permute(0, 3, 1, 2))
            else:
                found.append(flat.unflatten(1, place.shape))
        return found

    def forward(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Numbers float32 [B, vector_size], whitened if `norm` is there; images [B, C, H, W], from 0 to 1, float32 or
        in mixed precision its type, none if they are flat."""
        vector = self.vector(rows)
        if self.norm is not None:
            vector = self.norm(vector)
        if self.flat:
            return vector, []
        device = rows.device.type
        mixed = torch.is_autocast_enabled(device)
        return vector, self._scaled(rows, torch.get_autocast_dtype(device) if mixed else torch.float32)

    def update_statistics(self, rows: Tensor) -> None:
        """Adds rows [B, size] to the running statistics, if there are any."""
        if self.norm is not None:
            self.norm.update(self.vector(rows).to(self.norm.mean.device))


class Convolution(nn.Module):
    """A convolution with weights of gain sqrt(2) and biases of zero.

    Args:
        padding: zeros around the image.
        generator: where the weights come from; None: torch's global generator.
        bias, init: as of `Linear` and `initialize`.
    """

    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int,
        padding: int,
        generator: torch.Generator | None,
        *,
        bias: bool = True,
        init: Init = "orthogonal",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, channels, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None
        self._stride, self._padding = stride, padding
        initialize(self, _HIDDEN_GAIN, generator, init)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.weight, self.bias, self._stride, self._padding)


class Nature(nn.Module):
    """Three convolutions (Mnih et al., 2015); of small images smaller ones, which halve the sides twice.

    Attributes:
        size: length of the features.
    """

    def __init__(self, shape: tuple[int, int, int], generator: torch.Generator | None) -> None:
        super().__init__()
        channels, *sides = shape
        small = min(sides) < NATURE_SIDE
        self.layers = nn.ModuleList()
        for out, kernel, stride in _SMALL if small else _NATURE:
            self.layers.append(Convolution(channels, out, kernel, stride, int(small), generator))
            channels = out
            sides = [(side + 2 * small - kernel) // stride + 1 for side in sides]
        self.size = channels * math.prod(sides)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu_()
        return _flat(x)


class _Residual(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, channels: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first = Convolution(channels, channels, 3, 1, 1, generator)
        self.second = Convolution(channels, channels, 3, 1, 1, generator)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.second(self.first(x.relu()).relu_())
        return x + changed


class Impala(nn.Module):
    """The residual network of Espeholt et al., "IMPALA", 2018, figure 3: three sections, each a convolution, a
    max-pooling that halves the sides, and two residual blocks.

    Attributes:
        size: length of the features.
    """

    def __init__(self, shape: tuple[int, int, int], generator: torch.Generator | None) -> None:
        super().__init__()
        channels, *sides = shape
        self.sections = nn.ModuleList()
        for out in _IMPALA:
            blocks = [_Residual(out, generator) for _ in range(2)]
            self.sections.append(nn.ModuleList([Convolution(channels, out, 3, 1, 1, generator), *blocks]))
            channels, sides = out, [(side + 1) // 2 for side in sides]
        self.size = channels * math.prod(sides)

    def forward(self, x: Tensor) -> Tensor:
        for section in self.sections:
            assert isinstance(section, nn.ModuleList)
            first, *blocks = section
            x = nn.functional.max_pool2d(first(x), 3, 2, 1)
            for block in blocks:
                x = block(x)
        return _flat(x.relu())


class HiddenLayers(nn.Module):
    """Linear layers, each followed by layer normalisation if asked for, an activation, and dropout if asked for.

    Weights are orthogonal with gain sqrt(2), biases zero (Huang et al., "The 37 Implementation Details of Proximal
    Policy Optimization", 2022, detail 2).

    Args:
        sizes: widths from input to output.
        dropout: share of features that are set to zero in ``train()`` mode.

    Attributes:
        size: of the output.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Activation,
        *,
        layer_norm: bool,
        dropout: float,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.size = sizes[-1]
        layers: list[nn.Module] = []
        for size, width in itertools.pairwise(sizes):
            linear = Linear(size, width)
            initialize(linear, _HIDDEN_GAIN, generator)
            layers.append(linear)
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            layers.append(nn.Tanh() if activation == "tanh" else nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features


class RowPooling(nn.Module):
    """Features of tables: parts of two dimensions, whose rows are things of one kind, such as vehicles.

    The first row is the agent's own. Each other one goes, beside the first, through the same two layers; in place of
    the table stand its first row, and the maximum and the mean of these features over the other rows, which do not
    depend on the order of the rows (Zaheer et al., "Deep Sets", 2017). The first row beside each other one is the
    context that the queries of Leurent and Mercat, "Social Attention for Autonomous Decision-Making in Dense Traffic",
    2019, give. A row of zeros is empty, and has no part in them. Numbers of other parts are left as they are.

    Args:
        shapes: of the parts whose numbers come side by side.
        layer_norm, dropout, generator: see `HiddenLayers`.

    Attributes:
        size: length of the features.

    Raises:
        ValueError: no part is a table of two rows or more.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        *,
        layer_norm: bool,
        dropout: float,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self._shapes = shapes
        self.tables = nn.ModuleList()
        self.size = 0
        for shape in shapes:
            self.size += shape[-1] if _is_table(shape) else math.prod(shape)
            if _is_table(shape):
                layers = HiddenLayers(
                    [2 * shape[1], _ROW_FEATURES, _ROW_FEATURES],
                    "relu",
                    layer_norm=layer_norm,
                    dropout=dropout,
                    generator=generator,
                )
                self.size += 2 * layers.size
                self.tables.append(layers)
        if not self.tables:
            raise ValueError(
                "the encoder rows is for tables (numbers of two dimensions, at least two rows), the observations have"
                f" {', '.join(map(str, shapes)) or 'images alone'}: set encoder to auto"
            )

    @property
    def first_table(self) -> tuple[int, int] | None:
        """Rows and width of a table that comes first and is the only one; None: there is no such table."""
        first, *others = self._shapes
        return None if not _is_table(first) or any(map(_is_table, others)) else (first[0], first[1])

    def forward(self, vector: Tensor) -> Tensor:
        """Features float [B, size] of numbers float [B, N]."""
        found = []
        tables = iter(self.tables)
        for part, shape in zip(vector.split([*map(math.prod, self._shapes)], 1), self._shapes, strict=True):
            if not _is_table(shape):
                found.append(part)
                continue
            rows = part.unflatten(1, shape)
            ego, others = rows[:, 0], rows[:, 1:]
            features = next(tables)(torch.cat([others, ego.unsqueeze(1).expand_as(others)], 2))
            is_there = (others != 0).any(2, keepdim=True)
            # Features are not negative, so that zeros do not change the maximum.
            features = features * is_there
            mean = features.sum(1) / is_there.sum(1).clamp(min=1)
            found += [ego, features.amax(1), mean]
        return torch.cat(found, 1)


class Encoder(nn.Module):
    """Features of observations.

    Each image goes through an image network of its own and a linear layer to 512 (nature) or 256 features (impala);
    features and numbers side by side go through the hidden layers. Where there are both, numbers have a linear layer to
    128 features of their own, and the images' linear layer has layer normalisation: otherwise features of images, more
    and larger, drown the numbers (a task that needs both took several times as many samples). With the kind "rows"
    tables among the numbers go through `RowPooling` before all that.

    Args:
        decoder: of the rows; one that is flat gives no images.
        kind: network for images; "auto", "rows": nature.
        hidden: widths of the hidden layers; may be empty.
        activation: after each hidden layer.
        layer_norm: normalise the inputs of the activations of linear layers.
        dropout: share of linear layers' outputs that are set to zero in ``train()`` mode.
        generator: where the initial weights come from; None: torch's global generator.

    Attributes:
        size: length of the features.

    Raises:
        ValueError: "rows" where there is no table, or where numbers are whitened, which would fill empty rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        kind: EncoderKind,
        hidden: Sequence[int],
        activation: Activation,
        *,
        layer_norm: bool = False,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        size = decoder.vector_size
        places = () if decoder.flat else decoder.images
        self.images = nn.ModuleList()
        mixed = bool(size and places)
        self.numbers: nn.Module | None = None
        if kind == "rows":
            if decoder.norm is not None:
                raise ValueError(
                    "the encoder rows takes observations as they are, for rows of zeros are empty ones: set"
                    " normalize_obs to false"
                )
            pooling = RowPooling(decoder.shapes, layer_norm=layer_norm, dropout=dropout, generator=generator)
            self.numbers, size = pooling, pooling.size
        if mixed:
            layers = HiddenLayers(
                [size, _NUMBER_FEATURES], "relu", layer_norm=layer_norm, dropout=dropout, generator=generator
            )
            self.numbers = layers if self.numbers is None else nn.Sequential(self.numbers, layers)
            size = layers.size
        for place in places:
            network = (Impala if kind == "impala" else Nature)(place.shape, generator)
            head = HiddenLayers(
                [network.size, 256 if kind == "impala" else 512],
                "relu",
                layer_norm=layer_norm or mixed,
                dropout=dropout,
                generator=generator,
            )
            self.images.append(nn.Sequential(network, head))
            size += head.size
        self.hidden = HiddenLayers(
            [size, *hidden], activation, layer_norm=layer_norm, dropout=dropout, generator=generator
        )
        self.size = self.hidden.size

    @property
    def pooling(self) -> tuple[int, int] | None:
        """Rows and width of the only table, where compiled networks have all that is before the hidden layers: the
        table comes first in an observation, and there are no images. None: they have not."""
        if not isinstance(self.numbers, RowPooling) or self.images:
            return None
        return self.numbers.first_table

    def forward(self, vector: Tensor, images: Sequence[Tensor]) -> Tensor:
        """Features float32 [B, size] of what a `Decoder` gives."""
        found = [network(image) for network, image in zip(self.images, images, strict=True)]
        if self.numbers is not None:
            vector = self.numbers(vector)
        if vector.shape[1]:
            found.insert(0, vector)
        features: Tensor = self.hidden(torch.cat(found, 1) if len(found) > 1 else found[0])
        return features


def _is_table(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] > 1


def _flat(x: Tensor) -> Tensor:
    """[B, C, H, W] as [B, H * W * C], which takes no copy where images are laid out so."""
    return x.permute(0, 2, 3, 1).flatten(1)
