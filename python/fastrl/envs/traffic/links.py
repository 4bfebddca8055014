"""Radio links between vehicles: options, and arrays of what goes over them.

The propagation model is that of 3GPP TR 37.885 V15.3.0, section 6.2.1; `docs/environments/links.md` explains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from fastrl._native import _rust
from fastrl.utils.arguments import as_number, check_types, one_of
from fastrl.utils.names import did_you_mean

Comms = Literal["perfect", "range", "37885"]
Selection = Literal["random", "sensing", "agent"]
Blockage = Literal["none", "vehicles", "probability"]
Surroundings = Literal["highway", "urban"]
Condition = Literal["los-highway", "los-urban", "nlos"]

STATISTICS = ("delivery_ratio", "age_of_information", "sinr", "channel_busy_ratio")
"""Entries of `info["comms"]` and of the statistics of episodes."""
_BOTH = ("range", "delivery", "connected", "max_age")
_CHOICES: dict[str, tuple[str, ...]] = {
    "selection": get_args(Selection),
    "blockage": get_args(Blockage),
    "surroundings": get_args(Surroundings),
}


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The options of links, `comms_options` of an environment. With `comms="range"` there are only the first four.

    Attributes:
        range: m within which a message is meant to arrive: statistics and rewards count these links; with
            `comms="range"` nothing arrives beyond.
        delivery: probability that a message arrives within the range, with `comms="range"` only.
        connected: share of the vehicles of the background that have radios too, True for all; agents see the others as
            they are.
        max_age: s after which a received state is forgotten.
        surroundings: "highway" or "urban": path loss with a line of sight, and decorrelation distance.
        blockage: what makes vehicles block a path: "vehicles" that stand in between, "probability" of the report at
            that distance, or "none".
        antenna_height, vehicle_height: m, of all vehicles. Antennas below the roofs lose more behind a vehicle, those
            above them nothing.
        frequency: GHz.
        bandwidth: Hz, of a resource.
        noise_figure: dB.
        antenna_gain: dBi, of each antenna.
        sinr_threshold, sinr_slope: dB: a message arrives with probability 1 / (1 + exp((threshold - SINR) / slope)).
        tx_power: dBm, or several, of which the agent's action chooses.
        slots, subchannels: a resource is a slot of the period in a subchannel; who sends in a slot hears nothing in it.
        selection: of the resource: "random", "sensing" (semi-persistent, as the sidelink's mode 2), or "agent" (by the
            action).
        keep_probability: that a station keeps its resource when its counter has run out, with "sensing".
        sensing_threshold: dBm above which a resource counts as taken when stations choose.
        busy_threshold: dBm above which a resource counts as busy in the channel busy ratio.

    Raises:
        TypeError, ValueError: an option of another type, or out of its range.
    """

    range: float = 150.0
    delivery: float = 1.0
    connected: bool | float = False
    max_age: float = 5.0
    surroundings: Surroundings = "highway"
    blockage: Blockage = "vehicles"
    antenna_height: float = 1.6
    vehicle_height: float = 1.6
    frequency: float = 5.9
    bandwidth: float = 10e6
    noise_figure: float = 9.0
    antenna_gain: float = 3.0
    sinr_threshold: float = 5.0
    sinr_slope: float = 1.0
    tx_power: float | Sequence[float] = 23.0
    slots: int = 10
    subchannels: int = 2
    selection: Selection = "random"
    keep_probability: float = 0.4
    sensing_threshold: float = -110.0
    busy_threshold: float = -94.0

    def __post_init__(self) -> None:
        check_types(self, least=1)
        for name, known in _CHOICES.items():
            _name(name, getattr(self, name), known)
        self.powers()
        self.share()

    def share(self) -> float:
        """The share of the vehicles of the background that have radios."""
        whole = isinstance(self.connected, bool | np.bool_)
        return float(self.connected) if whole else as_number("connected", self.connected)

    def powers(self) -> list[float]:
        """The powers that an agent has to choose from, dBm."""
        several = isinstance(self.tx_power, Sequence | np.ndarray) and not isinstance(self.tx_power, str)
        return [as_number("tx_power", power) for power in (self.tx_power if several else [self.tx_power])]  # type: ignore[union-attr]

    def native(self, comms: str) -> dict[str, Any]:
        """The options in the form that the compiled module takes."""
        options: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return options | {"channel": comms, "tx_power": self.powers(), "connected": self.share()}


def link_options(comms: object, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The options that the compiled module takes; None for "perfect".

    Args:
        comms: "perfect", "range" or "37885" (or the number).
        options: fields of `LinkOptions`.

    Raises:
        TypeError, ValueError: an unknown name, with the one that is likely meant, or a value out of range.
    """
    kind = _name("comms", str(comms) if isinstance(comms, int) else comms, get_args(Comms))
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise TypeError(f"comms_options: expected a dict, got {options!r}")
    known = [field.name for field in fields(LinkOptions)]
    for name in options:
        if name not in known:
            raise ValueError(f"comms_options: there is no {name!r}{did_you_mean(name, known)}")
        if kind == "perfect":
            raise ValueError(f"comms_options: {name} has no effect with comms='perfect'")
        if kind == "range" and name not in _BOTH:
            raise ValueError(f"comms_options: {name} has no effect with comms='range', only with '37885'")
        if kind == "37885" and name == "delivery":
            raise ValueError("comms_options: delivery has no effect with comms='37885', only with 'range'")
    return None if kind == "perfect" else LinkOptions(**options).native(kind)


def _name(option: str, value: object, known: Sequence[str]) -> str:
    try:
        return one_of(option, value, known)
    except ValueError as error:
        raise (error if isinstance(value, str) else TypeError(str(error))) from None


def path_loss(condition: Condition, distance: float, frequency: float) -> float:
    """Path loss of TR 37.885, dB.

    Args:
        condition: "los-highway", "los-urban" or "nlos".
        distance: m; below 1 m as at 1 m.
        frequency: GHz.
    """
    return _rust.path_loss_37885(
        condition, as_number("distance", distance), as_number("frequency", frequency)
    )
