"""Proximal policy optimisation with a clipped objective (Schulman et al., 2017, arXiv:1707.06347)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fastrl.algorithms import hyper_parameters as hp
from fastrl.algorithms.actor_critic import ActorCriticConfig, ActorCriticLearner
from fastrl.algorithms.ppo_loss import log_probs_of, surrogate_gradient
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sequence_passes import SequenceBatch
from fastrl.networks.distributions import Choices, mask_logits
from fastrl.networks.parameters import generator_of
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.rollout import explained_variance
from fastrl.utils.config import section
from fastrl.utils.timer import Stopwatch


@section
class PPOConfig(ActorCriticConfig):
    """Hyper-parameters of PPO."""

    num_epochs: Annotated[int, Field(ge=1, description="passes over the rollout in an update")] = 4
    minibatch_size: Annotated[
        int,
        Field(
            ge=1,
            description="at most this many samples in a gradient step; minibatches are of equal size, and with a memory"
            " of whole fragments of some environments",
        ),
    ] = 4096
    gae_lambda: hp.GaeLambda = 0.95
    clip_range: hp.ClipRange = 0.2
    value_clip: Annotated[
        float | None,
        Field(gt=0, description="clip range of value predictions, in units of return; none: off"),
    ] = None
    target_kl: hp.TargetKl = None
    action_masks: Annotated[
        bool, Field(description="never take actions that the environment says cannot have an effect")
    ] = False
    precision: Annotated[
        Literal["fp32", "bf16", "fp16"],
        Field(description="of the network's arithmetic on CUDA (mixed precision); CPUs always use fp32"),
    ] = "fp32"
    compile: Annotated[bool, Field(description="torch.compile the network on CUDA; CPUs never do")] = False


@dataclass(frozen=True)
class PPOMetrics:
    """Numbers of one update: means over its gradient steps, unless noted.

    Attributes:
        policy_loss: clipped surrogate, negated.
        value_loss: half the mean squared error.
        entropy: of the policy, in nats.
        approx_kl: KL(old, new), Schulman's estimator ``ratio - 1 - log(ratio)``.
        clip_fraction: share of samples whose ratio was outside the clip range.
        grad_norm: before clipping.
        explained_variance: 1 - var(returns - values) / var(returns) over the rollout, before the update.
        learning_rate, entropy_coef: in force.
        gradient_steps: number of them.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approx_kl: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float
    learning_rate: float
    entropy_coef: float
    gradient_steps: int


class Minibatch(NamedTuple):
    """B samples to learn from. Those of equal observation and mask share a row of the D different ones.

    What the network does with a row is then done once for all its samples. Environments with discrete
    observations repeat them a lot: a trained defender of CAGE 2 sees the same observation fifty times a
        rollout.
    """

    obs: (
        Tensor | SequenceBatch
    )  # [D, obs_dim], the different observations; or sequences, each sample with its own
    rows: Tensor  # int64 [B], which of them each sample has
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n]
    log_probs: Tensor  # float32 [B], when the actions were chosen
    advantages: Tensor  # float32 [B]
    returns: Tensor  # float32 [B]
    values: Tensor  # float32 [B], when the actions were chosen
    masks: Tensor | None = None  # bool [D, num_actions], True = allowed


class Losses(NamedTuple):
    """Scalars (0-dimensional tensors) of one minibatch, as in `PPOMetrics`."""

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def value_gradient(values: Tensor, batch: Minibatch, *, value_clip: float | None) -> tuple[Tensor, Tensor]:
    """Gradient of the value loss (half a mean square) in the predictions, float32 [D], and that loss.

    With ``value_clip`` the loss of a sample is the larger of that of the prediction and that of the
    prediction moved no further than ``value_clip`` from the old one.
    """
    predictions = values.take(batch.rows)
    error = predictions - batch.returns
    gradient = error
    if value_clip is not None:
        moved = predictions - batch.values
        clipped_error = batch.values + moved.clamp(-value_clip, value_clip) - batch.returns
        # Beyond the clip the clipped loss does not depend on the prediction; within it the two differ by
        # rounding alone.
        larger = (moved.abs() > value_clip) & (clipped_error.square() > error.square())
        gradient = torch.where(larger, 0.0, error)
        error = torch.where(larger, clipped_error, error)
    summed = torch.zeros_like(values).index_add_(0, batch.rows, gradient / len(gradient))
    return summed, error.square().mean() / 2


class Gradients(NamedTuple):
    """Gradients of ``policy_loss + value_coef * value_loss - entropy_coef * entropy``, and the losses."""

    outputs: Tensor  # of the actor, float32 [D, size]
    values: Tensor  # float32 [D]
    log_std: Tensor | None  # of a Gaussian, float32 [n]
    losses: Losses


