"""Settings of a search for the best workflow, and presets."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fastrl.envs.cage2.workflow import parse_workflow, workflow_name
from fastrl.tasks.cage2.settings import GameConfig
from fastrl.tasks.workflow.search import SearchConfig
from fastrl.tasks.workflow.training import InnerConfig
from fastrl.utils.config import Preset, Setting, section


@section
class RunConfig:
    """How long, where and from which random numbers."""

    seed: Annotated[
        int,
        Field(ge=0, lt=2**63, description="fixes everything random in the run"),
        Setting(option="--seed", common=True),
    ] = 0
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="where the networks live; auto: cuda if there is one, else cpu"),
        Setting(resumable=True, option="--device", common=True),
    ] = "auto"
    total_episodes: Annotated[
        int,
        Field(
            ge=2,
            description="episodes of the search, the final training of its best order included; with --plain-ppo as"
            " many are played again",
        ),
        Setting(option="--total-episodes", common=True),
    ] = 100_000
    workflow: Annotated[
        str | None,
        AfterValidator(lambda text: None if text is None else workflow_name(parse_workflow(text))),
        Field(
            description="train this order alone, the most urgent first, such as"
            " op_server,enterprise,op_host,defender,user; none: search"
        ),
        Setting(option="--workflow", common=True),
    ] = None
    plain_ppo: Annotated[
        bool,
        Field(description="then train PPO without workflows for as many episodes, to compare with"),
        Setting(resumable=True, option="--plain-ppo", common=True),
    ] = True
    torch_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of PyTorch; 0: chosen by PyTorch"),
        Setting(resumable=True),
    ] = 1
    checkpoint_seconds: Annotated[
        float,
        Field(ge=0, description="seconds between checkpoints; 0: one after every training of an order"),
        Setting(resumable=True),
    ] = 30.0
    keep_checkpoints: Annotated[
        int,
        Field(ge=1, description="how many of the newest checkpoints are kept, besides the best policy"),
        Setting(resumable=True),
    ] = 3
    eval_episodes: Annotated[
        int,
        Field(
            ge=0,
            description="episodes of the final evaluation by the challenge's protocol, against each red agent over each"
            " horizon; 0: no evaluation",
        ),
        Setting(resumable=True),
    ] = 200


@section
class EnvConfig(GameConfig):
    """CAGE Challenge 2, see fastrl.envs.cage2.workflow."""

    scan_memory: Annotated[
        bool,
        Field(
            description="observe ten more values besides 52 bits and 25 of the order: which hosts were scanned"
        ),
    ] = False
    n_workers: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        Field(
            description="threads that play games (the simulators are compiled, so workers are threads of this process);"
            " auto: one per core"
        ),
        Setting(resumable=True, option="--n-workers", common=True),
    ] = "auto"


@section
class WorkflowConfig:
    """All of a run's settings."""

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    search: SearchConfig = SearchConfig()
    inner: InnerConfig = InnerConfig()


PRESETS: dict[str, Preset] = {
    "smoke": Preset(
        "a few seconds, to see that everything works; learns little",
        {
            "run": {"total_episodes": 2_000, "eval_episodes": 20},
            "search": {"trial_share": 0.4, "initial": 4, "compliance_threshold": 0.3},
            "inner": {"episodes_per_update": 50, "measured_episodes": 20},
        },
    ),
}
