"""Settings of which agents learn, and what plays the others."""

from typing import Annotated

from pydantic import Field

from fastrl.utils.config import Setting, section


@section
class OpponentsConfig:
    """The part of the table ``[env]`` that tasks of many agents share."""

    learners: Annotated[
        tuple[str, ...],
        Field(
            description="the agents that learn, by name or number, * for any characters, as adversary_*; opponents play"
            " the others; none: all learn"
        ),
        Setting(option="--learners"),
    ] = ()
    opponents: Annotated[
        tuple[str, ...],
        Field(
            description="run directories whose policies play the agents that do not learn, one drawn for each episode,"
            " each perhaps with a weight, as runs/a:0.5"
        ),
        Setting(option="--opponents"),
    ] = ()
