"""Networks that estimate the value of each action from rows of any observations, and the choice of such a network."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Buffer

from fastrl.envs.rows import ObsRows
from fastrl.networks.action_space import Actions
from fastrl.networks.compiled_actor import MAX_OBS_DIM, ActorSpec, MlpActor
from fastrl.networks.encoders import Decoder, Encoder, EncoderKind, HiddenLayers, initialize
from fastrl.networks.own_network import OwnModule, describe, sample_rows
from fastrl.networks.parameters import check_shapes, flat_size, read_flat
from fastrl.networks.perceptron import Linear
from fastrl.networks.policy_network import check_claimed
from fastrl.networks.q_network import ActionValues, NoisyLinear, QNetwork

# Rows of a forward pass of an actor: more would not fit into caches.
CHUNK = 256


class EncodedQ(ActionValues):
    """Values of all actions from an encoder's features, plain or dueling (see `QNetwork`).

    Args:
        obs: `ObsRows.state` of the observations.
        num_actions: A.
        encoder: network for images; see `fastrl.networks.encoders.Encoder`.
        hidden: widths of the hidden layers after it; may be empty. A dueling network has the last one twice.
        dueling, noisy, noisy_sigma: as of `QNetwork`; the layers after the encoder are noisy.
        generator: where the initial weights come from; None: torch's global generator.
    """

    kind = "encoded_q"

    def __init__(
        self,
        obs: Mapping[str, Any],
        num_actions: int,
        *,
        encoder: EncoderKind = "auto",
        hidden: Sequence[int] = (512,),
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._architecture = {
            "obs": dict(obs),
            "num_actions": num_actions,
            "encoder": encoder,
            "hidden": list(hidden),
            "dueling": dueling,
            "noisy": noisy,
            "noisy_sigma": noisy_sigma,
        }
        self.obs_rows, self.num_actions = ObsRows.from_state(obs), num_actions
        self.obs_dim = self.obs_rows.size
        self.decoder = Decoder(self.obs_rows)
        shared, own = (hidden[:-1], hidden[-1:]) if dueling or noisy else (hidden, ())
        self.encoder = Encoder(self.decoder, encoder, shared, "relu", generator=generator)

        def branch(outputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            size = self.encoder.size
            for width in own:
                if noisy:
                    layers += [
                        NoisyLinear(size, width, sigma=noisy_sigma, generator=generator),
                        nn.ReLU(),
                    ]
                else:
                    layers.append(
                        HiddenLayers(
                            [size, width], "relu", layer_norm=False, dropout=0.0, generator=generator
                        )
                    )
                size = width
            if noisy:
                return nn.Sequential(
                    *layers, NoisyLinear(size, outputs, sigma=noisy_sigma, generator=generator)
                )
            last = Linear(size, outputs)
            initialize(last, 1.0, generator)
            return nn.Sequential(*layers, last)

        self.advantage = branch(num_actions)
        self.value = branch(1) if dueling else None
        self._noisy = [module for module in self.modules() if isinstance(module, NoisyLinear)]

    def forward(self, obs: Tensor) -> Tensor:
        features = self.encoder(*self.decoder(obs.flatten(1)))
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        values: Tensor = self.value(features) + advantage - advantage.mean(-1, keepdim=True)
        return values

    @classmethod
    def check_size(cls, state: Mapping[str, Any]) -> None:
        """Refuses an architecture of other or more numbers than the weights, before memory is taken for it.

        Raises:
            ValueError
        """
        architecture, weights = state["architecture"], state["weights"]
        check_claimed(architecture, weights)
        # Without memory.
        with torch.device("meta"):
            claimed = cls(**architecture).state_dict()
        check_shapes(claimed, weights)


class OwnQ(ActionValues):
    """Values of actions that a module of the user's computes; see `fastrl.networks.own_network.OwnModule`.

    Its ``forward`` returns them, float32 [B, A].

    Args:
        path, options: of the module.
        obs: `ObsRows.state` of the observations.
        actions: `Actions.state`.
        generator: its next number is the seed of the initial weights; None: a seed of 0.

    Raises:
        ValueError: the module cannot be made, or gives something else; the message says what was expected.
    """

    kind = "own_q"

    def __init__(
        self,
        path: str,
        options: Mapping[str, Any],
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._architecture = {
            "path": path,
            "options": dict(options),
            "obs": dict(obs),
            "actions": dict(actions),
        }
        drawn = Actions.from_state(actions)
        self.obs_rows, self.num_actions = ObsRows.from_state(obs), drawn.size
        self.obs_dim = self.obs_rows.size
        seed = 0 if generator is None else int(torch.randint(2**62, (), generator=generator))
        self.own = OwnModule(path, options, self.obs_rows, drawn.space, normalize_obs=False, seed=seed)
        self._check()

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.own(obs.flatten(1))
        return values

    @torch.no_grad()
    def _check(self) -> None:
        """Runs a batch of observations, and refuses other outputs than values of actions."""
        was_training = self.training
        rows = sample_rows(self.obs_rows, 3)
        result = self.eval().own(rows)
        self.train(was_training)
        shape = (len(rows), self.num_actions)
        if not (
            isinstance(result, Tensor) and result.dtype == torch.float32 and tuple(result.shape) == shape
        ):
            raise ValueError(
                f"network {self.own.path}: forward() should return the values of all actions, float32 {list(shape)} for"
                f" {len(rows)} observations; it returned {describe(result)}"
            )
        if not result.isfinite().all():
            raise ValueError(
                f"network {self.own.path}: forward() gave NaN or infinity with its initial weights"
            )

    @staticmethod
    def check_size(state: Mapping[str, Any]) -> None:
        """The size is decided by the user's own code, which only trusted files name."""


