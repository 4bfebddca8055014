"""Context managers that close at their end."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Something that ``with`` closes."""

    @abstractmethod
    def close(self) -> None:
        """Ends it, and frees what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
