"""Base of algorithms that learn a policy and critics of its actions from a replay."""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from fastrl.algorithms.batch_arrays import minibatches_at_once
from fastrl.algorithms.compiled_off_policy import CompiledOffPolicy, compiled_off_policy
from fastrl.algorithms.loss import Loss, LossMeans, TDLoss, overridden, reduce_loss, td_loss
from fastrl.algorithms.off_policy_loss import Minibatch, PolicyLoss, categorical_loss
from fastrl.algorithms.optimizer import Optimizer, keep_freed_memory
from fastrl.algorithms.protocol import OffPolicyAlgorithm, Problem, ReplaySpec, Transitions
from fastrl.algorithms.reward_scaling import ReturnScale, in_order
from fastrl.algorithms.sac_settings import PolicyAndCriticsConfig
from fastrl.algorithms.schedules import first_value
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import ActorSpec
from fastrl.networks.encoders import check_encoder
from fastrl.networks.ensemble import Ensemble
from fastrl.networks.memory import unrolled_once
from fastrl.networks.off_policy import Critics, OffPolicyActor, PolicyHead
from fastrl.networks.own_network import check_own_network
from fastrl.networks.parameters import (
    check_architecture,
    check_layers,
    check_shards,
    flat_size,
    flatten_parameters,
    generator_of,
    load_weights,
)
from fastrl.networks.simba_v2 import MAX_RETURN, SimbaV2
from fastrl.replay.recurrent import ObsSequences
from fastrl.replay.samplers import Batches
from fastrl.rollout.fragment import Fragment
from fastrl.utils.env_options import parse_options
from fastrl.utils.ranks import Shard
from fastrl.utils.seeding import noise
from fastrl.utils.timer import Stopwatch

N = TypeVar("N", OffPolicyActor, Critics)


