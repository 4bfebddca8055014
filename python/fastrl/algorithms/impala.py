"""An asynchronous actor-critic with V-trace (Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance
Weighted Actor-Learner Architectures", 2018, arXiv:1802.01561)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.actor_critic import (
    ActorCriticLearner,
)
from fastrl.algorithms.async_settings import ImpalaConfig, IMPALADeclaration
from fastrl.algorithms.loss import Loss
from fastrl.algorithms.ppo_loss import log_probs_and_entropy
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sequence_passes import SequencePasses
from fastrl.networks.distributions import mask_logits
from fastrl.rollout.rollout import explained_variance
from fastrl.rollout.sequences import write_at
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch

# Without lag every ratio is 1 but for the rounding of float32, and the default of ``rho_clip`` is 1.
_ROUNDING = 1e-4
# Outputs and values of observations, or along sequences.
Network = Callable[[Any], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ImpalaMetrics:
    """Numbers of one update.

    Attributes:
        policy_loss, value_loss, entropy: see `Losses`.
        mean_ratio: of the actions' probability under the policy to that under the policies that acted; 1 without lag.
        clip_fraction: share of actions whose ratio was above ``rho_clip`` by more than rounding.
        grad_norm: before clipping.
        explained_variance: 1 - var(returns - values) / var(returns), before the update.
        learning_rate, entropy_coef: in force.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    mean_ratio: float
    clip_fraction: float
    grad_norm: float
    explained_variance: float
    learning_rate: float
    entropy_coef: float