def ppo_gradients(
    outputs: Tensor,
    values: Tensor,
    batch: Minibatch,
    *,
    log_std: Tensor | None = None,
    choices: Choices | None = None,
    clip_range: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: float,
) -> Gradients:
    """The gradients of the loss of a minibatch.

    Args:
        outputs: of the actor, float32 [D, size]: logits before masking, or means.
        values: float32 [D].
        log_std: float32 [n] of a Gaussian; None for discrete actions.
        choices: of multi-discrete actions; None for others.
    """
    policy = surrogate_gradient(
        outputs,
        log_std,
        batch.actions,
        batch.log_probs,
        batch.advantages,
        rows=batch.rows,
        masks=batch.masks,
        choices=choices,
        clip_range=clip_range,
        entropy_coef=entropy_coef,
    )
    grad_values, value_loss = value_gradient(values, batch, value_clip=value_clip)
    policy_loss, entropy, approx_kl, clip_fraction = policy.losses
    return Gradients(
        policy.outputs,
        grad_values * value_coef,
        policy.log_std,
        Losses(policy_loss, value_loss, entropy, approx_kl, clip_fraction),
    )


class PPO(ActorCriticLearner):
    """A policy that learns from fragments of any collector.

    ::

        ppo = PPO(PPOConfig(), Problem(obs_space, action_space, num_envs, total_timesteps=1_000_000))
        watch = Stopwatch()
        while ppo.steps < ppo.total_timesteps:
            ppo.write_weights(buffer)
            collector.publish(buffer)
            ppo.update(collector.collect(), watch)

    The initial weights and the order of samples come from the seed. On a CPU, for a given number of torch threads, the
    same seed and fragments give the same parameters to the bit, also across `state_dict` and `load_state_dict`.

    Args and attributes: as of `ActorCriticLearner`; ``num_envs`` are the collector's rows.
    """

    name = "ppo"
    summary = "proximal policy optimisation: collects, then learns"
    config_type = PPOConfig
    config: PPOConfig

    def __init__(self, config: PPOConfig, problem: Problem) -> None:
        super().__init__(config, problem, precision=config.precision, compiled=config.compile)
        # Permutations are drawn on the CPU: they are small, and a run may be resumed on another device.
        self._shuffling = generator_of(np.random.SeedSequence(problem.seed).spawn(3)[2])
        # float32 [T, N], log-probabilities of the policy less those of the policies that acted; None if they are the
        # same.
        self._log_ratios: NDArray[np.float32] | None = None

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

    def load_rollout(
        self, fragments: Sequence[Fragment], watch: Stopwatch, *, correct_off_policy: bool = False
    ) -> None:
        """Copies fragments, from any collector, into `rollout`, from which the next update learns.

        Args:
            correct_off_policy: what older policies did counts by V-trace, see ``fastrl.rollout.rollout.Rollout``, and
                the update is clipped around the policy as it is, not as it was when it acted (Hilton, Cobbe and
                Schulman, "Batch size-invariance for policy optimization", 2021, part the two in the same way).

        Raises:
            ValueError: they do not fit together, or not the network; see `fastrl.rollout.layout.lay_out`.
            FloatingPointError: the policy gave NaN or infinity.
        """
        super().load_rollout(fragments, watch)
        with watch("inference"):
            self._evaluate()
            self._log_ratios = None
            if correct_off_policy:
                log_probs = self._log_probs()
                self._log_ratios = log_probs - self.rollout.log_probs
                self.rollout.log_probs[:] = log_probs

    def learn(self, watch: Stopwatch) -> PPOMetrics:
        config = self.config
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        with watch("returns"):
            if self._log_ratios is None:
                self.rollout.compute_advantages(config.gamma, config.gae_lambda, self._reward_scale)
            else:
                self.rollout.compute_vtrace(
                    self._log_ratios,
                    config.gamma,
                    trace_lambda=config.gae_lambda,
                    reward_scale=self._reward_scale,
                )
            explained = explained_variance(self.rollout.returns, self.rollout.values[:-1])
            if config.normalize_advantages:
                advantages = self.rollout.advantages
                advantages -= advantages.mean()
                advantages /= advantages.std() + 1e-8
        with watch("update"):
            rows = []
            for batch in self._minibatches():
                losses, grad_norm = self._gradient_step(batch, entropy_coef, learning_rate)
                rows.append(torch.stack([*losses, grad_norm]))
                if config.target_kl is not None and losses.approx_kl > config.target_kl:
                    break
            self.policy.update_statistics(self.rollout.flat("obs"))
            means = torch.stack(rows).mean(0).tolist()
            policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm = means
            self._check_parameters()
        return PPOMetrics(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            approx_kl=approx_kl,
            clip_fraction=clip_fraction,
            grad_norm=grad_norm,
            explained_variance=explained,
            learning_rate=learning_rate,
            entropy_coef=entropy_coef,
            gradient_steps=len(rows),
        )

    def _evaluate(self) -> None:
        """Values of all observations of the rollout, and of the last ones of episodes that were cut off."""
        rollout = self.rollout
        if self._sequences is not None:
            self._outputs = self._sequences.evaluate(rollout)
            self._check_outputs()
            return
        rollout.find_groups(merge=not self._has_images)
        rollout.values[:] = self._values(rollout.distinct("obs"))[rollout.groups]
        cut_off = rollout.cut_off()
        rollout.final_values[cut_off] = self._values(rollout.final_obs[cut_off])
        self._check_outputs()

    def _log_probs(self) -> NDArray[np.float32]:
        """Log-probabilities of the rollout's actions under the policy as it is, float32 [T, N]; after `_evaluate`."""
        rollout = self.rollout
        with torch.inference_mode():
            if self._sequences is None:
                outputs = self._in_chunks(self.policy.outputs, rollout.distinct("obs"))
                if rollout.masks is not None:
                    outputs = mask_logits(outputs, torch.from_numpy(rollout.distinct("masks")))
                of_samples = outputs.index_select(0, rollout.flat("groups"))
            else:
                masks = None if rollout.masks is None else rollout.flat("masks")
                of_samples = mask_logits(self._outputs, masks)
            log_std = None if self.policy.log_std is None else self.policy.log_std.cpu()
            log_probs = log_probs_of(of_samples, log_std, self.rollout.flat("actions"), self._choices).numpy()
        chosen: NDArray[np.float32] = log_probs.reshape(rollout.log_probs.shape)
        return chosen

    def _minibatches(self) -> Iterator[Minibatch]:
        """Each epoch's samples in a new order, in equal parts; with a memory rows of fragments in a new order."""
        rollout = self.rollout
        names = ("actions", "log_probs", "advantages", "returns", "values")
        samples = {name: self.rollout.flat(name).to(self.device) for name in names}
        if self._sequences is not None:
            for _ in range(self.config.num_epochs):
                for sequences in self._sequences.minibatches(self.config.minibatch_size, self._shuffling):
                    places = torch.from_numpy(sequences.packed.places).to(self.device)
                    yield Minibatch(
                        obs=sequences,
                        rows=torch.arange(len(places), device=self.device),
                        masks=None
                        if rollout.masks is None
                        else rollout.flat("masks").to(self.device)[places],
                        **{name: sample[places] for name, sample in samples.items()},
                    )
            return
        groups = self.rollout.flat("groups").to(self.device)
        obs = torch.from_numpy(rollout.distinct("obs"))
        if not self._has_images:
            obs = obs.to(self.device)
        masks = None if rollout.masks is None else torch.from_numpy(rollout.distinct("masks")).to(self.device)
        parts = -(-len(rollout) // self.config.minibatch_size)
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(rollout), generator=self._shuffling).to(self.device)
            for part in order.tensor_split(parts):
                chosen, rows = groups[part].unique(return_inverse=True)
                yield Minibatch(
                    obs=obs[chosen.to(obs.device)].to(self.device),
                    rows=rows,
                    masks=None if masks is None else masks[chosen],
                    **{name: sample[part] for name, sample in samples.items()},
                )

    def _gradient_step(
        self, batch: Minibatch, entropy_coef: float, learning_rate: float
    ) -> tuple[Losses, Tensor]:
        """One step of the optimiser. Returns the losses and the gradient's norm before clipping."""
        log_std = self.policy.log_std
        with self._optimizer.autocast():
            outputs, values = self._train_pass(batch.obs)
        outputs, values = outputs.float(), values.float()
        with torch.no_grad():
            gradients = ppo_gradients(
                outputs,
                values,
                batch,
                log_std=log_std,
                choices=self._choices,
                clip_range=self.config.clip_range,
                value_clip=self.config.value_clip,
                value_coef=self.config.value_coef,
                entropy_coef=entropy_coef,
            )
        outputs_learned, output_gradients = [outputs, values], [gradients.outputs, gradients.values]
        if log_std is not None and gradients.log_std is not None:
            outputs_learned.append(log_std)
            output_gradients.append(gradients.log_std)
        return gradients.losses, self._descend(outputs_learned, output_gradients, learning_rate)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"generators": {"shuffling": self._shuffling.get_state()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._shuffling.set_state(state["generators"]["shuffling"])
