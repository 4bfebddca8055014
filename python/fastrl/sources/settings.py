"""Settings of replays and of demonstrations."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fastrl.utils.config import Setting, section
from fastrl.utils.trust import Reach, writes_files
from fastrl.utils.tunable import Range


@section
class ReplayConfig:
    """The replay of transitions, and the turns that collection and learning take."""

    capacity: Annotated[
        int,
        Field(
            ge=1,
            description="transitions that are kept, of all environments together; 7.1 kB each with frames of 84x84",
        ),
        Setting(resumable=True),
    ] = 100_000
    learning_starts: Annotated[
        int, Field(ge=1, description="transitions in the replay before learning starts")
    ] = 1_000
    path: Annotated[
        Path | None,
        Field(description="file that holds the replay, which may be larger than memory; none: in memory"),
        Reach(writes_files),
        Setting(resumable=True),
    ] = None
    save: Annotated[
        bool,
        Field(
            description="write the replay into the run directory when the run ends or is stopped, so that a resumed run"
            " has it"
        ),
        Setting(resumable=True),
    ] = False
    train_freq: Annotated[
        int,
        Field(ge=1, description="steps of each environment between turns of learning"),
    ] = 4
    updates_per_step: Annotated[
        float,
        Field(gt=0, description="minibatches to learn from for each step of an environment"),
        Range(0.05, 1.0, log=True),
    ] = 0.25
    overlap: Annotated[
        bool,
        Field(
            description="collect while the learner learns, by weights that may be some turns old: faster where"
            " environments are slow, but a run depends on how fast its processes are"
        ),
    ] = False
    prefetch: Annotated[
        Literal["auto", "on", "off"],
        Field(
            description="with overlap: draw the next minibatch while the learner learns from one; auto: on a GPU"
        ),
        Setting(resumable=True),
    ] = "auto"
    hindsight: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="share of each minibatch whose goals are replaced by goals that were achieved later; for"
            " environments with achieved_goal, desired_goal and compute_reward()",
        ),
    ] = 0.0
    hindsight_goals: Annotated[
        Literal["future", "final", "episode"],
        Field(
            description="goals of hindsight. future: achieved after the step; final: at the end of the episode;"
            " episode: at any time of the episode"
        ),
    ] = "future"


@section
class DemosConfig:
    """Recorded demonstrations, see fastrl.demos."""

    path: Annotated[
        Path | None,
        Field(
            description="folder of a data set that fastrl demos record has written; none: no demonstrations"
        ),
        Setting(option="--demos", resumable=True),
    ] = None
    top: Annotated[
        float,
        Field(
            gt=0, le=1, description="share of the episodes that is used, those of the highest returns; 1: all"
        ),
    ] = 1.0
    actions: Annotated[
        Literal["expert", "played"],
        Field(
            description="expert: the expert's own actions where noise was put on those that were played; played: what"
            " the environment was given"
        ),
    ] = "expert"


@section
class OfflineConfig(DemosConfig):
    """Recorded demonstrations that are learned from beside new transitions, see fastrl.demos."""

    # The actions that led to the observations.
    actions: Annotated[
        Literal["played"], Field(description="played: what the environment was given, even with noise")
    ] = "played"
    offline_ratio: Annotated[
        float,
        Field(gt=0, lt=1, description="share of demonstrations in each minibatch"),
        Setting(option="--offline-ratio"),
    ] = 0.5
    pretrain_steps: Annotated[
        int,
        Field(
            ge=0,
            description="minibatches of demonstrations alone to learn from before the first step of an environment",
        ),
    ] = 0
    priority_bonus: Annotated[
        float,
        Field(
            ge=0,
            description="with prioritized replay: added to the TD errors that are the priorities of demonstrations",
        ),
    ] = 0.0
