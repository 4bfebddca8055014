"""Settings of a run that trains agents in traffic, and presets."""

import dataclasses
import math
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.algorithms.mappo import MAPPOConfig
from fastrl.algorithms.reinforce import REINFORCEConfig
from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.tasks.traffic.curriculum import CurriculumConfig, Difficulty
from fastrl.utils.config import ConfigError, InitFrom, Preset, Setting, section
from fastrl.utils.env_options import EnvOptions, parse_options

# How many worlds are played at a time, if that is left to us: so few that there are about as many updates as this.
_UPDATES = 30
_MOST_WORLDS = 128
# Of a simulation that runs while its agents are trained.
_ONLINE_WORLDS = 8


@section
class RunConfig:
    """How long, where and from which random numbers."""

    seed: Annotated[
        int,
        Field(ge=0, lt=2**63, description="fixes everything random in the run"),
        Setting(option="--seed", common=True),
    ] = 0
    init_from: InitFrom = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="where the networks live; auto: cuda if there is one, else cpu"),
        Setting(resumable=True, option="--device", common=True),
    ] = "auto"
    algorithm: Annotated[
        Literal["ippo", "mappo", "reinforce"],
        Field(
            description="ippo: PPO, each critic sees what its agent sees; mappo: PPO, the critic sees what all agents"
            " see (learns faster with --mappo.gamma 0.95); reinforce: policy gradient with a baseline"
        ),
        Setting(option="--algorithm", common=True),
    ] = "ippo"
    episodes: Annotated[
        int,
        Field(
            ge=1,
            description="episodes in all, each of one world with all its agents; the last update may go beyond",
        ),
        Setting(resumable=True, option="--episodes", common=True),
    ] = 300
    save_freq: Annotated[
        int,
        Field(ge=0, description="episodes between checkpoints; 0: by time only"),
        Setting(resumable=True, option="--save-freq", common=True),
    ] = 100
    eval_freq: Annotated[
        int,
        Field(ge=0, description="episodes between evaluations; 0: none"),
        Setting(resumable=True, option="--eval-freq", common=True),
    ] = 50
    eval_episodes: Annotated[
        int,
        Field(
            ge=0,
            description="episodes of an evaluation, on fixed seeds in full traffic, without exploration; 0: no"
            " evaluation",
        ),
        Setting(resumable=True),
    ] = 20
    torch_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of PyTorch; 0: chosen by PyTorch"),
        Setting(resumable=True),
    ] = 1
    checkpoint_seconds: Annotated[
        float,
        Field(
            ge=0, description="seconds between checkpoints, besides --save-freq; 0: one after every update"
        ),
        Setting(resumable=True),
    ] = 30.0
    keep_checkpoints: Annotated[
        int,
        Field(ge=1, description="how many of the newest checkpoints are kept, besides the best"),
        Setting(resumable=True),
    ] = 3


@section
class EnvConfig:
    """The traffic, see fastrl.envs.make_multi."""

    id: Annotated[
        str,
        Field(
            description="fastrl/coop-highway-v0, fastrl/coop-merge-v0, fastrl/ring-v0 or fastrl/highway-v0"
        ),
        Setting(option="--env", common=True),
    ] = "fastrl/coop-highway-v0"
    vehicles: Annotated[
        int,
        Field(ge=1, le=64, description="learning vehicles in each world; fastrl/highway-v0 has 1"),
        Setting(option="--vehicles", common=True),
    ] = 8
    density: Annotated[
        float | None,
        Field(
            ge=0,
            description="density of the traffic around the learning vehicles; none: the environment's own, 1",
        ),
        Setting(option="--density", common=True),
    ] = None
    num_envs: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="worlds that are stepped together; none: by the number of episodes",
        ),
        Setting(option="--num-envs", common=True),
    ] = None
    duration: Annotated[
        float | None, Field(gt=0, description="seconds of an episode; none: the environment's own")
    ] = None
    cooperation: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="share of the team's mean reward in each reward, 0 to 1; none: the environment's own",
        ),
    ] = None
    action_type: Annotated[
        Literal["meta", "continuous"] | None,
        Field(
            description="meta: five manoeuvres; continuous: acceleration and steering; none: the environment's own"
        ),
    ] = None
    options: EnvOptions = ()
    num_threads: Annotated[
        int,
        Field(ge=0, le=1024, description="threads of the simulator; 0: one a core"),
        Setting(resumable=True),
    ] = 0


@section
class OnlineConfig:
    """Training while a simulation runs on."""

    enabled: Annotated[
        bool,
        Field(
            description="train while a simulation runs on in a process of its own, which never waits for the learner"
        ),
        Setting(option="--online", common=True),
    ] = False
    speed: Annotated[
        float,
        Field(ge=0, description="simulated seconds per second: 1 is real time; 0: as fast as possible"),
        Setting(resumable=True),
    ] = 1.0
    queue: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="rollouts that may wait for the learner; beyond that the oldest are dropped",
        ),
        Setting(resumable=True),
    ] = 2
    row_seconds: Annotated[
        float,
        Field(gt=0, description="seconds between rows of metrics while there is nothing to learn from"),
        Setting(resumable=True),
    ] = 2.0


@section
class TrafficConfig:
    """All of a run's settings."""

    run: RunConfig = RunConfig()
    env: EnvConfig = EnvConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    online: OnlineConfig = OnlineConfig()
    mappo: MAPPOConfig = MAPPOConfig()
    reinforce: REINFORCEConfig = REINFORCEConfig()