@dataclass(frozen=True)
class Losses(Loss):
    """The loss of samples of a rollout.

    Attributes:
        policy_loss: ``-advantage * log p(action)``.
        value_loss: half the squared error.
        entropy: of the policy, in nats.
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor


class Pass(NamedTuple):
    """Outputs of the network for B samples of a rollout, with gradients."""

    outputs: Tensor  # float32 [B, size]: logits, masked, or means
    log_probs: Tensor  # float32 [B], of the actions
    entropy: Tensor  # of the policy at each sample, float32 [B], or the same everywhere, []
    values: Tensor  # float32 [B]
    # float32 [B], log-probabilities without dropout, as of the policies that acted; without gradients.
    whole: Tensor
    places: slice | NDArray[np.int64]  # which samples they are; with shards an array
    # int64, places of the observations that were valued, as of `fastrl.rollout.sequences.Sequences`.
    valued: NDArray[np.int64]


class Minibatch(NamedTuple):
    """B samples to learn from, whose outputs of the network as it is have gradients."""

    outputs: Tensor  # float32 [B, size]: logits, masked, or means
    actions: Tensor  # int64 [B] or [B, n], or draws float32 [B, n]
    log_probs: Tensor  # float32 [B], of these
    entropy: Tensor  # of the policy at each sample, float32 [B], or the same everywhere, []
    new_values: Tensor  # float32 [B], of the value function as it is
    advantages: Tensor  # float32 [B], V-trace's, constants that contain the clipped ratios
    returns: Tensor  # float32 [B], V-trace's


class IMPALA(IMPALADeclaration, ActorCriticLearner):
    """A policy that learns from experience of its own and of older versions: a gradient step an update.

    ::

        impala = IMPALA(ImpalaConfig(), Problem(obs_space, action_space, plan.num_envs, total_timesteps=1_000_000))
        watch = Stopwatch()
        while impala.steps < impala.total_timesteps:
            impala.update([collector.take() for _ in range(4)], watch)

    Args and attributes: as of `ActorCriticLearner`.
    """

    config: ImpalaConfig
    takes_shards = True

    def __init__(self, config: ImpalaConfig, problem: Problem) -> None:
        if config.c_clip > config.rho_clip:
            raise ValueError(f"c_clip should be at most rho_clip, got {config.c_clip} and {config.rho_clip}")
        super().__init__(config, problem)
        self.entropy_coef = 0.0

    def learn(self, watch: Stopwatch) -> ImpalaMetrics:
        config, rollout = self.config, self.rollout
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        self.entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        with watch("update"):
            # One pass serves the corrections and the gradient, unless there is dropout.
            passes = self._passes_of_shards()
            log_probs, places = self._exchanged(passes)
        with watch("returns"):
            self._check_outputs()
            # Steps before the learned ones do not affect them: their ratios stay 1.
            log_ratios = np.zeros(len(rollout), np.float32)
            log_ratios[places] = log_probs - rollout.log_probs.reshape(-1)[places]
            rollout.compute_vtrace(
                log_ratios.reshape(rollout.log_probs.shape),
                config.gamma,
                trace_lambda=config.trace_lambda,
                rho_clip=config.rho_clip,
                c_clip=config.c_clip,
                reward_scale=self.reward_scale,
                reward_clip=config.reward_clip,
            )
            explained = explained_variance(
                rollout.returns.reshape(-1)[places], rollout.values[:-1].reshape(-1)[places]
            )
            if config.normalize_advantages == "rollout":
                learned = rollout.advantages.reshape(-1)[places]
                rollout.advantages -= learned.mean()
                rollout.advantages /= learned.std() + 1e-8
        with watch("update"):
            size = len(log_probs)

            def learn(shard: Shard) -> Tensor | None:
                passed = passes.get(shard.number)
                return None if passed is None else self._differentiate(passed, size)

            policy_loss, value_loss, entropy = self._reduce(size, len(Losses.names()), learn).tolist()
            grad_norm = self.descend(learning_rate)
            self.policy.update_statistics(self.rollout.flat("obs"))
            self._check_parameters()
        ratios = np.exp(np.minimum(log_ratios[places], 80))
        return ImpalaMetrics(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            mean_ratio=float(ratios.mean()),
            clip_fraction=float((ratios > config.rho_clip * (1 + _ROUNDING)).mean()),
            grad_norm=grad_norm.item(),
            explained_variance=explained,
            learning_rate=learning_rate,
            entropy_coef=self.entropy_coef,
        )

    def loss(self, batch: Minibatch) -> Losses:
        """The sum of the three parts in section 4.2 of arXiv:1802.01561. A subclass may change it, see the guide "A
        loss of your own"."""
        log_pi, A, V, v = batch.log_probs, batch.advantages, batch.new_values, batch.returns
        policy_loss = -(A * log_pi).mean()
        value_loss = (V - v).square().mean() / 2
        H = batch.entropy.mean()
        total = policy_loss + self.config.value_coef * value_loss - self.entropy_coef * H
        return Losses(total, policy_loss, value_loss, H)

    def _differentiate(self, passed: Pass, size: int) -> Tensor:
        """Adds the gradient of the loss of some of ``size`` samples; the parts of their `Losses`, weighted."""
        actions, advantages, returns = (
            self._samples(name, passed.places) for name in ("actions", "advantages", "returns")
        )
        losses = self.loss(
            Minibatch(
                passed.outputs, actions, passed.log_probs, passed.entropy, passed.values, advantages, returns
            )
        )
        weight = len(passed.log_probs) / size
        self._backpropagate(losses.total * weight)
        return losses.metrics() * weight

    def _passes_of_shards(self) -> dict[int, Pass]:
        """The passes of this rank's shards of the rollout, by their number; fills the rollout's values there."""
        before, passes = self._passes, {}
        rows = self.rollout.num_rows if self._sequences is None else len(self.rollout.state_places)
        for shard in self.ranks.own_shards(rows):
            if shard.rows.start < shard.rows.stop:
                self._passes = before + shard.number
                passes[shard.number] = self._pass(shard.rows)
        self._passes = before + max(self.ranks.shards, 1)
        if self._sequences is None:
            cut_off = self.rollout.cut_off()
            self.rollout.final_values[cut_off] = self.predict_values(self.rollout.final_obs[cut_off])
        return passes

    def _pass(self, rows: slice) -> Pass:
        """The pass of some rows of the rollout, or, with a memory, of its fragments. Dropout is for gradients alone:
        corrections and the rollout's values are those of the whole network."""
        passed = self._pass_by(self._train_pass, rows)
        if not self._has_drawn:
            return passed
        with torch.no_grad():
            return passed._replace(whole=self._pass_by(self._outputs_and_values, rows).whole)

    def _pass_by(self, network: Network, rows: slice) -> Pass:
        """The pass of some rows by either of the two."""
        rollout = self.rollout
        if self._sequences is None:
            outputs, values, places, valued = self._pass_of_steps(network, rows)
        else:
            outputs, values, places, valued = self._pass_of_sequences(network, self._sequences, rows)
        if rollout.masks is not None:
            outputs = mask_logits(outputs, self._samples("masks", places))
        log_probs, entropy = log_probs_and_entropy(
            outputs, self.policy.log_std, self._samples("actions", places), self._choices
        )
        return Pass(outputs, log_probs, entropy, values, log_probs.detach(), places, valued)

    def _pass_of_steps(
        self, network: Network, rows: slice
    ) -> tuple[Tensor, Tensor, slice | NDArray[np.int64], NDArray[np.int64]]:
        """Outputs and values at the samples of some rows, which these are, and what was valued; fills the rollout's
        values."""
        rollout = self.rollout
        # The row after the last has a value only.
        outputs, values = network(rollout.tensors["obs"][:, rows].flatten(0, 1).to(self.device))
        found = values.detach().cpu().numpy().reshape(rollout.num_steps + 1, -1)
        rollout.values[:, rows] = found
        size = rollout.num_steps * found.shape[1]
        valued = np.arange(rollout.values.size).reshape(rollout.values.shape)[:, rows].reshape(-1)
        # Places of samples are those of the observations that they were chosen on.
        places = valued[:size] if self.ranks.shards else slice(None)
        return outputs[:size], values[:size], places, valued

    def _pass_of_sequences(
        self, network: Network, passes: SequencePasses, rows: slice
    ) -> tuple[Tensor, Tensor, NDArray[np.int64], NDArray[np.int64]]:
        """See `_pass_by`; along sequences of steps, for those that are learned from."""
        batch = passes.learned(self.rollout, rows)
        outputs, values = network(batch)
        places, found = batch.packed.places, values.detach().float().cpu().numpy()
        write_at(self.rollout.values, self.rollout.final_values, places, found)
        steps = torch.from_numpy(batch.packed.is_step).to(self.device)
        return outputs[steps], values[steps], places[batch.packed.is_step], places

    def _exchanged(self, passes: Mapping[int, Pass]) -> tuple[NDArray[np.float32], slice | NDArray[np.int64]]:
        """Log-probabilities of the samples of all shards, and which these are; fills the rollout's values of shards of
        other ranks."""
        if not self.ranks.shards:
            return passes[0].whole.cpu().numpy(), passes[0].places
        values = np.concatenate([self.rollout.values.reshape(-1), self.rollout.final_values.reshape(-1)])
        corrected = [
            (each.whole.cpu().numpy(), each.places, each.valued, values[each.valued])
            for each in passes.values()
        ]
        found = [shard for shards in self.ranks.gather(corrected) for shard in shards]
        for _, _, valued, theirs in found:
            write_at(self.rollout.values, self.rollout.final_values, valued, theirs)
        return np.concatenate([shard[0] for shard in found]), np.concatenate([shard[1] for shard in found])

    def _samples(self, name: str, places: slice | NDArray[np.int64]) -> Tensor:
        """Some samples of an array of the rollout."""
        samples = self.rollout.flat(name)
        return (samples if isinstance(places, slice) else samples[torch.from_numpy(places)]).to(self.device)
