"""Known names that a misspelt one is likely to mean, for error messages."""

import difflib
from collections.abc import Collection, Iterable

# The least `likeness` of a name that an error message proposes instead of an unknown one.
LIKELY = 0.6


def folder_name(name: str) -> str:
    """The name of a task or an environment without characters that separate folders."""
    return name.replace("/", "-").replace(":", "-")


def likeness(name: str, candidate: str) -> float:
    """The similarity of a misspelt name and a candidate, from 0 to 1.

    Dotted names are also compared by their last parts, so that ``clip`` finds ``ppo.clip_range``, and by the initials
    of these, so that ``lr`` finds ``ppo.learning_rate``.
    """
    candidate_leaf, leaf = candidate.rpartition(".")[2], name.rpartition(".")[2]
    initials = "".join(word[:1] for word in candidate_leaf.split("_"))
    return max(
        difflib.SequenceMatcher(None, name, candidate).ratio(),
        0.95 * difflib.SequenceMatcher(None, leaf, candidate_leaf).ratio(),
        0.9 if len(leaf) > 1 and leaf == initials else 0,
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name with the greatest `likeness` to ``name``, the first of equal ones."""
    return max(known, key=lambda candidate: likeness(name, candidate))


def likely(name: str, known: Collection[str], cutoff: float = LIKELY) -> str | None:
    """The `nearest` known name; None if its likeness is less than ``cutoff``."""
    if not known:
        return None
    found = nearest(name, known)
    return found if likeness(name, found) >= cutoff else None


def did_you_mean(name: object, known: Collection[str], cutoff: float = LIKELY) -> str:
    """The end of an error about an unknown name: "; did you mean X?", or "" if no name is `likely`."""
    # Of versions that are as likely, the newest.
    found = likely(str(name), sorted(known, reverse=True), cutoff)
    return "" if found is None else f"; did you mean {found}?"


def suggestion(name: str, known: Collection[str]) -> str:
    """The end of an error about an unknown name: the name that is likely meant, or all names."""
    found = likely(name, known)
    return f"there are {', '.join(known) or 'none'}" if found is None else f"did you mean {found}?"
