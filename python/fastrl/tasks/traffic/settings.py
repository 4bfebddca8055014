"""Settings of a run that trains agents in traffic, and presets."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fastrl.envs.registration import MULTI_AGENT_IDS
from fastrl.tasks.traffic.configured import ConfiguredWorld, is_configured
from fastrl.training.multi_agent import Difficulty
from fastrl.utils.config import ConfigError, Preset, Setting, section
from fastrl.utils.env_options import EnvOptions, parse_options
from fastrl.utils.names import did_you_mean

# Updates that the default number of environments leaves room for, and the least and the most environments that it
# chooses; the latter also for a simulation that runs while its agents are trained. Runs of a few hundred episodes need
# many updates more than they need large ones.
_UPDATES = 128
_MIN_ENVS = 2
_MAX_ENVS = 128
_MAX_ENVS_ONLINE = 8


@section
class EnvConfig:
    """The traffic, see fastrl.envs.make_multi."""

    id: Annotated[
        str,
        Field(
            description="fastrl/coop-highway-v0, fastrl/coop-merge-v0, fastrl/ring-v0, fastrl/v2x-resource-v0, or a"
            " highway or road network such as fastrl/intersection-multi-agent-v2"
        ),
        Setting(option="--env"),
    ] = "fastrl/coop-highway-v0"
    vehicles: Annotated[
        int | None,
        Field(
            ge=1,
            le=100,
            description="learning vehicles in each environment; none: 8, or as many as the road network has by itself",
        ),
        Setting(option="--vehicles"),
    ] = None
    density: Annotated[
        float | None,
        Field(
            ge=0,
            description="density of the traffic around the learning vehicles; none: the environment's own, 1",
        ),
        Setting(option="--density"),
    ] = None
    num_envs: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000_000,
            description="environments that are stepped together; none: by the number of episodes",
        ),
        Setting(option="--num-envs"),
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
    collision_reward: Annotated[
        float | None,
        Field(le=0, description="reward of an agent that crashes; none: the environment's own, -1"),
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
        Field(ge=0, le=1024, description="threads of the simulator; 0: one per core"),
        Setting(resumable=True),
    ] = 0


@section
class OnlineConfig:
    """Training while a simulation runs in a process of its own."""

    enabled: Annotated[
        bool,
        Field(
            description="train while a simulation runs in a process of its own, which never waits for the learner"
        ),
        Setting(option="--online"),
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


RING = "fastrl/ring-v0"
V2X = "fastrl/v2x-resource-v0"

# Settings that only cooperative environments have, and those that stand for a key of a config.
_COOP = ("density", "duration", "cooperation", "collision_reward", "action_type")
_CONFIG = ("duration", "collision_reward")
# Seconds of an episode by default; where nothing else ends it, as many as it takes at most.
_SECONDS = {"fastrl/coop-highway-v0": 40.0, "fastrl/coop-merge-v0": 60.0}
_USUAL_SECONDS = 40.0
_VEHICLES = 8


def choose_num_envs(steps: int, num_steps: int, *, online: bool) -> int:
    """The number of environments for a run: a power of two, the largest that leaves room for ``_UPDATES`` updates.

    Args:
        steps: environment steps of the run.
        num_steps: steps of each environment between updates.
        online: the simulation runs in a process of its own.
    """
    fitting = max(steps / (_UPDATES * num_steps), _MIN_ENVS)
    return min(2 ** math.floor(math.log2(fitting)), _MAX_ENVS_ONLINE if online else _MAX_ENVS)


def vehicles_of(config: EnvConfig) -> int:
    """Learning vehicles of an environment."""
    if config.vehicles is not None:
        return config.vehicles
    return _world(config).vehicles if is_configured(config.id) else _VEHICLES


def _world(config: EnvConfig) -> ConfiguredWorld:
    return ConfiguredWorld(config.id, environment_options(config).get("config"))


def step_seconds(config: EnvConfig) -> float:
    """Simulated seconds of a step."""
    options = environment_options(config)
    if is_configured(config.id):
        return _world(config).step_seconds
    if config.id == V2X:
        return 1e-3
    if config.id == RING:
        return float(options.get("dt", 0.1)) * float(options.get("sims_per_step", 1))
    # Cooperative environments with continuous actions are stepped frame by frame.
    usual = options.get("simulation_frequency", 5) if options.get("action_type") == "continuous" else 1
    return 1.0 / float(options.get("policy_frequency", usual))


def episode_steps(config: EnvConfig) -> int:
    """Steps after which an episode ends at the latest."""
    options = environment_options(config)
    if config.id == V2X:
        return max(int(options.get("time_budget", 100)), 1)
    if config.id == RING:
        return max(int(options.get("horizon", 3000)), 1)
    if is_configured(config.id):
        return _world(config).episode_steps(_USUAL_SECONDS)
    seconds = float(options.get("duration", _SECONDS[config.id]))
    # Rounded, because the division is inexact: 20 s of 0.2 s are 100 steps.
    return max(math.ceil(round(seconds / step_seconds(config), 6)), 1)


def full_traffic(config: EnvConfig) -> Difficulty:
    """The traffic that a curriculum leads to."""
    return Difficulty(vehicles_of(config), 1.0 if config.density is None else config.density)


def environment_options(config: EnvConfig) -> dict[str, Any]:
    """Arguments of ``fastrl.envs.make_multi`` besides the id and the number of environments.

    Raises:
        ConfigError: no environment of traffic, or an option that it does not have.
    """
    if config.id not in MULTI_AGENT_IDS:
        if meant := did_you_mean(config.id, MULTI_AGENT_IDS):
            raise ConfigError(f"--env: unknown environment {config.id}{meant}")
        raise ConfigError(
            f"--env: {config.id} is not an environment of traffic, fastrl/highway-v0 is one; fastrl train {config.id}"
            " trains in others"
        )
    given = {name: getattr(config, name) for name in _COOP if getattr(config, name) is not None}
    options: dict[str, Any] = {"num_threads": config.num_threads}
    own = parse_options(config.options)
    if is_configured(config.id):
        values = {name: given.pop(name) for name in _CONFIG if name in given}
        world = ConfiguredWorld(config.id, own.get("config"))
        if keys := world.with_settings(config.vehicles, **values):
            own["config"] = keys
    vehicles = _VEHICLES if config.vehicles is None else config.vehicles
    if config.id.startswith("fastrl/coop-"):
        options |= {"max_agents": vehicles, "num_agents": vehicles, **given}
    elif given:
        raise ConfigError(f"--env.{next(iter(given))} is not an option of {config.id}")
    elif config.id == RING:
        options["num_agents"] = vehicles
    elif config.id == V2X:
        options["num_links"] = vehicles
    return options | own


def _learning(algorithms: Sequence[str], **values: Any) -> dict[str, Mapping[str, Any]]:
    """The same values in the tables of several algorithms."""
    return dict.fromkeys(algorithms, values)


_FEW_EPISODES = {
    "num_steps": 32,
    "lr_schedule": "linear",
    "entropy_coef": 0.03,
    "final_entropy_coef": 0.0,
}


def _preset(
    description: str, vehicles: int, episodes: int, *, collision_reward: float | None = None, **learning: Any
) -> Preset:
    return Preset(
        f"{vehicles} vehicles, {episodes} episodes: {description}",
        {
            "run": {"total_episodes": episodes},
            "env": {"vehicles": vehicles, "collision_reward": collision_reward},
            **_learning(("ippo", "mappo"), **learning),
        },
        for_any_algorithm=True,
    )


# More gradient steps where there are 200 episodes. Where there are 100, still more, and first of all to avoid crashes,
# which follow their causes within seconds: by the environment's own rewards, 25 m/s until the crash return 5.4, 10 m/s
# without a crash 2.4.
_MORE_STEPS: dict[str, Any] = {"num_epochs": 8, "critic_epochs": 8, "minibatch_size": 128}
_CAUTIOUS: dict[str, Any] = {
    "num_epochs": 16,
    "critic_epochs": 16,
    "minibatch_size": 128,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "collision_reward": -30.0,
}

PRESETS: dict[str, Preset] = {
    "fast": _preset("to see that everything works", 4, 100, **_CAUTIOUS),
    "stable": _preset("a longer run with more vehicles", 6, 200, **_MORE_STEPS),
    "performance": _preset("the run that benchmarks measure", 8, 300),
    "large-scale": _preset("a first look at many vehicles", 10, 100, **_CAUTIOUS),
    "mega-scale": _preset("as many as fill the road", 12, 500),
    # Runs have hundreds to thousands of episodes of 40 to 60 decisions. Short rollouts and small minibatches make
    # thousands of gradient steps of that; exploration and learning rate end at 0, so that the last policies are
    # the best.
    "few-episodes": Preset(
        "many gradient steps from few episodes; the default of cooperative driving",
        {
            **_learning(
                ("ippo", "mappo"), **_FEW_EPISODES, num_epochs=4, critic_epochs=4, minibatch_size=256
            ),
            "reinforce": _FEW_EPISODES,
        },
    ),
    # An action holds for a second: the effect of a tenth of a second is lost in noise. An agent that is
    # rewarded for driving evenly dissolves the wave by that alone; with wide exploration it would first learn to drive
    # like a human. Late in a run some policies fail on the most crowded rings: evaluations are as frequent as ends of
    # episodes, on enough rings to show it, and the policy to use is that of checkpoints/best.safetensors.
    "ring": Preset(
        "1 vehicle, 7680 episodes: one agent on Flow's ring road dissolves the wave; use the best checkpoint",
        {
            "run": {
                "algo": "ippo",
                "total_episodes": 7680,
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
            **_learning(
                ("ippo", "mappo"),
                num_steps=100,
                minibatch_size=1600,
                num_epochs=5,
                critic_epochs=5,
                gamma=0.99,
                gae_lambda=0.97,
                hidden=(64, 64),
                activation="tanh",
                initial_log_std=-1.5,
                normalize_obs=True,
                learning_rate=1e-3,
                lr_schedule="linear",
                lr_final_share=0.33,
                entropy_coef=0.0,
                final_entropy_coef=0.0,
            ),
        },
        for_any_algorithm=True,
    ),
    # A link's own choice matters for some milliseconds, and what the others do is noise to it: large batches, and a
    # horizon that is shorter than an episode.
    "v2x": Preset(
        "4 vehicles, 6400 episodes: links that share spectrum; the default of fastrl/v2x-resource-v0",
        {
            "run": {"total_episodes": 6400, "eval_freq": 1280, "eval_episodes": 256, "save_freq": 3200},
            "env": {"id": V2X, "vehicles": 4, "num_envs": 64},
            **_learning(
                ("ippo", "mappo"),
                num_steps=50,
                minibatch_size=1600,
                num_epochs=5,
                critic_epochs=5,
                gamma=0.95,
                gae_lambda=0.9,
                hidden=(128, 128),
                activation="tanh",
                learning_rate=1e-3,
                lr_schedule="linear",
                entropy_coef=0.01,
                final_entropy_coef=0.0,
            ),
        },
        for_any_algorithm=True,
    ),
}


def check_preset(name: str, env_id: str) -> None:
    """Refuses a preset of another environment.

    Raises:
        ConfigError: names the presets that the environment has.
    """
    own = [each for each in PRESETS if _suits(each, env_id)]
    if env_id in MULTI_AGENT_IDS and name in PRESETS and name not in own:
        raise ConfigError(
            f"--preset {name} is for other environments than --env {env_id}, which has {', '.join(own)}"
        )


def _suits(preset: str, env_id: str) -> bool:
    if preset == "few-episodes":
        return True
    own = {"ring": RING, "v2x": V2X}.get(preset)
    return env_id.startswith("fastrl/coop-") if own is None else env_id == own


def presets_for(env_id: str) -> list[str]:
    """The presets of an environment; further presets override them."""
    return {RING: [], V2X: ["v2x"]}.get(env_id, ["few-episodes"])
