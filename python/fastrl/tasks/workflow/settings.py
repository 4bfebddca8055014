"""Settings of a search for the best workflow, and presets."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.envs.cage2.memory import Memory
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv, parse_workflow, workflow_name
from fastrl.networks.kinds import Activation
from fastrl.tasks.cage2.settings import GameConfig
from fastrl.tasks.preset_file import PresetFile
from fastrl.utils.config import Setting, section


@section
class EnvConfig(GameConfig):
    """CAGE Challenge 2, see fastrl.envs.cage2.workflow."""

    memory: Annotated[
        Memory,
        Field(
            description="what the defender observes of its own past, after the challenge's 52 bits and before the"
            " order: none, scan, decoys or full, as for cage2"
        ),
    ] = "none"
    n_workers: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        Field(
            description="threads that step environments (the simulators are compiled, so workers are threads of this"
            " process); auto: one per core"
        ),
        Setting(resumable=True, option="--n-workers"),
    ] = "auto"

    @property
    def num_threads(self) -> int:
        """Threads of the simulators; 0: one per core."""
        return 0 if self.n_workers == "auto" else self.n_workers

    def make(self, num_envs: int, **options: Any) -> Cage2WorkflowVectorEnv:
        """A vector environment that does not reset itself, with further options of `Cage2WorkflowVectorEnv`."""
        own = self.options() | {"num_threads": self.num_threads, "autoreset_mode": "disabled"}
        return Cage2WorkflowVectorEnv(num_envs, **own, **options)


@section
class SearchConfig:
    """Search for the best order, and PPO without orders to compare it with."""

    workflow: Annotated[
        str | None,
        AfterValidator(lambda text: None if text is None else workflow_name(parse_workflow(text))),
        Field(
            description="train this order alone, the most urgent first, such as"
            " op_server,enterprise,op_host,defender,user; none: search"
        ),
        Setting(option="--workflow"),
    ] = None
    plain_ppo: Annotated[
        bool,
        Field(
            description="after the search, train PPO without workflows for as many episodes, to compare with"
        ),
        Setting(resumable=True, option="--plain-ppo"),
    ] = True
    method: Annotated[
        Literal["bayes", "random", "halving", "exhaustive"],
        Field(
            description="bayes: Gaussian process over orders, upper confidence bound; random: orders at random;"
            " halving: all orders for a few episodes, the best ones for more and more; exhaustive: all orders for"
            " equally many"
        ),
        Setting(option="--search"),
    ] = "bayes"
    compliance_threshold: Annotated[
        float,
        Field(ge=0, le=1, description="compliance that an order must reach to count"),
        Setting(option="--compliance-threshold"),
    ] = 0.9
    trial_share: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="greatest share of the search's episodes for trials of orders; the rest trains the best one"
            " to the end; exhaustive takes what it needs",
        ),
    ] = 0.15
    trial_episodes: Annotated[
        int | None,
        Field(
            ge=2,
            description="bayes and random: episodes of a trial; none: a measurement with a shared network, else a"
            " fortieth of the episodes for trials",
        ),
    ] = None
    final_episodes: Annotated[
        int,
        Field(
            ge=2,
            description="episodes between two measurements of the best order while it is trained to the end",
        ),
    ] = 2500
    initial: Annotated[
        int,
        Field(ge=1, le=120, description="bayes: orders, far apart, that are tried before its model chooses"),
    ] = 10
    beta: Annotated[
        float,
        Field(ge=0, description="bayes: standard deviations added to the mean; more explores more"),
    ] = 1.5
    eta: Annotated[
        int, Field(ge=2, description="halving: one of this many orders stays in after each round")
    ] = 3
    warm_start: Annotated[
        bool,
        Field(description="separate networks: start with the weights of the nearest order trained before"),
    ] = True


@section
class InnerConfig:
    """Training of a policy that defends by a workflow: PPO with the compliance in its reward."""

    networks: Annotated[
        Literal["shared", "separate"],
        Field(
            description="shared: one network for all workflows, which observes the order; separate: one for each"
        ),
    ] = "shared"
    pretrain_share: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="share of all episodes in which a shared network first learns all workflows together",
        ),
    ] = 0.4
    compliance_weight: Annotated[
        float,
        Field(ge=0, le=1e6, description="what full compliance adds to the reward of an episode"),
    ] = 3.0
    episodes_per_update: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="environments stepped together, one episode of each an update"),
        Setting(option="--episodes-per-update"),
    ] = 256
    measured_episodes: Annotated[
        int,
        Field(
            ge=2,
            description="at least this many episodes of each training measure the policy, without learning",
        ),
    ] = 200
    hidden: hp.ActorCriticWidths = (64, 64)
    activation: Annotated[Activation, Field(description="after each hidden layer")] = "relu"
    learning_rate: hp.LearningRate = 3e-3
    final_learning_rate: hp.FinalLearningRate = 1e-4
    entropy_coef: hp.EntropyCoef = 0.01
    final_entropy_coef: hp.FinalEntropyCoef = 0.001
    num_epochs: Annotated[int, Field(ge=1, description="passes over the episodes of an update")] = 3
    minibatch_size: Annotated[
        int, Field(ge=1, description="at most this many samples in a gradient step")
    ] = 4096
    gamma: hp.Gamma = 0.99
    gae_lambda: hp.GaeLambda = 0.95
    clip_range: hp.ClipRange = 0.2
    action_masks: hp.ActionMasks = True
    update_backend: hp.UpdateBackend = "auto"

    def ppo(self, num_steps: int) -> PPOConfig:
        """The settings of PPO that they amount to, for rollouts of ``num_steps`` steps."""
        own, known = ({field.name for field in dataclasses.fields(kind)} for kind in (InnerConfig, PPOConfig))
        return PPOConfig(num_steps=num_steps, **{name: getattr(self, name) for name in own & known})


PRESETS = PresetFile(Path(__file__).with_name("presets.toml"))
