"""Classes of models by their algorithm: ``fastrl.PPO`` and so on."""

import functools
from typing import Any

from fastrl.algorithms import algorithms, class_named, find
from fastrl.model import Model
from fastrl.runs.settings import settings_type
from fastrl.utils.config import leaves


@functools.cache
def model_type(algorithm: str) -> type[Model]:
    """The class of the models of an algorithm: `Model` itself for a class of the user's own."""
    if algorithm not in algorithms():
        return Model
    found = find(algorithm)
    config_type = settings_type({"own": found.config_type()})
    lines = [
        f"{found.name}: {found.summary}.",
        "",
        "See `fastrl.Model`, of which it has all arguments and methods. Settings of the algorithm, each a keyword:",
        "",
    ]
    for leaf in leaves(config_type).values():
        default = getattr(leaf.default, "value", leaf.default)
        lines.append(f"    {leaf.key.rpartition('.')[2]}: {leaf.description} [{default}]")
    body = {"_algo": algorithm, "__doc__": "\n".join(lines), "__module__": "fastrl"}
    return type(found.__name__, (Model,), body)


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and (algorithm := class_named(name)) is not None:
        return model_type(algorithm.name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
