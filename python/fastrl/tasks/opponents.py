"""Settings of which agents learn, and what plays the others: parts of the table ``[env]``."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.collectors.team_spec import TeamSpec
from fastrl.utils.config import Setting, section


@section
class DrawConfig:
    """Opponents, of which each episode has one."""

    opponents: Annotated[
        tuple[str, ...],
        Field(
            description="run directories whose policies play the agents that do not learn, one drawn for each episode,"
            " each perhaps with a weight, as runs/a:0.5; self: the run's own past policies, see snapshot_every"
        ),
        Setting(option="--opponents"),
    ] = ()
    opponent_priority: Annotated[
        Literal["given", "hard"],
        Field(description="given: by their weights; hard: those more often against which returns are low"),
    ] = "given"


@section
class OpponentsConfig(DrawConfig):
    """Opponents, and the agents that learn against them."""

    learners: Annotated[
        tuple[str, ...],
        Field(
            description="the agents that learn, by name or number, * for any characters, as adversary_*; opponents play"
            " the others; none: all learn"
        ),
        Setting(option="--learners"),
    ] = ()
    snapshot_every: Annotated[
        int,
        Field(ge=1, description="with the opponent self: steps after which the policy joins its opponents"),
    ] = 100_000
    pool_size: Annotated[
        int,
        Field(ge=1, le=1000, description="with the opponent self: newest past policies that are drawn from"),
    ] = 10


def opposed(whole: TeamSpec, task: str, config: OpponentsConfig) -> TeamSpec:
    """The spec of the agents that learn.

    Args:
        whole: of the environments of all agents.
        task: name of the task, whose runs can be opponents.
    """
    if not config.learners and not config.opponents:
        return whole
    from fastrl.training.opposed_spec import OpposedSpec

    return OpposedSpec(
        whole.id,
        whole.options,
        whole=whole,
        task=task,
        learners=config.learners,
        opponents=config.opponents,
        pool_size=config.pool_size,
    )
