"""Settings of intrinsic rewards."""

from typing import Annotated, Literal

from pydantic import Field

from fastrl.algorithms.hyper_parameters import Widths
from fastrl.utils.config import Setting, section
from fastrl.utils.tunable import Range


@section
class IntrinsicConfig:
    """Rewards for exploration that are added to those of the environment."""

    kind: Annotated[
        Literal["none", "rnd"],
        Field(
            description="rnd: random network distillation (Burda et al., 2018), the error of a network that learns to"
            " predict a random one at the observation after each step, which is larger the fewer like it were seen"
        ),
        Setting(option="--intrinsic"),
    ] = "none"
    coef: Annotated[
        float,
        Field(gt=0, description="weight of the intrinsic reward, which is divided by its running deviation"),
        Range(0.01, 10.0, log=True, search=False),
    ] = 0.1
    predictor_learning_rate: Annotated[
        float,
        Field(gt=0, description="Adam's learning rate of the predictor"),
        Range(1e-5, 1e-2, log=True, search=False),
    ] = 1e-4
    predictor_hidden: Annotated[
        Widths,
        Field(
            min_length=1,
            description="widths of the hidden layers of both networks; the predictor has two more of the last width",
        ),
    ] = (128, 128)
    predictor_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="share of each rollout that the predictor learns from; the more environments, the less of it",
        ),
    ] = 1.0
    obs_clip: Annotated[
        float | None,
        Field(
            gt=0,
            description="both networks see observations that are whitened by running statistics, and clipped to this;"
            " none: as they are",
        ),
    ] = 5.0
