"""Proximal policy optimisation with a clipped objective (Schulman et al., 2017, arXiv:1707.06347)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.actor_critic import ActorCriticLearner
from fastrl.algorithms.compiled_update import CompiledUpdate, StepMeans
from fastrl.algorithms.loss import Loss, overridden
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.ppo_loss import divergence, log_probs_and_entropy
from fastrl.algorithms.ppo_settings import PPOConfig, PPODeclaration
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.schedules import TimestepSchedule
from fastrl.algorithms.sequence_passes import SequenceBatch, SequencePasses
from fastrl.networks.acting_network import PolicyNet
from fastrl.networks.actor_critic import ActorCritic
from fastrl.networks.distributions import mask_logits
from fastrl.networks.parameters import generator_of
from fastrl.networks.policy_network import EncodedPolicy
from fastrl.rollout.fragment import Fragment
from fastrl.rollout.rollout import explained_variance
from fastrl.rollout.sequences import Sequences, write_at
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch

# Of a minibatch that the network has not seen.
_NOT_YET = torch.empty(0)


@dataclass(frozen=True)
class PPOMetrics(StepMeans):
    """Numbers of one update.

    Attributes:
        explained_variance: 1 - var(returns - values) / var(returns) over the rollout, before the update.
        learning_rate, entropy_coef: in force.
    """

    explained_variance: float
    learning_rate: float
    entropy_coef: float


class Minibatch(NamedTuple):
    """B samples to learn from. Samples with the same observation share one of the D rows of ``obs``.

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
    masks: Tensor | None = None  # bool [B, num_actions], True = allowed
    lags: Tensor | None = None  # float32 [B], `log_probs` less those of the policy before the update; None: 0
    outputs: Tensor = _NOT_YET  # of the policy as it is, with gradients, float32 [D, size]: logits or means
    new_values: Tensor = _NOT_YET  # of the value function as it is, with gradients, float32 [D]


class Drawn(NamedTuple):
    """The order in which samples of a minibatch are to be learned from.

    Attributes:
        size: number of samples, B.
        take: makes the minibatch of a shard; None: it has no samples.
    """

    size: int
    take: Callable[[Shard], Minibatch | None]


@dataclass(frozen=True)
class Losses(Loss):
    """The loss of a minibatch.

    Attributes:
        policy_loss, value_loss, entropy, approx_kl, clip_fraction: as in `PPOMetrics`.
        init_kl: KL(first, policy), see `PPOConfig.init_kl_coef`.
    """

    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    init_kl: Tensor


# Numbers of a gradient step.
_METRICS = (*Losses.names(), "grad_norm")


