"""Random network distillation: intrinsic rewards for what was rarely observed (Burda et al., "Exploration by Random
Network Distillation", 2018, arXiv:1810.12894)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.algorithms.intrinsic_settings import IntrinsicConfig
from fastrl.algorithms.loss import LossMeans
from fastrl.algorithms.optimizer import Optimizer
from fastrl.algorithms.protocol import Problem, Transitions
from fastrl.algorithms.reward_scaling import ReturnScale
from fastrl.envs.rows import ObsRows
from fastrl.networks.encoders import Decoder, Encoder, HiddenLayers
from fastrl.networks.normalization import RunningNorm
from fastrl.networks.parameters import flatten_parameters, generator_of, load_weights
from fastrl.networks.perceptron import Linear, initialize
from fastrl.replay.samplers import Batches
from fastrl.rollout.fragment import Fragment, last_places
from fastrl.utils.seeding import NO_ENV

# Discount of the sum of intrinsic rewards whose deviation they are divided by, as in the paper.
GAMMA = 0.99
# Observations of a gradient step of the predictor, and of other passes.
MINIBATCH, CHUNK = 256, 1024


class Distillation(nn.Module):
    """A random network, the target, and one that learns to predict its outputs, the predictor.

    Args:
        obs_rows: of the observations, of any kind.
        hidden: widths of the hidden layers; the last one is the number of outputs, too.
        obs_clip: observations are whitened, and clipped to this; None: they are not.
        generator: where the initial weights come from.
    """

    def __init__(
        self, obs_rows: ObsRows, hidden: Sequence[int], obs_clip: float | None, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.decoder = Decoder(obs_rows)
        sizes = [self.decoder.vector_size, *(image.part.size for image in self.decoder.images)]
        self.norms = nn.ModuleList(
            [] if obs_clip is None else [RunningNorm(size, obs_clip) for size in sizes]
        )

        def network(num_more: int) -> nn.ModuleList:
            encoder = Encoder(self.decoder, "auto", hidden, "relu", generator=generator)
            more = HiddenLayers(
                [encoder.size] * (1 + num_more), "relu", layer_norm=False, dropout=0.0, generator=generator
            )
            last = Linear(encoder.size, encoder.size)
            initialize(last, 1.0, generator)
            return nn.ModuleList([encoder, nn.Sequential(more, last)])

        self.target = network(0)
        self.predictor = network(2)
        self.target.requires_grad_(False)

    def observe(self, rows: Tensor) -> None:
        """Adds observations, rows [B, D], to the statistics by which they are whitened."""
        if self.norms:
            vector, images = self.decoder(rows)
            for norm, values in zip(self.norms, [vector, *images], strict=True):
                assert isinstance(norm, RunningNorm)
                if values.numel():
                    norm.update(values.flatten(1))

    def forward(self, rows: Tensor) -> Tensor:
        """Mean squared errors of the predictor, float32 [B], at observations, rows [B, D]."""
        vector, images = self.decoder(rows)
        if self.norms:
            vector, *images = (
                norm(values.flatten(1)).view(values.shape)
                for norm, values in zip(self.norms, [vector, *images], strict=True)
            )
        target, predicted = (
            layers(encoder(vector, images)) for encoder, layers in (self.target, self.predictor)
        )
        return (predicted - target).square().mean(1)


class RND:
    """Adds the error of a `Distillation` to the rewards of what an algorithm is about to learn from.

    Of rollouts the intrinsic rewards are divided by the running deviation of their discounted sum, which the ends of
    episodes do not reset, and the predictor then learns from the rollout once. Of a replay's minibatches, whose steps
    have no order, they are computed anew each time, divided by their own running deviation, and the predictor takes a
    step with each minibatch; with returns of several steps they are of the observation after the last one.

    There is one return of both rewards: the second value function of the paper, of intrinsic returns across episodes,
    is left out. Everything random comes from the seed; all ranks compute the same.

    Args:
        config: its settings.
        problem: that the algorithm is built for.
    """

    def __init__(self, config: IntrinsicConfig, problem: Problem) -> None:
        self.config = config
        self.device = torch.device(problem.device)
        self._generator = generator_of(np.random.SeedSequence([problem.seed, 2]))
        self.network = Distillation(
            problem.obs_rows, config.predictor_hidden, config.obs_clip, self._generator
        ).to(self.device)
        parameters = flatten_parameters(self.network.predictor)
        self._optimizer = Optimizer(
            parameters, "fp32", eps=1e-8, learning_rate=config.predictor_learning_rate
        )
        self._scale = ReturnScale(problem.num_envs * problem.num_agents, GAMMA)
        self._means = LossMeans(self.device, ("intrinsic_reward",), ("predictor_loss",))

    def rewarded(self, experience: Any) -> Any:
        """Experience with intrinsic rewards: fragments with other rewards, or minibatches of a replay, whose rewards
        are changed in place."""
        if isinstance(experience, Sequence):
            return self._reward_fragments(experience)
        for batch in experience.parts if isinstance(experience, Batches) else [experience]:
            self._reward_transitions(batch)
        return experience

    def _reward_fragments(self, fragments: Sequence[Fragment]) -> list[Fragment]:
        # The order of observations does not depend on the division of environments into fragments.
        side_by_side = len({fragment.num_steps for fragment in fragments}) == 1
        found = [next_rows(fragment) for fragment in fragments]
        shapes = [acted.shape for _, acted in found]
        if not side_by_side:
            found = [(rows.reshape(-1, rows.shape[-1]), acted.reshape(-1)) for rows, acted in found]
        rows, acted = (np.concatenate(each, axis=int(side_by_side)) for each in zip(*found, strict=True))
        if not acted.any():
            return list(fragments)
        errors = np.zeros(acted.shape, np.float32)
        observed = torch.from_numpy(rows[acted])
        errors[acted] = self._errors(observed).cpu().numpy()
        ends = np.cumsum([shape[1] if side_by_side else int(np.prod(shape)) for shape in shapes])[:-1]
        parts = [
            part.reshape(shape)
            for part, shape in zip(np.split(errors, ends, axis=int(side_by_side)), shapes, strict=True)
        ]
        factor = self.config.coef * self._scale.update(
            [sums_of(fragment, part) for fragment, part in zip(fragments, parts, strict=True)]
        )
        self._means.add(0, torch.tensor([factor * errors[acted].mean()], device=self.device))
        order = torch.randperm(len(observed), generator=self._generator)
        order = order[: math.ceil(len(order) * self.config.predictor_share)]
        for places in order.split(MINIBATCH):
            self._learn(observed[places])
        return [
            replace(fragment, rewards=(fragment.rewards + factor * part).astype(fragment.rewards.dtype))
            for fragment, part in zip(fragments, parts, strict=True)
        ]

    def _reward_transitions(self, batch: Transitions) -> None:
        # The frames of a stack become one row.
        rows = batch.next_obs.flatten(1)
        errors = self._errors(rows)
        rewards = errors * self._scale.update_values(errors) * self.config.coef
        self._means.add(0, rewards.mean().view(1))
        self._learn(rows)
        batch.rewards.add_(rewards.to(batch.rewards.device))

    def _errors(self, rows: Tensor) -> Tensor:
        """The predictor's errors, float32 [B], at observations that are new to the statistics."""
        chunks = rows.split(CHUNK)
        with torch.no_grad():
            for chunk in chunks:
                self.network.observe(chunk.to(self.device))
            return torch.cat([self.network(chunk.to(self.device)) for chunk in chunks])

    def _learn(self, rows: Tensor) -> None:
        """Takes a gradient step of the predictor."""
        loss = self.network(rows.to(self.device)).mean()
        torch.autograd.backward(loss)
        self._optimizer.step(None)
        self._means.add(1, loss.detach().view(1))

    def metrics(self) -> dict[str, float]:
        """Means since the last call, NaN without any: ``intrinsic_reward`` that was added to a reward of the
        environment, and ``predictor_loss``.

        Raises:
            FloatingPointError: one was NaN or infinite.
        """
        return self._means.take("intrinsic rewards")

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs; tensors are not copies."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scale": self._scale.state_dict(),
            "generator": self._generator.get_state(),
            **self._means.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly.

        Raises:
            ValueError, KeyError: the state is of other networks, or damaged.
        """
        load_weights(self.network, state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scale.load_state_dict(state["scale"])
        self._generator.set_state(state["generator"])
        self._means.load_state_dict(state)


def next_rows(fragment: Fragment) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The observations after the steps of a fragment, [T, R, D], the true last ones of episodes; and which of them
    count, bool [T, R]: of A agents, which have an axis behind R, those of an agent that acted, and still acts or was
    last seen there."""
    rows, last = fragment.obs[1:].copy(), last_places(vars(fragment))
    rows[last] = fragment.final_obs[last]
    if fragment.alive is None:
        return rows, np.ones(last.shape, np.bool_)
    return rows, fragment.alive[:-1] & (fragment.alive[1:] | last[..., None])


def sums_of(fragment: Fragment, rewards: NDArray[np.float32]) -> Fragment:
    """A fragment as a `ReturnScale` reads it, with other rewards, [T, R] or [T, R, A], and without ends of episodes. An
    agent has a row of its own."""
    steps, envs = rewards.reshape(len(rewards), -1), fragment.env_indices
    agents = steps.shape[1] // len(envs)
    if envs[0] != NO_ENV:
        envs = (envs[:, None] * agents + np.arange(agents)).reshape(-1)
    no_ends = np.zeros(steps.shape, np.bool_)
    return replace(fragment, rewards=steps, terminations=no_ends, truncations=no_ends, env_indices=envs)