class Learned:
    """A module that learns from a loss, and its optimiser.

    Args:
        name: method that computes the loss.
        module: what learns.
        learning_rate: of the first step.
        beta1: Adam's.
        weight_decay: of AdamW (Loshchilov and Hutter, 2019).

    Attributes:
        parameters: of the module, but for those that the user has frozen.
        vector: all of them.
    """

    def __init__(
        self,
        name: str,
        loss_type: type[Loss],
        module: nn.Module,
        *,
        learning_rate: float,
        beta1: float,
        weight_decay: float,
    ) -> None:
        self.name, self.loss_type = name, loss_type
        self.parameters = [each for each in module.parameters() if each.requires_grad]
        self.vector = flatten_parameters(module)
        self.optimizer = Optimizer(self.vector, "fp32", eps=1e-8, beta1=beta1, learning_rate=learning_rate)
        self._weight_decay = weight_decay
        # A temperature does not decay.
        self._decaying: list[Tensor] = [each for each in self.parameters if each.dim()]
        self._spheres = [each for each in module.modules() if isinstance(each, SimbaV2)]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Takes a step of AdamW along the gradient, and brings weights of hyperspheres back to the norm 1."""
        if self._weight_decay:
            torch._foreach_mul_(self._decaying, 1 - learning_rate * self._weight_decay)
        self.optimizer.step(None, learning_rate)
        for network in self._spheres:
            network.normalize_weights()


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """A policy, critics, and target critics that follow them, if the algorithm has some.

    An algorithm says what its losses are: `critic_loss`, by its `next_values`, and `policy_loss`. A subclass may change
    them, see the guide "A loss of your own". Encoders of images, or modules of the user's own, are one of the policy
    and one of the critics; parameters of the critics learn from the critics' loss alone, those of the policy from the
    policy's.

    A memory, and what comes before it, learns from the critics' loss, and the policy has a copy: the state that acting
    leaves in the replay is then one for both, and the policy's gradient does not disturb what the critics remember
    (Yarats et al., "Improving Sample Efficiency in Model-Free Reinforcement Learning from Images", 2021, share the
    encoder of images so).

    Everything random comes from the seed. On a CPU the same seed and the same minibatches give the same parameters to
    the bit, also across `state_dict` and `load_state_dict`.

    Args:
        config: hyper-parameters.
        problem: observations of any kind that has rows; actions with finite bounds, or discrete from 0 on.
        head: of the policy.
        noise: that a deterministic policy explores with.
        extra: what is learned beside the policy, by the same optimiser.

    Class attributes:
        policy_loss_type: of `policy_loss`; its parts are metrics.
        noise_fields: fields of `Minibatch` that are drawn for continuous actions.
        actor_type: class of the policy; with batch renormalisation the critics have it, too.

    Attributes:
        policy, critics, targets: the networks.
        saved: networks beside the policy, by the name under which their weights are saved.
        streams: of the random numbers of gradient steps, by their field of `Minibatch`: `fastrl.utils.seeding.noise` of
            a stream and of the number of the step.
        compiled: takes the gradient steps; None: PyTorch does.
    """

    takes_shards = True
    policy_loss_type: ClassVar[type[PolicyLoss]] = PolicyLoss
    noise_fields: ClassVar[tuple[str, ...]] = ()
    actor_type: ClassVar[type[OffPolicyActor]] = OffPolicyActor
    config: PolicyAndCriticsConfig

    def __init__(
        self,
        config: PolicyAndCriticsConfig,
        problem: Problem,
        head: PolicyHead,
        *,
        noise: float = 0.0,
        extra: nn.Parameter | nn.Module | None = None,
    ) -> None:
        self.config, self.ranks, self._noise = config, problem.ranks, noise
        self.steps = self.updates = 0
        self.device = torch.device(problem.device)
        self.actions = actions = Actions(problem.action_space)
        if actions.is_box and not actions.is_bounded:
            raise ValueError(
                f"{self.name} draws actions between finite bounds, the environment's are {problem.action_space}: give"
                " its action space finite low and high, or take ppo"
            )
        policy_seed, critics_seed, noise_seed = np.random.SeedSequence(problem.seed).spawn(3)
        obs = problem.obs_rows.state()
        if config.encoder in ("simba", "simba_v2"):
            check_encoder(config.encoder, any(part.kind == "image" for part in problem.obs_rows.parts))
        policy_layers = layers_of(config) | {"hidden": policy_hidden(config)}
        self.policy = self.actor_type(
            obs, actions.state(), head, noise=noise, generator=generator_of(policy_seed), **policy_layers
        )
        self.critics = Critics(
            **self._critics_options(config, obs, actions), generator=generator_of(critics_seed)
        )
        if self.policy.memory is not None:
            for each in self.policy.feature_parameters():
                each.requires_grad_(False)
        for network in self.networks():
            if self.ranks.shards:
                check_shards(network)
            network.to(self.device)
            if isinstance(network.body, Ensemble):
                network.body.half_type = torch.bfloat16 if config.precision == "bf16" else None
        # Statistics of observations, which all networks have together; None: nothing is whitened.
        self._obs_norm = self.policy.decoder.norm if self.policy.simba else None
        self._returns: ReturnScale | None = None
        if self._obs_norm is not None:
            self.critics.decoder.norm = self._obs_norm
            self.needs_statistics = True
        if self.policy.simba == "simba_v2":
            self._returns = ReturnScale(problem.num_envs, config.gamma, MAX_RETURN)
        self._share_memory()
        learned = nn.Module()
        learned.add_module("policy", self.policy)
        if isinstance(extra, nn.Module):
            learned.add_module("extra", extra)
        elif extra is not None:
            learned.register_parameter("extra", extra)
        rate = first_value(config.learning_rate)
        adam = {
            "learning_rate": rate,
            "beta1": config.adam_beta1,
            "weight_decay": config.weight_decay,
        }
        self.saved: dict[str, nn.Module] = {"critics": self.critics}
        self._make_targets()
        self._of_critics = Learned("critic_loss", TDLoss, self.critics, **adam)
        self._of_policy = Learned("policy_loss", self.policy_loss_type, learned, **adam)
        # The policy's part of the vector, if it is what a compiled actor reads, on a CPU as an array.
        self._acting: Tensor | NDArray[Any] | None = None
        if self.policy.actor_architecture() is not None and not self.actor_type.batch_renorm:
            first = next(self.policy.parameters()).storage_offset()
            acting = self._of_policy.vector.detach()[first : first + flat_size(self.policy)]
            self._acting = acting.numpy() if self.device.type == "cpu" else acting
        self._learning_rate = problem.schedule(config.learning_rate, config.final_learning_rate)
        words = noise_seed.generate_state(1 + len(self.noise_fields), np.uint64)
        self.streams = dict(zip(("target_critics", *self.noise_fields), words.tolist(), strict=True))
        # Actions are uniform until something has been learned.
        self._is_untrained = True
        self._means = LossMeans(self.device, ("critic_loss", "q", "td_error"), self.policy_loss_type.names())
        self.compiled: CompiledOffPolicy | None = None
        keep_freed_memory()

    @classmethod
    def _critics_options(
        cls, config: PolicyAndCriticsConfig, obs: Mapping[str, Any], actions: Actions
    ) -> dict[str, Any]:
        """Arguments of the critics by the settings."""
        return {
            "obs": obs,
            "actions": actions.state(),
            "count": config.critics,
            "num_inputs": actions.size if actions.is_box else 0,
            "num_outputs": 1 if actions.is_box else actions.size,
            "layer_norm": config.layer_norm,
            "batch_renorm": cls.actor_type.batch_renorm,
            **layers_of(config),
        }

    def _make_targets(self) -> None:
        """Makes the target critics; nothing in algorithms without some, which do not move them either."""
        self.targets = self.copy_of(self.critics)
        self._target_vector = flatten_parameters(self.targets)
        self.targets.requires_grad_(False)
        self.saved["targets"] = self.targets

    def _compile(
        self, known: type, *methods: str, target_policy: Tensor | None = None, **options: Any
    ) -> None:
        """Compiles the gradient steps if they can be; arguments as of `compiled_off_policy`."""
        self.compiled, self._why_not_compiled = compiled_off_policy(
            self,
            known,
            methods,
            critics=self._of_critics,
            policy=self._of_policy,
            targets=self._target_vector,
            target_policy=target_policy,
            **options,
        )
        if self.compiled is not None and not overridden(type(self), known, ("update",)):
            self.minibatches_at_once = minibatches_at_once(self.config.batch_size, self.policy.num_features)

    def copy_of(self, network: N) -> N:
        """A copy of a network, with the statistics of observations that all have together."""
        return copy.deepcopy(network, {id(self._obs_norm): self._obs_norm})

    def networks(self) -> list[OffPolicyActor | Critics]:
        """Networks that learn."""
        return [self.policy, self.critics]

    @torch.no_grad()
    def critic_values(
        self, rows: Tensor, distribution: Distribution, states: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Values of observations [B, size], float32 [B], and of all discrete actions, [B, num_actions]: the least of
        all critics. An observation has the value of its greedy action where actions are continuous, else the mean over
        the policy's distribution; without a bonus of entropy, in units of rewards as they are.

        Args:
            states: float32 [B, state_size], of the memory before the observations; None without memory.
        """
        obs: Any = rows if states is None else ObsSequences.of_steps(rows, states)
        obs = obs.to(self.device)
        if isinstance(distribution, Categorical):
            values = self.critics(obs).amin(0).cpu()
            return (values * distribution.probs).sum(-1), values
        greedy = self.policy(obs)[:, : self.actions.size].tanh()
        values = self.critics(obs, greedy).amin(0).cpu()
        return values / (1.0 if self._returns is None else self._returns.scale), None

    def actor_spec(self) -> ActorSpec:
        return self.policy.actor_spec(self.actions)

    @property
    def weights_nbytes(self) -> int:
        return self.policy.actor_nbytes

    def write_weights(self, out: Any) -> None:
        target = np.frombuffer(out, np.float32)
        if self._acting is None:
            self.policy.actor_weights(target)
        else:
            acting = self._acting if isinstance(self._acting, np.ndarray) else self._acting.cpu().numpy()
            target[int(self.actions.is_box) :] = acting
        if self.actions.is_box:
            target[0] = self._is_untrained

    @property
    def action_masks(self) -> bool:
        return self.config.action_masks

    def replay_spec(self) -> ReplaySpec:
        return ReplaySpec.of(self.config)

    def observe(self, fragments: Sequence[Fragment]) -> None:
        """Adds observations and rewards to the running statistics of SimBa's networks."""
        if self._obs_norm is not None:
            rows = in_order([fragment.obs[:-1] for fragment in fragments])
            self.policy.decoder.update_statistics(torch.from_numpy(rows))
        if self._returns is not None:
            self._returns.update(fragments)

    def update(self, experience: Transitions, watch: Stopwatch) -> Tensor:
        """Takes a gradient step with a minibatch, or steps with several, see `minibatches_at_once`.

        Returns:
            Absolute TD errors before each, means over the critics, float32 [B] on `device`.
        """
        with watch("update"):
            return self._learn(experience)

    def _learn(self, experience: Transitions) -> Tensor:
        count = experience.count if isinstance(experience, Batches) else 1
        numbers, every = range(self.updates, self.updates + count), self.config.policy_every
        learns_policy = [True] * count if every == 1 else [number % every == every - 1 for number in numbers]
        if self.compiled is not None:
            td_errors = self.compiled(
                experience,
                self._means,
                learns_policy=learns_policy,
                learning_rate=self._learning_rate(self.steps),
                streams=self.streams,
                number=self.updates,
                target_critics=self._asked_critics(numbers),
            )
        else:
            [policy_too] = learns_policy
            batch = self.minibatch(experience, policy_too)
            td_errors = self._descend(self._of_critics, batch)
            self._share_memory()
            if policy_too:
                self._descend(self._of_policy, batch)
            with torch.no_grad():
                self._move_targets(policy_too)
        self._is_untrained = False
        self.updates += count
        return td_errors

    @torch.no_grad()
    def _share_memory(self) -> None:
        """Copies the critics' memory, and what comes before it, to the policy."""
        if self.policy.memory is not None:
            torch._foreach_copy_(self.policy.feature_parameters(), self.critics.feature_parameters())

    def minibatch(self, experience: Transitions, learns_policy: bool) -> Minibatch:
        """Transitions, and the random numbers of their losses, those of all shards at once."""
        names = ("actions", "rewards", "discounts", "obs", "next_obs", "masks", "next_masks")
        tensors: dict[str, Any] = {name: getattr(experience, name) for name in names}
        for name, each in tensors.items():
            if each is not None:
                moved = each.to(self.device, non_blocking=True)
                # The frames of a stack become one row.
                tensors[name] = moved.flatten(1) if "obs" in name else moved
        if self._returns is not None:
            tensors["rewards"] = tensors["rewards"] * self._returns.scale
        size, asked = len(experience.rewards), self._asked_critics(range(self.updates, self.updates + 1))
        return Minibatch(
            **tensors,
            next_noise=self._drawn("next_noise", size),
            noise=self._drawn("noise", size) if learns_policy else None,
            target_critics=None if asked is None else torch.tensor(asked[0], device=self.device),
        )

    def _drawn(self, name: str, size: int) -> Tensor | None:
        """Normal numbers of a minibatch, float32 [B, n]; None where there is no such noise."""
        if name not in self.streams or not self.actions.is_box:
            return None
        numbers = self.actions.size
        drawn = noise(self.streams[name], self.updates, size * numbers)
        return torch.from_numpy(drawn.reshape(size, numbers)).to(self.device, non_blocking=True)

    def _asked_critics(self, numbers: range) -> list[list[int]] | None:
        """Target critics that each of some gradient steps asks, by the steps' numbers; None: all."""
        count = self.config.critics
        asked = self.config.target_critics
        if asked in (0, count):
            return None
        stream = self.streams["target_critics"]
        return [noise(stream, number, count).argsort()[:asked].tolist() for number in numbers]

    def _descend(self, learned: Learned, batch: Minibatch) -> Tensor:
        """Takes a gradient step along a loss with PyTorch. Returns its TD errors, if it has some."""
        loss_of = getattr(self, learned.name)
        gradient = learned.vector.grad
        assert gradient is not None

        def learn(shard: Shard, weight: float) -> Loss:
            # Both have the same memory, which learns from the critics' loss alone.
            with unrolled_once(learned is self._of_critics, self.policy, self.critics):
                loss: Loss = loss_of(batch.of(shard.rows))
            torch.autograd.backward(loss.total * weight, inputs=learned.parameters)
            return loss

        means, errors = reduce_loss(self.ranks, gradient, len(batch), learned.loss_type, learn)
        learned.step(self._learning_rate(self.steps))
        self._means.add(learned is self._of_policy, means)
        return errors

    @abstractmethod
    def next_values(self, batch: Minibatch) -> Tensor:
        """Values float32 [B] of the observations after the transitions, by the target critics."""

    @torch.no_grad()
    def td_targets(self, batch: Minibatch) -> Tensor:
        """y = r + gamma^n V(s'), float32 [B]."""
        return torch.addcmul(batch.rewards, batch.discounts, self.next_values(batch))

    def next_actions(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Continuous actions [B, n] after the transitions, and what is added to their values for their entropy [B]."""
        raise NotImplementedError(f"{self.name} has no categorical critics")

    def critic_loss(self, batch: Minibatch) -> TDLoss:
        """The sum over critics i of E[(Q_i(s, a) - y)^2] / 2; of categorical ones `categorical_loss`."""
        if self.critics.atoms is not None:
            with torch.no_grad():
                a, bonus = self.next_actions(batch)
            return categorical_loss(self.critics, self.targets, batch, a, bonus)
        return td_loss(self.critics(batch.obs, batch.actions), self.td_targets(batch))

    @abstractmethod
    def policy_loss(self, batch: Minibatch) -> PolicyLoss:
        """The loss of the policy, and of what else its optimiser learns."""

    def least_target(self, obs: Tensor, actions: Tensor | None, critics: Tensor | None = None) -> Tensor:
        """min_i Q'_i(s, a) of the target critics, or of some of them, [B]; [B, M] without actions."""
        values: Tensor = self.targets(obs, actions)
        return (values if critics is None else values[critics]).amin(0)

    def _move_targets(self, has_learned_policy: bool) -> None:
        """Moves the target networks after a gradient step of the critics, and perhaps of the policy."""
        self._target_vector.lerp_(self._of_critics.vector, self.config.tau)

    def metrics(self) -> dict[str, float]:
        """Means since the last call, NaN without any. Waits for the GPU.

        ``critic_loss``: half the sum of the critics' mean squared errors. ``q``: value of the actions that were taken.
        ``td_error``: absolute, mean over the critics. ``gradient_steps``: of the critics, since the last call. Those of
        `policy_loss_type`: means over the policy's gradient steps.

        Raises:
            FloatingPointError: a loss was NaN or infinite; the parameters are of no use any more.
        """
        steps = self._means.counts[0]
        return {**self._means.take(f"{self.updates} gradient steps"), "gradient_steps": steps}

    @classmethod
    def check_state(cls, config: Any, state: Mapping[str, Any]) -> None:
        check_own_network(config.network, parse_options(config.network_options), state["policy"])
        check_layers(state["policy"], hidden=policy_hidden(config))
        OffPolicyActor.check_size(state["policy"])
        claimed = state["policy"]["architecture"]
        critics = cls._critics_options(config, claimed["obs"], Actions.from_state(claimed["actions"]))
        Critics.check_size({"architecture": critics, "weights": state["critics"]})

    def policy_state(self) -> dict[str, Any]:
        return self.policy.state()

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        """Loads the other networks, too. The policy acts from the first step on, with the noise of the settings."""
        saved = state["policy"]["architecture"]
        check_architecture({**saved, "noise": self._noise}, self.policy.state()["architecture"])
        self._load_networks(state)
        if self._returns is not None:
            # The running episodes are its own.
            running = torch.from_numpy(self._returns.discounted.copy())
            self._returns.load_state_dict(state["returns"] | {"discounted": running})
        self._is_untrained = bool(state["is_untrained"])
        return []

    def _load_networks(self, state: Mapping[str, Any]) -> None:
        load_weights(self.policy, state["policy"]["weights"])
        for name, network in self.saved.items():
            load_weights(network, state[name])

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "policy": self.policy.state(),
            **{name: network.state_dict() for name, network in self.saved.items()},
            **({} if self._returns is None else {"returns": self._returns.state_dict()}),
            "policy_optimizer": self._of_policy.optimizer.state_dict(),
            "critic_optimizer": self._of_critics.optimizer.state_dict(),
            # JSON has no numbers of 64 bits.
            "streams": {name: str(word) for name, word in self.streams.items()},
            "updates": self.updates,
            "is_untrained": self._is_untrained,
            **self._means.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_architecture(state["policy"]["architecture"], self.policy.state()["architecture"])
        self._load_networks(state)
        if self._returns is not None:
            self._returns.load_state_dict(state["returns"])
        self._of_policy.optimizer.load_state_dict(state["policy_optimizer"])
        self._of_critics.optimizer.load_state_dict(state["critic_optimizer"])
        # Checkpoints of older versions have none.
        saved = state.get("streams", self.streams)
        self.streams = {name: int(saved[name]) for name in self.streams}
        self.steps, self.updates = state["steps"], state["updates"]
        self._is_untrained = state["is_untrained"]
        self._means.load_state_dict(state)


def policy_hidden(config: PolicyAndCriticsConfig) -> tuple[int, ...]:
    """Widths of the policy's hidden layers by the settings."""
    return config.hidden if config.policy_hidden is None else config.policy_hidden


def layers_of(config: PolicyAndCriticsConfig) -> dict[str, Any]:
    """Arguments of policies and critics by the settings."""
    return {
        "memory": config.memory,
        "memory_size": config.memory_size,
        "encoder": config.encoder,
        "hidden": config.hidden,
        "path": config.network,
        "options": parse_options(config.network_options),
    }
