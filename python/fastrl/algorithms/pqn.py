"""Parallel Q-learning (Gallici et al., "Simplifying Deep Temporal Difference Learning", 2024, arXiv:2407.04811)."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.actor_critic import VALUE_CHUNK
from fastrl.algorithms.compiled_pqn import CompiledPQN
from fastrl.algorithms.dqn_loss import of_actions, q_losses
from fastrl.algorithms.loss import LossMeans, TDLoss
from fastrl.algorithms.pqn_settings import PQNConfig, PQNDeclaration
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.q_learner import QLearner
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.algorithms.sequence_passes import SequencePasses
from fastrl.networks.compiled_actor import ActorSpec
from fastrl.networks.distributions import mask_logits
from fastrl.networks.encoders import check_encoder
from fastrl.networks.normalized_q import NormalizedQ
from fastrl.networks.parameters import generator_of
from fastrl.networks.torch_actor import CHUNK
from fastrl.rollout.fragment import Fragment, with_next_masks
from fastrl.rollout.layout import lay_out
from fastrl.rollout.rollout import Rollout
from fastrl.rollout.sequences import Sequences, write_at
from fastrl.utils.ranks import Shard
from fastrl.utils.timer import Stopwatch


class Minibatch(NamedTuple):
    """B steps of a rollout."""

    estimates: Tensor  # float32 [B, A], values of all actions by the network as it is, with gradients
    actions: Tensor  # int64 [B]
    returns: Tensor  # float32 [B], lambda returns


# Takes the minibatch of a shard; None: the shard has no steps.
Take = Callable[[Shard], Minibatch | None]


class PQN(PQNDeclaration, QLearner):
    """Learns values of actions from fragments of any collector.

    ::

        pqn = PQN(PQNConfig(), Problem(obs_space, action_space, num_envs, total_timesteps=1_000_000))
        watch = Stopwatch()
        while pqn.steps < 1_000_000:
            pqn.write_weights(buffer)
            collector.publish(buffer)
            pqn.update(collector.collect(), watch)

    An update computes the lambda returns of its rollout once, with the network that collected it, and then takes all
    gradient steps. Neither a replay nor a target network is there: layer normalisation keeps the values stable.

    The initial weights and the order of samples come from the seed. On a CPU, for a given number of torch threads, the
    same seed and fragments give the same parameters to the bit, also across `state_dict` and `load_state_dict`.

    Arguments and other attributes are those of `QLearner`.

    Attributes:
        compiled: takes the gradient steps; None: PyTorch does.
        rollout: what the last update learned from.
    """

    learns_from = "rollouts"
    config: PQNConfig
    takes_shards = True

    def __init__(self, config: PQNConfig, problem: Problem) -> None:
        super().__init__(config, problem)
        # Permutations are drawn on the CPU: they are small, and a run may be resumed on another device. The first seed
        # is that of the weights.
        self._shuffling = generator_of(np.random.SeedSequence(problem.seed).spawn(2)[1])
        self.compiled, self._why_not_compiled = CompiledPQN.of(self, PQN, self._optimizer)
        self._return_scale = ReturnScale(problem.num_envs, config.gamma) if config.normalize_returns else None
        self._reward_scale = config.reward_scale
        self.rollout = Rollout(
            config.num_steps - config.action_masks,
            problem.num_envs,
            self._obs_rows.size,
            self._actions.size,
            masks=config.action_masks,
            final_masks=config.action_masks,
            obs_dtype=self._obs_rows.dtype,
            state_size=self.network.state_size,
        )
        # Images that are equal are so rare that to look for them does not pay.
        self._has_images = self._obs_rows.dtype == np.uint8
        self._chunk = CHUNK if self._has_images else VALUE_CHUNK
        chunk = self._chunk if self._has_images else sys.maxsize
        self._sequences = (
            SequencePasses.of(self.network, self._optimizer, self.device, chunk)
            if self.network.state_size
            else None
        )
        self._means = LossMeans(self.device, (*TDLoss.names(), "grad_norm"))

    @property
    def final_masks(self) -> bool:
        return self.config.action_masks

    def actor_spec(self) -> ActorSpec:
        if self.config.munchausen is None:
            return super().actor_spec()
        # It takes the values for logits.
        return self.network.actor_spec(self._actions)

    @property
    def weights_nbytes(self) -> int:
        return super().weights_nbytes if self.config.munchausen is None else self.network.actor_nbytes

    def write_weights(self, out: Any) -> None:
        if self.config.munchausen is None:
            super().write_weights(out)
        else:
            self.network.actor_weights(np.frombuffer(out, np.float32))

    def exploration(self) -> Callable[[int], float]:
        return super().exploration() if self.config.munchausen is None else lambda steps: 0.0

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        config = self.config
        with watch("buffer"):
            fragments = [*map(with_next_masks, experience)] if config.action_masks else experience
            self.rollout = lay_out(fragments, self.rollout)
        with watch("inference"):
            self._evaluate()
        with watch("returns"):
            if self._return_scale is not None:
                self._reward_scale = config.reward_scale * self._return_scale.update(experience)
            self._compute_returns()
        with watch("update"):
            learning_rate = self._learning_rate(self.steps)
            if self.compiled is None:
                for size, take in self._minibatches():
                    self._gradient_step(size, take, learning_rate)
            else:
                rollout = self.rollout
                self.updates += self.compiled(
                    self.compiled.inputs(torch.from_numpy(rollout.distinct_obs())),
                    rollout.flat("groups"),
                    rollout.flat("actions"),
                    rollout.flat("returns"),
                    self._shuffling,
                    self._means,
                    learning_rate,
                )
            self.network.update_statistics(self.rollout.flat("obs"))
        self.steps += sum(map(len, experience))

    def loss(self, batch: Minibatch) -> TDLoss:
        """Half the mean squared error of ``Q(s, a)`` to the lambda return. A subclass may change it."""
        Q, R = of_actions(batch.estimates, batch.actions), batch.returns
        loss = q_losses(Q, R, self.config.huber).mean()
        return TDLoss(loss, loss=loss, q=Q.mean(), td_errors=(R - Q).detach().abs())

    def metrics(self) -> dict[str, float]:
        """Means over the gradient steps since the last call, NaN without any: ``loss``, ``q`` of the actions that were
        taken, absolute ``td_error``, and ``grad_norm`` before clipping; ``gradient_steps``, their number; ``epsilon``
        and ``learning_rate`` that are next.

        Raises:
            FloatingPointError: a loss was NaN or infinite; the parameters are of no use any more.
        """
        [gradient_steps] = self._means.counts
        return {
            **self._means.take(f"{self.updates} gradient steps"),
            "gradient_steps": gradient_steps,
            "epsilon": self.exploration()(self.steps),
            "learning_rate": self._learning_rate(self.steps),
        }

    @classmethod
    def _network_in(cls, state: Mapping[str, Any]) -> Mapping[str, Any]:
        network: Mapping[str, Any] = state["network"]
        return network

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "updates": self.updates,
            "network": self.network.state(),
            "optimizer": self._optimizer.state_dict(),
            "shuffling": self._shuffling.get_state(),
            "return_scale": None if self._return_scale is None else self._return_scale.state_dict(),
            **self._means.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["return_scale"] is None) != (self._return_scale is None):
            raise ValueError("normalize_returns of the saved run and of this one differ")
        super().load_state_dict(state)
        self._shuffling.set_state(state["shuffling"])
        if self._return_scale is not None:
            self._return_scale.load_state_dict(state["return_scale"])
        self._means.load_state_dict(state)

    def _compute_returns(self) -> None:
        # With V(s), such as the value of the best action, in place of a state's value, the returns of generalised
        # advantage estimation are R[t] = r[t] + gamma * (lambda * R[t + 1] + (1 - lambda) * V(s[t + 1])).
        config, rollout, bonus = self.config, self.rollout, None
        log_probs = rollout.log_probs
        if config.munchausen is not None:
            # The return after an action includes an entropy bonus: R[t + 1] - log_probs[t + 1].
            bonus = (config.munchausen - 1) * log_probs
        rollout.compute_advantages(
            config.gamma, config.td_lambda, self._reward_scale, config.reward_clip, bonus
        )
        if config.munchausen is not None:
            rollout.returns += log_probs

    @torch.inference_mode()
    def _evaluate(self) -> None:
        """Fills the rollout's values of states, by the network as it is."""
        rollout = self.rollout
        if self._sequences is not None:
            masks = None
            if rollout.masks is not None and rollout.final_masks is not None:
                masks = np.concatenate(
                    [each.reshape(-1, each.shape[-1]) for each in (rollout.masks, rollout.final_masks)]
                )
            for batch, estimates, _ in self._sequences.over(rollout):
                places = batch.packed.places
                values = self._values(estimates, None if masks is None else masks[places])
                write_at(rollout.values, rollout.final_values, places, values)
            return
        rollout.find_groups(merge=not self._has_images, together=self.config.minibatch_size)
        estimates = self._in_chunks(rollout.distinct_obs())
        rollout.values[:] = self._values(estimates[rollout.tensors["groups"]], rollout.masks)
        cut_off = rollout.cut_off()
        if cut_off.any():
            masks = None if rollout.final_masks is None else rollout.final_masks[cut_off]
            rollout.final_values[cut_off] = self._values(self._in_chunks(rollout.final_obs[cut_off]), masks)

    def _values(self, estimates: Tensor, masks: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        """Values [...] of states from those of all actions [..., A]: of the best allowed one, or the soft maximum of
        the allowed ones."""
        estimates = mask_logits(estimates, None if masks is None else torch.from_numpy(masks))
        is_soft = self.config.munchausen is not None
        values: NDArray[np.float32] = (estimates.logsumexp(-1) if is_soft else estimates.amax(-1)).numpy()
        return values

    def _in_chunks(self, obs: NDArray[Any]) -> Tensor:
        """Values of actions, float32 [B, A] on the CPU, at observations [B, obs_dim]."""
        if self.compiled is not None:
            return self.compiled.estimates(self.compiled.inputs(torch.from_numpy(obs)))
        chunks = torch.from_numpy(obs).split(self._chunk)
        return torch.cat([self.network.estimates(chunk.to(self.device)).float() for chunk in chunks]).cpu()

    def _minibatches(self) -> Iterator[tuple[int, Take]]:
        """Each epoch's samples in a new order, in equal parts, each with its size; with a memory rows of fragments in a
        new order."""
        rollout = self.rollout
        actions, returns = (rollout.flat(name).to(self.device) for name in ("actions", "returns"))
        if self._sequences is not None:
            yield from self._minibatches_of_sequences(self._sequences, actions, returns)
            return
        obs, groups = torch.from_numpy(rollout.distinct_obs()), rollout.flat("groups")
        for _ in range(self.config.num_epochs):
            order = torch.randperm(len(rollout), generator=self._shuffling)
            for whole in order.tensor_split(-(-len(rollout) // self.config.minibatch_size)):

                def take(shard: Shard, whole: Tensor = whole) -> Minibatch | None:
                    part = whole[shard.rows]
                    if not len(part):
                        return None
                    if self._has_images:
                        # Each has a group of its own.
                        chosen, rows = part, torch.arange(len(part))
                    else:
                        # Samples with the same observation share a row of the network's pass.
                        chosen, rows = groups[part].unique(return_inverse=True)
                    estimates = self.network.estimates(obs.index_select(0, chosen).to(self.device))
                    return Minibatch(estimates[rows], actions[part], returns[part])

                yield len(whole), take

    def _minibatches_of_sequences(
        self, passes: SequencePasses, actions: Tensor, returns: Tensor
    ) -> Iterator[tuple[int, Take]]:
        """Minibatches of the steps of whole sequences, of which each shard has some."""
        assert isinstance(self.network, NormalizedQ), "a network with a memory"
        network, size, shards = self.network, self.config.minibatch_size, max(self.ranks.shards, 1)
        for _ in range(self.config.num_epochs):
            for sequences in passes.minibatches(size, self._shuffling, shards):
                places = [torch.from_numpy(passes.places(each)) for each in sequences]

                def take(
                    shard: Shard,
                    sequences: Sequence[Sequences] = sequences,
                    places: Sequence[Tensor] = places,
                ) -> Minibatch | None:
                    part = places[shard.number]
                    if not len(part):
                        return None
                    estimates, _, _ = network.sequences(*passes.batch(sequences[shard.number])[:3])
                    return Minibatch(estimates, actions[part], returns[part])

                yield sum(map(len, places)), take

    def _gradient_step(self, size: int, take: Take, learning_rate: float) -> None:
        """One step of the optimiser, along the loss of a minibatch."""
        gradient = self.parameters.grad
        assert gradient is not None

        def learn(shard: Shard) -> Tensor | None:
            batch = take(shard)
            if batch is None:
                return None
            share = len(batch.actions) / size
            loss = self.loss(batch)
            torch.autograd.backward(loss.total * share)
            return loss.metrics() * share

        means = self.ranks.reduce(gradient, size, len(TDLoss.names()), learn)
        grad_norm = self._optimizer.step(self.config.max_grad_norm, learning_rate)
        self._means.add(0, torch.cat([means, grad_norm.view(1)]))
        self.updates += 1

    def _make_network(self, generator: torch.Generator) -> NormalizedQ:
        config = self.config
        check_encoder(config.encoder, self._obs_rows.dtype == np.uint8)
        return NormalizedQ(
            self._obs_rows.state(),
            self._actions.size,
            encoder=config.encoder,
            hidden=config.hidden,
            activation=config.activation,
            layer_norm=config.layer_norm,
            normalize_obs=config.normalize_obs,
            memory=config.memory,
            memory_size=config.memory_size,
            generator=generator,
        )
