"""A way to run: settings, and their effort."""

from dataclasses import dataclass

from fastrl.utils.config import Values


@dataclass(frozen=True)
class Way:
    """A way to run.

    Attributes:
        label: describes it in words.
        values: its settings, by dotted key; all others are those of the run.
        effort: of two that are equally fast, the one with less is chosen: workers, or 0 for what the run has anyway.
    """

    label: str
    values: Values
    effort: int = 0


def doubling(most: int) -> list[int]:
    """1, 2, 4 and so on up to a number, and that number."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
