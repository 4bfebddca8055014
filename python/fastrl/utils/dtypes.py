"""Descriptions of NumPy dtypes as values for JSON."""

from typing import Any

import numpy as np


def describe_dtype(dtype: np.dtype) -> Any:
    """A dtype as a value for JSON, with offsets and alignment."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": describe_dtype(base), "shape": list(shape)}
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names] if dtype.fields is not None else []
    return {
        "names": list(dtype.names),
        "formats": [describe_dtype(field[0]) for field in fields],
        "offsets": [int(field[1]) for field in fields],
        "titles": [field[2] if len(field) > 2 else None for field in fields],
        "itemsize": dtype.itemsize,
        "align": dtype.isalignedstruct,
    }


def dtype_of(description: Any) -> np.dtype:
    """The dtype of a description by `describe_dtype`; of another value it raises nearly any error."""
    if isinstance(description, str):
        return np.dtype(description)
    if "base" in description:
        return np.dtype((dtype_of(description["base"]), tuple(description["shape"])))
    fields: Any = {name: description[name] for name in ("names", "offsets", "titles", "itemsize")}
    fields["formats"] = [dtype_of(field) for field in description["formats"]]
    if not any(fields["titles"]):
        del fields["titles"]
    return np.dtype(fields, align=bool(description["align"]))
