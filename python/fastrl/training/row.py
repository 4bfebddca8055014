"""A row of metrics."""

import dataclasses
from collections.abc import Mapping, Sequence

Number = float | int


@dataclasses.dataclass(frozen=True)
class Row:
    """Numbers of a run since its last row.

    Attributes:
        steps: environment steps since the beginning of the run.
        done: what of the run's goal is done, in the goal's unit: steps or episodes.
        groups: all numbers but ``steps``, by group and name. A name is in one group only.
        highlights: the numbers that a line on a console shows, as text.
    """

    steps: int
    done: int
    groups: Mapping[str, Mapping[str, Number]]
    highlights: Sequence[str] = ()

    def record(self) -> dict[str, Number]:
        """All numbers in one dict, ``steps`` first."""
        record: dict[str, Number] = {"steps": self.steps}
        for group in self.groups.values():
            record |= group
        return record