# Settings that only cooperative worlds have, and how many seconds an episode lasts if nothing else is said.
_COOP = ("density", "duration", "cooperation", "action_type")
_SECONDS = {"fastrl/coop-highway-v0": 40.0, "fastrl/coop-merge-v0": 60.0, "fastrl/highway-v0": 40.0}

RING = "fastrl/ring-v0"


def settled(config: TrafficConfig) -> TrafficConfig:
    """The same with everything decided that was left to us: how many worlds are played at a time."""
    if config.env.num_envs is not None:
        return config
    fitting = _world_steps(config) / (_UPDATES * rollout_steps(config))
    most = _ONLINE_WORLDS if config.online.enabled else _MOST_WORLDS
    num_envs = min(2 ** math.ceil(math.log2(max(fitting, 2))), most)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=num_envs))


def rollout_steps(config: TrafficConfig) -> int:
    """Of each world between two updates."""
    return (config.reinforce if config.run.algorithm == "reinforce" else config.mappo).num_steps


def expected_steps(config: TrafficConfig) -> int:
    """How many a run takes whose episodes last as long as they can; schedules are as long as this."""
    return max(math.ceil(_world_steps(config)), 1)


def step_seconds(config: EnvConfig) -> float:
    """Simulated seconds of a step."""
    options = environment_options(config)
    if config.id == RING:
        return float(options.get("dt", 0.1)) * float(options.get("sims_per_step", 1))
    # Cooperative worlds with continuous actions are stepped frame by frame.
    usual = options.get("simulation_frequency", 5) if options.get("action_type") == "continuous" else 1
    return 1.0 / float(options.get("policy_frequency", usual))


def _world_steps(config: TrafficConfig) -> float:
    """Of all episodes together, if each lasts as long as it can."""
    env = config.env
    options = environment_options(env)
    if env.id == RING:
        return config.run.episodes * float(options.get("horizon", 3000))
    return (
        config.run.episodes * float(options.get("duration", _SECONDS.get(env.id, 40.0))) / step_seconds(env)
    )


def full_traffic(config: EnvConfig) -> Difficulty:
    """The traffic that a curriculum leads to."""
    return Difficulty(config.vehicles, 1.0 if config.density is None else config.density)


def environment_options(config: EnvConfig) -> dict[str, Any]:
    """What ``fastrl.envs.make_multi`` is to be given besides the id and the number of worlds.

    Raises:
        ConfigError: no environment of traffic, or an option that it does not have.
    """
    if config.id not in MULTI_AGENT_IDS:
        raise ConfigError(f"--env: expected one of {', '.join(MULTI_AGENT_IDS)}, got {config.id}")
    given = {name: getattr(config, name) for name in _COOP if getattr(config, name) is not None}
    options: dict[str, Any] = {"num_threads": config.num_threads}
    if config.id.startswith("fastrl/coop-"):
        options |= {"max_agents": config.vehicles, "num_agents": config.vehicles, **given}
    elif given:
        raise ConfigError(f"--env.{next(iter(given))} is not an option of {config.id}")
    elif config.id == RING:
        options["num_agents"] = config.vehicles
    elif config.vehicles != 1:
        raise ConfigError(
            f"--vehicles {config.vehicles}: {config.id} has one vehicle that learns; choose --vehicles 1"
        )
    return options | parse_options(config.options)


def _preset(description: str, vehicles: int, episodes: int) -> Preset:
    # Short rollouts: more updates in few episodes, and less memory.
    return Preset(
        f"{vehicles} vehicles, {episodes} episodes: {description}",
        {
            "run": {"episodes": episodes},
            "env": {"vehicles": vehicles},
            "mappo": {"num_steps": 32},
            "reinforce": {"num_steps": 32},
        },
    )


PRESETS: dict[str, Preset] = {
    "fast": _preset("to see that everything works", 4, 100),
    "stable": _preset("a little more of both", 6, 200),
    "performance": _preset("what speed is measured with; with 5,000 episodes they drive well", 8, 300),
    "large-scale": _preset("a first look at many vehicles", 10, 100),
    "mega-scale": _preset("as many as fill the road", 12, 500),
    # An action holds for a second, for in a tenth it does nothing that could be told from noise. An agent that is paid
    # for driving evenly dissolves the wave by that alone; exploring widely, it would first learn to drive like a human.
    # Late in a run policies come and go that give up the most crowded rings: evaluations are as frequent as ends of
    # episodes, on enough rings to tell, and the policy to use is that of checkpoints/best.safetensors.
    "ring": Preset(
        "1 vehicle, 7680 episodes: one agent on Flow's ring road dissolves the wave; use the best checkpoint",
        {
            "run": {
                "algorithm": "ippo",
                "episodes": 7680,
                "eval_freq": 384,
                "eval_episodes": 64,
                "save_freq": 1920,
            },
            "env": {
                "id": RING,
                "vehicles": 1,
                "num_envs": 128,
                "options": (
                    "sims_per_step=10",
                    "horizon=300",
                    "warmup_steps=75",
                    "memory=20",
                    "action_weight=2",
                    # Beyond Flow's shortest ring: the most crowded ones are the hardest.
                    "ring_length=[208, 270]",
                    "distance_scale=270",
                ),
            },
            "mappo": {
                "num_steps": 100,
                "minibatch_size": 1600,
                "num_epochs": 5,
                "critic_epochs": 5,
                "gamma": 0.99,
                "gae_lambda": 0.97,
                "hidden": (64, 64),
                "activation": "tanh",
                "initial_log_std": -1.5,
                "normalize_obs": True,
                "learning_rate": 1e-3,
                "lr_schedule": "linear",
                "lr_final_share": 0.33,
                "entropy_coef": 0.0,
                "final_entropy_coef": 0.0,
            },
        },
    ),
}