class PPO(PPODeclaration, ActorCriticLearner):
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

    config: PPOConfig
    takes_shards = True

    def __init__(self, config: PPOConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        # Permutations are drawn on the CPU: they are small, and a run may be resumed on another device.
        self._shuffling = generator_of(np.random.SeedSequence(problem.seed).spawn(3)[2])
        self.compiled_update, self._why_not_compiled = CompiledUpdate.of(self, PPO, self._optimizer)
        # Learns while the critic alone does; None before and after.
        self._warmup: Optimizer | None = None
        if config.init_kl_coef and overridden(type(self), PPO, ("log_probs_and_entropy",)):
            raise ValueError("init_kl_coef is for PPO's own distributions: set it to 0")
        has_own_critic = isinstance(self.policy, ActorCritic) or (
            isinstance(self.policy, EncodedPolicy) and self.policy.critic_trunk is not None
        )
        if config.critic_warmup and not has_own_critic:
            raise ValueError(
                "critic_warmup needs a value function that shares no layer with the policy: set it to 0, or"
                " shared_trunk to false, without a memory or a network of your own"
            )
        # The policy at the start of the run or stage, while the policy is held near it; and the mean divergence from it
        # in the present update.
        self._reference: PolicyNet | None = None
        self._init_kl: float | None = None
        self.entropy_coef = self.kl_coef = 0.0
        # float32 [T, N], log-probabilities of the policy less those of the policies that acted; None if they are the
        # same.
        self.log_ratios: NDArray[np.float32] | None = None
        # For an update that is clipped around the policies that acted: their log-probabilities less those of the policy
        # before the update, float32 [T * N]. Then the parameters of the policy before the update.
        self._lags: Tensor | None = None
        self._before = self._parameters.data

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
            # Older policies gave other values.
            self._evaluate(are_known=self.rollout.has_values and not self.max_staleness)
            self.log_ratios = self._lags = None
            if correct_off_policy:
                log_probs = self.log_probs()
                self.log_ratios = log_probs - self.rollout.log_probs
                self.rollout.borrow({"log_probs": log_probs})
            elif self.max_staleness and self._may_draw:
                self._lags = self.rollout.flat("log_probs") - torch.from_numpy(self.log_probs()).flatten()

    def learn(self, watch: Stopwatch) -> PPOMetrics:
        config = self.config
        learning_rate = self._scheduled(config.learning_rate, config.final_learning_rate)
        self.entropy_coef = self._scheduled(config.entropy_coef, config.final_entropy_coef)
        is_warmup = self._steps_before < self._warmup_end
        self._init_kl = None
        self.kl_coef = 0.0 if is_warmup else self._scheduled_kl_coef()
        if config.init_kl_coef and self._reference is None:
            self._reference = self._copied()
        if is_warmup and self._warmup is None:
            self._warmup = self._new_optimizer()
        elif not is_warmup:
            self._warmup = None
        with watch("returns"):
            if self.log_ratios is None:
                self.rollout.compute_advantages(
                    config.gamma, config.gae_lambda, self.reward_scale, config.reward_clip
                )
            else:
                self.rollout.compute_vtrace(
                    self.log_ratios,
                    config.gamma,
                    trace_lambda=config.gae_lambda,
                    reward_scale=self.reward_scale,
                    reward_clip=config.reward_clip,
                )
            explained = explained_variance(self.rollout.returns, self.rollout.values[:-1])
            if config.normalize_advantages == "rollout":
                advantages = self.rollout.advantages
                advantages -= advantages.mean()
                advantages /= advantages.std() + 1e-8
            if is_warmup:
                # Without advantages and a bonus the policy's gradient is 0, and so is what its optimiser adds.
                self.rollout.advantages[:] = 0
                self.entropy_coef = 0.0
        with watch("update"):
            if self.compiled_update is None or self.kl_coef:
                means = self._gradient_steps(learning_rate)
            else:
                means = self.compiled_update(
                    self.rollout,
                    self._warmup or self._optimizer,
                    self._shuffling,
                    entropy_coef=self.entropy_coef,
                    learning_rate=learning_rate,
                )
            if not (is_warmup or config.freeze_obs_norm):
                self.policy.update_statistics(self.rollout.flat("obs"))
            self._check_parameters()
        return PPOMetrics(
            **asdict(means),
            explained_variance=explained,
            learning_rate=learning_rate,
            entropy_coef=self.entropy_coef,
        )

    def metrics(self) -> dict[str, float]:
        found = super().metrics()
        if self._init_kl is not None:
            found["init_kl"] = self._init_kl
        return found

    def _scheduled_kl_coef(self) -> float:
        """The weight of the divergence from the first policy in the present update."""
        first, until = self._warmup_end, self._warmup_end + self.config.init_kl_steps
        if first == until:
            first, until = max(first, self._problem.schedule_start), self.total_timesteps
        return TimestepSchedule(self.config.init_kl_coef, 0.0, until, first)(self._steps_before)

    @property
    def _warmup_end(self) -> int:
        """Environment steps up to which the critic alone learns in this stage."""
        return self._problem.first_timestep + self.config.critic_warmup

    def _copied(self, weights: Mapping[str, Tensor] | None = None) -> PolicyNet:
        """A copy of the policy that does not learn, perhaps with other weights."""
        state = self.policy.state()
        copy = type(self.policy).from_state(state if weights is None else {**state, "weights": weights})
        return copy.to(self.device).eval().requires_grad_(False)

    def _gradient_steps(self, learning_rate: float) -> StepMeans:
        """Takes all gradient steps of an update by PyTorch."""
        steps, target_kl = [], self.config.target_kl
        if self._may_draw:
            self._before = self._parameters.data.clone()
        for drawn in self.minibatches():
            steps.append(self._gradient_step(drawn, learning_rate))
            # Ranks have the same sums, and so stop together.
            if target_kl is not None and steps[-1][_METRICS.index("approx_kl")] > target_kl:
                break
        means = dict(zip(_METRICS, torch.stack(steps).mean(0).tolist(), strict=True))
        init_kl = means.pop("init_kl")
        self._init_kl = init_kl if self.kl_coef else None
        return StepMeans(**means, gradient_steps=len(steps))

    def _evaluate(self, are_known: bool) -> None:
        """Values of all observations of the rollout, and of the last ones of episodes that were cut off.

        Args:
            are_known: but for the last observations the rollout has them.
        """
        rollout = self.rollout
        if self._sequences is not None:
            self._outputs = torch.zeros((len(rollout), self.policy.num_actions))
            for batch, outputs, values in self._sequences.over(rollout):
                packed = batch.packed
                write_at(rollout.values, rollout.final_values, packed.places, values.numpy())
                self._outputs[packed.places[packed.is_step]] = outputs[packed.is_step]
            self._check_outputs()
            return
        rollout.find_groups(merge=not self._has_images, together=self.config.minibatch_size)
        if are_known:
            rollout.values[-1] = self.predict_values(rollout.obs[-1])
        else:
            rollout.values[:] = self.predict_values(rollout.distinct_obs())[rollout.groups]
        cut_off = rollout.cut_off()
        rollout.final_values[cut_off] = self.predict_values(rollout.final_obs[cut_off])
        self._check_outputs()

    def predict_values(self, obs: NDArray[Any]) -> NDArray[np.float32]:
        if self.compiled_update is None or not self.compiled_update.gives_values:
            return super().predict_values(obs)
        rows = np.ascontiguousarray(obs.reshape(-1, obs.shape[-1]))
        return self.compiled_update.values(rows).reshape(obs.shape[:-1])

    def log_probs(self) -> NDArray[np.float32]:
        """Log-probabilities of the rollout's actions under the policy as it is, float32 [T, N]; after `_evaluate`."""
        rollout = self.rollout
        with torch.inference_mode():
            if self._sequences is None:
                outputs = self._in_chunks(self.policy.outputs, rollout.distinct_obs())
                outputs = outputs.index_select(0, rollout.flat("groups"))
            else:
                outputs = self._outputs
            masks = None if rollout.masks is None else rollout.flat("masks")
            log_std = None if self.policy.log_std is None else self.policy.log_std.cpu()
            log_probs, _ = self.log_probs_and_entropy(outputs, log_std, rollout.flat("actions"), masks=masks)
        chosen: NDArray[np.float32] = log_probs.numpy().reshape(rollout.log_probs.shape)
        return chosen

    def minibatches(self) -> Iterator[Drawn]:
        """Each epoch's samples in a new order, in equal parts; with a memory rows of fragments in a new order."""
        rollout = self.rollout
        names = ("actions", "log_probs", "advantages", "returns", "values")
        samples = {name: self.rollout.flat(name).to(self.device) for name in names}
        if rollout.masks is not None:
            samples["masks"] = rollout.flat("masks").to(self.device)
        if self._lags is not None:
            samples["lags"] = self._lags.to(self.device)
        if self._sequences is not None:
            yield from self._minibatches_of_sequences(self._sequences, samples)
            return
        obs = torch.from_numpy(rollout.distinct_obs())
        if not self._has_images:
            obs = obs.to(self.device)
        groups = rollout.flat("groups").to(self.device)
        num_minibatches = -(-len(rollout) // self.config.minibatch_size)
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(rollout), generator=self._shuffling).to(self.device)
            for part in order.tensor_split(num_minibatches):
                advantages = self._normalized(samples["advantages"][part])

                def take(
                    shard: Shard, places: Tensor = part, advantages: Tensor = advantages
                ) -> Minibatch | None:
                    part = places[shard.rows]
                    if not len(part):
                        return None
                    if self._has_images:
                        # Each has a group of its own.
                        chosen, rows = part, torch.arange(len(part), device=self.device)
                    else:
                        chosen, rows = groups[part].unique(return_inverse=True)
                    rest = {name: sample[part] for name, sample in samples.items() if name != "advantages"}
                    # Much faster than `obs[chosen]` for rows as long as images.
                    learned = obs.index_select(0, chosen.to(obs.device)).to(self.device)
                    return Minibatch(obs=learned, rows=rows, advantages=advantages[shard.rows], **rest)

                yield Drawn(len(part), take)

    def _minibatches_of_sequences(
        self, passes: SequencePasses, samples: Mapping[str, Tensor]
    ) -> Iterator[Drawn]:
        """Minibatches of the steps of whole sequences, of which each shard has some."""
        size, shards = self.config.minibatch_size, max(self.ranks.shards, 1)
        for _ in range(self.config.num_epochs):
            for sequences in passes.minibatches(size, self._shuffling, shards):
                of_shards = [torch.from_numpy(passes.places(each)).to(self.device) for each in sequences]
                sizes = list(map(len, of_shards))
                advantages = self._normalized(samples["advantages"][torch.cat(of_shards)]).split(sizes)

                def take(
                    shard: Shard,
                    sequences: Sequence[Sequences] = sequences,
                    of_shards: Sequence[Tensor] = of_shards,
                    advantages: Sequence[Tensor] = advantages,
                ) -> Minibatch | None:
                    places = of_shards[shard.number]
                    if not len(places):
                        return None
                    rest = {name: sample[places] for name, sample in samples.items() if name != "advantages"}
                    return Minibatch(
                        obs=passes.batch(sequences[shard.number]),
                        rows=torch.arange(len(places), device=self.device),
                        advantages=advantages[shard.number],
                        **rest,
                    )

                yield Drawn(sum(sizes), take)

    def _normalized(self, advantages: Tensor) -> Tensor:
        """The advantages of a whole minibatch, normalised if that is asked for."""
        if self.config.normalize_advantages != "minibatch" or len(advantages) < 2:
            return advantages
        deviation, mean = torch.std_mean(advantages)
        return (advantages - mean) / (deviation + 1e-8)

    def _gradient_step(self, drawn: Drawn, learning_rate: float) -> Tensor:
        """One step of the optimiser. Returns `Losses.metrics` and the gradient's norm before clipping, float32 [7]."""

        def learn(shard: Shard) -> Tensor | None:
            batch = drawn.take(shard)
            if batch is None:
                return None
            weight = len(batch.actions) / drawn.size
            means = self.differentiate(batch, weight)
            return means * weight if self.ranks.shards else means

        means = self._reduce(drawn.size, len(Losses.names()), learn)
        return torch.cat([means, self.descend(learning_rate, self._warmup).view(1)])

    def differentiate(self, batch: Minibatch, weight: float) -> Tensor:
        """Adds the gradient of the loss of a minibatch, or of a part of one, to those of the parameters.

        Args:
            weight: that the part has in the whole.

        Returns:
            `Losses.metrics` of the part.
        """
        with self._optimizer.autocast():
            outputs, values = self._train_pass(batch.obs)
        batch = batch._replace(outputs=outputs.float(), new_values=values.float())
        if self._has_drawn:
            batch = self._under_same_dropout(batch)
        losses = self.loss(batch)
        self._backpropagate(losses.total * weight, self._warmup)
        return losses.metrics()

    def loss(self, batch: Minibatch) -> Losses:
        """The negated objective -(L^CLIP - c1 L^VF + c2 S) of arXiv:1707.06347, equations 7 and 9, and what the
        settings add to it. A subclass may change it, see the guide "A loss of your own"."""
        config = self.config
        log_pi, S = self._of_policy(batch, self.policy.log_std)
        log_r = log_pi - batch.log_probs
        r = log_r.exp()
        L_clip = self.surrogate(r, batch.advantages).mean()
        V = batch.new_values.index_select(0, batch.rows)
        errors = (V - batch.returns).square()
        if config.value_clip is not None:
            V_clip = batch.values + (V - batch.values).clamp(-config.value_clip, config.value_clip)
            errors = torch.max(errors, (V_clip - batch.returns).square())
        L_VF = errors.mean() / 2
        total = -L_clip + config.value_coef * L_VF - self.entropy_coef * S.mean()
        init_kl = torch.zeros_like(total)
        if self.kl_coef:
            init_kl = self._divergence_from_first(batch)
            total = total + self.kl_coef * init_kl
        return Losses(
            total,
            policy_loss=-L_clip,
            value_loss=L_VF,
            entropy=S.mean(),
            approx_kl=(r - 1 - log_r).mean(),
            clip_fraction=((r - 1).abs() > config.clip_range).float().mean(),
            init_kl=init_kl,
        )

    def surrogate(self, r: Tensor, A: Tensor) -> Tensor:
        """The clipped surrogate objective float32 [B] of probability ratios r [B] and advantages A [B]: what equation 7
        is the mean of. A subclass may change it."""
        epsilon = self.config.clip_range
        return torch.min(r * A, r.clamp(1 - epsilon, 1 + epsilon) * A)

    def log_probs_and_entropy(
        self,
        outputs: Tensor,
        log_std: Tensor | None,
        actions: Tensor,
        *,
        rows: Tensor | None = None,
        masks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities float32 [B] of actions, and the entropies; arguments as of
        `fastrl.algorithms.ppo_loss.log_probs_and_entropy`. A subclass with another distribution changes it, and the
        actor."""
        return log_probs_and_entropy(outputs, log_std, actions, self._choices, rows=rows, masks=masks)

    def _of_policy(self, batch: Minibatch, log_std: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies under the policy that the outputs of a minibatch are of."""
        return self.log_probs_and_entropy(
            batch.outputs, log_std, batch.actions, rows=batch.rows, masks=batch.masks
        )

    @torch.no_grad()
    def _under_same_dropout(self, batch: Minibatch) -> Minibatch:
        """The minibatch with log-probabilities and values of the policy before the update, under the dropout of the
        last pass: what moves the ratio is that the parameters have moved, not the noise (compare Hausknecht and
        Wagener, "Consistent Dropout for Policy Gradient Reinforcement Learning", 2022)."""
        outputs, values, log_std = self._pass_with(self._before, batch.obs)
        log_probs, _ = self._of_policy(batch._replace(outputs=outputs), log_std)
        if batch.lags is not None:
            log_probs += batch.lags
        return batch._replace(log_probs=log_probs, values=values.take(batch.rows))

    def _divergence_from_first(self, batch: Minibatch) -> Tensor:
        """KL(first, policy), the mean over the samples. With a memory both policies start from the states that the
        newer one left."""
        reference = self._reference
        assert reference is not None, "it is made before the first gradient step"
        with torch.no_grad(), self._optimizer.autocast():
            if isinstance(batch.obs, Tensor):
                theirs = reference.outputs(batch.obs)
            else:
                theirs, _, _ = reference.sequences(*batch.obs[:3])
        theirs, learned = (
            mask_logits(each.index_select(0, batch.rows), batch.masks)
            for each in (theirs.float(), batch.outputs)
        )
        return divergence(theirs, learned, reference.log_std, self.policy.log_std, self._choices)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "reference": None if self._reference is None else self._reference.state_dict(),
            "generators": {"shuffling": self._shuffling.get_state()},
            "warmup": None if self._warmup is None else self._warmup.state_dict(),
        }

    def start_stage(self, state: Mapping[str, Any]) -> None:
        super().start_stage({**state, "warmup": None, "reference": None})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._shuffling.set_state(state["generators"]["shuffling"])
        self._reference = None if state["reference"] is None else self._copied(state["reference"])
        self._warmup = None
        if state["warmup"] is not None:
            self._warmup = self._new_optimizer()
            self._warmup.load_state_dict(state["warmup"])
