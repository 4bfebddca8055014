"""Typed configuration: frozen sections that check themselves."""

from typing import TypeVar, cast, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def section(cls: type[T]) -> type[T]:
    """Make a class a configuration section: a frozen, keyword-only pydantic dataclass.

    Unknown keys are errors, and so are NaN and infinity; defaults are checked like any other value. Fields
    carry their limits and their help text: ``lr: Annotated[float, Field(gt=0, description="...")] = 3e-4``.
    """
    rules = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)
    return cast("type[T]", pydantic_dataclass(frozen=True, kw_only=True, config=rules)(cls))