KINDS: Mapping[str, type[ActionValues]] = {each.kind: each for each in (QNetwork, EncodedQ, OwnQ)}
"""Networks that estimate values of actions, by the kind in their saved state."""


def q_type(state: Mapping[str, Any]) -> type[ActionValues]:
    """The class of a saved network.

    Raises:
        ValueError: there is no such kind.
    """
    kind = str(state.get("kind"))
    if kind not in KINDS:
        raise ValueError(f"the policy's network should be one of {', '.join(KINDS)}, got {kind!r}")
    return KINDS[kind]


class TorchGreedyActor:
    """Chooses the best action by a network that PyTorch computes, for all rows of a call at once.

    Args:
        kind, architecture: of the network, as `ActionValues.state` has them.
    """

    state_size = 0

    def __init__(self, kind: str, architecture: Mapping[str, Any]) -> None:
        self._network = KINDS[kind](**architecture, generator=torch.Generator()).eval().requires_grad_(False)
        self.weights_nbytes = 4 * flat_size(self._network)

    def load(self, weights: Buffer) -> None:
        read_flat(self._network, np.frombuffer(memoryview(weights).cast("B"), np.float32))

    @torch.inference_mode()
    def act(
        self,
        obs: NDArray[Any],
        streams: NDArray[np.uint64],
        steps: NDArray[np.int64],
        actions: NDArray[Any],
        log_probs: NDArray[np.float32],
        masks: NDArray[np.bool_] | None = None,
        states: NDArray[np.float32] | None = None,
        *,
        greedy: bool = False,
    ) -> None:
        """See `fastrl.networks.compiled_actor.Actor.act`."""
        rows = torch.from_numpy(obs if obs.flags.writeable else obs.copy())
        values = torch.cat([self._network(chunk).float() for chunk in rows.split(CHUNK)])
        if masks is not None:
            values = values.masked_fill(~torch.from_numpy(masks), -torch.inf)
        actions[...] = values.argmax(1).numpy()
        log_probs[...] = 0


def greedy_spec(network: ActionValues) -> ActorSpec:
    """Makes an actor that chooses the best action: compiled where it can be, else PyTorch's."""
    if isinstance(network, QNetwork) and network.obs_dim <= MAX_OBS_DIM:
        architecture = network.compiled_architecture()
        if architecture is not None:
            return functools.partial(MlpActor, architecture)
    state = network.state()
    return functools.partial(TorchGreedyActor, state["kind"], state["architecture"])


def greedy_weights(network: ActionValues) -> list[NDArray[np.float32]]:
    """What the actor of `greedy_spec` reads, with the network's present noise, as vectors in order."""
    if isinstance(network, QNetwork) and network.obs_dim <= MAX_OBS_DIM and network.compiled_architecture():
        return network.compiled_weights()
    return [tensor.detach().float().cpu().numpy().ravel() for tensor in network.drawn_weights().values()]
