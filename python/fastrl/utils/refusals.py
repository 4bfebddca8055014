"""Texts of errors about values that settings and arguments do not take."""

from typing import Any

from pydantic import ValidationError

from fastrl.utils.names import likely


def refusal(name: str, error: ValidationError, given: Any) -> str:
    """A message such as ``name should be greater than 0, got -1`` from an error of pydantic."""
    problems = error.errors(include_url=False)
    expected = " or ".join(dict.fromkeys(map(message, problems))).replace(" or should be ", " or ")
    choices = [choice for problem in problems for choice in _choices(problem)]
    hint = ""
    if isinstance(given, str) and (near := likely(given, choices)) is not None:
        hint = f"; did you mean {near!r}?"
    return f"{name} {expected}, got {brief(given)}{hint}"


def message(problem: Any) -> str:
    """Says how a value should be, from a problem of pydantic."""
    text: str = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    # Drops the reason of a failed conversion: "should be a valid integer, unable to parse ...".
    text = text.partition(", unable to")[0].replace("valid tuple", "list").replace("valid array", "list")
    item = next((part for part in problem["loc"] if isinstance(part, int)), None)
    if item is None:
        return text
    return f"should be a list whose item {item + 1} {text.replace('should be', 'is')}"


def _choices(problem: Any) -> list[str]:
    if problem["type"] != "literal_error":
        return []
    return [part.strip("'") for part in problem["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def brief(value: Any) -> str:
    """A value as text for an error message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
