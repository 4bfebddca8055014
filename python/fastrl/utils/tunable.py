"""Marks of settings that a search may vary, each where its setting is defined.

A mark says between which values ``fastrl tune`` searches, which is less than what the setting allows::

    gamma: Annotated[float, Field(ge=0, le=1), Range(0.9, 0.9999, from_one=True)] = 0.99

Of two marks the last one counts, so that an algorithm may narrow the range of a shared type.
"""

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included.

    Attributes:
        log: sizes are searched, not differences.
        from_one: with `log`: of the distance to 1, as of discounts.
        search: False: only a space of the user's own has it.
    """

    low: float
    high: float
    log: bool = False
    from_one: bool = False
    search: bool = True


@dataclasses.dataclass(frozen=True)
class Choices:
    """Values of a setting that trials choose from.

    Attributes:
        values: empty: all that its type names.
        ordered: neighbours are alike, as of powers of two.
        of_images: only where observations are images.
        search: as of `Range`.
    """

    values: tuple[Any, ...] = ()
    ordered: bool = False
    of_images: bool = False
    search: bool = True


@dataclasses.dataclass(frozen=True)
class Layers:
    """Hidden layers of equal width.

    Attributes:
        widths: of all layers.
        depths: numbers of layers.
        search: as of `Range`.
    """

    widths: tuple[int, ...] = (32, 64, 128, 256)
    depths: tuple[int, ...] = (1, 2, 3)
    search: bool = True


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A value that all trials have, such as the end of a schedule whose start is searched.

    Attributes:
        value: of the setting.
    """

    value: Any
    search: ClassVar[bool] = True


Mark = Range | Choices | Layers | Fixed
