"""The network of deep Q-learning, and how it explores where frames are collected for a replay."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastrl.algorithms.dqn_settings import DQNConfig
from fastrl.envs.rows import ObsRows
from fastrl.networks.encoded_q import EncodedQ, OwnQ
from fastrl.networks.encoders import image_place
from fastrl.networks.parameters import flatten_parameters, generator_of, load_weights
from fastrl.networks.q_network import ActionValues, QNetwork, flatten_statistics
from fastrl.utils.env_options import parse_options


class Sizes(NamedTuple):
    """Observations and actions of a network, small when pickled.

    Attributes:
        obs: `ObsRows.state`.
        obs_shape, obs_dtype: of the observations that an `Explorer` takes: those of the space, or of rows where the
            space is no float32 or uint8 Box.
        num_actions: A.
    """

    obs: Mapping[str, Any]
    obs_shape: tuple[int, ...]
    obs_dtype: torch.dtype
    num_actions: int

    @classmethod
    def of(cls, obs_rows: ObsRows, action_space: gymnasium.Space[Any]) -> Self:
        """Sizes for an environment's observations and actions.

        Raises:
            ValueError: actions that `DQN` does not take.
        """
        if not isinstance(action_space, gymnasium.spaces.Discrete) or action_space.start != 0:
            raise ValueError(f"DQN needs a Discrete action space that starts at 0, got {action_space}")
        space, dtype = obs_rows.space, obs_rows.dtype
        shape: tuple[int, ...] = (obs_rows.size,)
        if obs_rows.is_plain and space.dtype in (np.float32, np.uint8):
            shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        kind = torch.uint8 if dtype == np.uint8 else torch.float32
        return cls(obs_rows.state(), shape, kind, int(action_space.n))


def make_network(config: DQNConfig, sizes: Sizes, generator: torch.Generator) -> ActionValues:
    """The network that settings ask for.

    Raises:
        ValueError: settings that do not suit the observations, or a network of the user's that does not fit.
    """
    obs_rows = ObsRows.from_state(sizes.obs)
    if config.network is not None:
        actions = {"kind": "discrete", "size": sizes.num_actions}
        options = parse_options(config.network_options)
        return OwnQ(config.network, options, sizes.obs, actions, generator=generator)
    has_images = obs_rows.dtype == np.uint8
    if config.encoder in ("nature", "impala") and not has_images:
        raise ValueError(
            f"the encoder {config.encoder} is for images (uint8, 2 or 3 dimensions), the observations have none: set"
            " encoder to auto"
        )
    network_shape: tuple[int, ...] | None = None
    if not has_images and config.encoder != "rows":
        network_shape = (obs_rows.size,)
    elif obs_rows.kind == "image" and config.encoder == "auto":
        place = image_place(obs_rows.parts[0])
        network_shape = None if place.channels_last else place.shape
    layers: dict[str, Any] = {
        "hidden": config.hidden,
        "dueling": config.dueling,
        "noisy": config.noisy,
        "noisy_sigma": config.noisy_sigma,
        "quantiles": config.quantiles,
        "generator": generator,
    }
    if network_shape is None:
        if config.batch_norm:
            raise ValueError(
                "batch_norm is for vectors, and for images with their channels first: set it to false"
            )
        return EncodedQ(sizes.obs, sizes.num_actions, encoder=config.encoder, **layers)
    # Pixels, and other bytes, as numbers from 0 to 1.
    space = obs_rows.space
    scale = 1.0
    if isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8:
        scale = 1 / max(int(space.high.max()), 1)
    return QNetwork(
        network_shape,
        sizes.num_actions,
        conv=config.conv if has_images else (),
        batch_norm=config.batch_norm,
        obs_scale=scale,
        **layers,
    )


class Explorer:
    """The network of deep Q-learning, and exploration by random numbers of its own.

    Processes that collect frames for a replay make one each and `load` the newest weights into it. Acting is always in
    float32 and, with BatchNorm, uses the running statistics: an action must not depend on what other environments
    happen to be in the same call.

    Args:
        config: the algorithm's.
        sizes: of the environment's spaces.
        seed: of the initial weights and the exploration; not negative. Give every collector one of its own.
        device: where the network lives.

    Attributes:
        network: in ``eval()`` mode.
        weights_nbytes: bytes of all weights, the statistics of BatchNorm included.
    """

    def __init__(self, config: DQNConfig, sizes: Sizes, seed: int, device: str = "cpu") -> None:
        self._sizes = sizes
        self.device = torch.device(device)
        weights_seed, exploration_seed, noise_seed = np.random.SeedSequence(seed).spawn(3)
        # All draws are made on the CPU: they are few, and a run may resume on another device.
        self._exploration = np.random.Generator(np.random.PCG64(exploration_seed))
        self.noise = generator_of(noise_seed)
        self.network = make_network(config, sizes, generator_of(weights_seed))
        self.network.to(self.device).eval()
        self.parameters = flatten_parameters(self.network)
        self._statistics = flatten_statistics(self.network)
        self._noisy = config.noisy
        self.weights_nbytes = 4 * (self.parameters.numel() + self._statistics.numel())

    def act(
        self, obs: NDArray[Any] | Tensor, epsilon: float | NDArray[np.floating] = 0.0
    ) -> NDArray[np.int64]:
        """Actions int64 [N] that explore: with probability ``epsilon`` any action, else the best one, by the
        network with fresh noise if it is noisy.

        Args:
            obs: ``[N, ...]`` of the observation space's shape and dtype.
            epsilon: one for all, or [N].

        Raises:
            TypeError: wrong dtype.
            ValueError: wrong shape.
            FloatingPointError: the network gave NaN or infinity.
        """
        obs = self._checked(obs)
        random = self._exploration.random(len(obs)) < epsilon
        count = int(np.count_nonzero(random))
        if count == len(obs):
            return self._exploration.integers(self._sizes.num_actions, size=count)
        if self._noisy:
            self.network.draw_noise(self.noise)
        actions = self._best(obs)
        if count:
            actions[random] = self._exploration.integers(self._sizes.num_actions, size=count)
        return actions

    def greedy(self, obs: NDArray[Any] | Tensor) -> NDArray[np.int64]:
        """The best actions int64 [N], without noise: for evaluation. Errors are those of `act`."""
        if self._noisy:
            self.network.clear_noise()
        return self._best(self._checked(obs))

    def write_weights(self, out: Any) -> None:
        """Copies all weights into a writeable buffer of ``weights_nbytes`` bytes, as one vector.

        Raises:
            ValueError: a buffer of another size, or read-only.
        """
        target = self._bytes_of(out)
        if not target.flags.writeable:
            raise ValueError("write_weights needs a writeable buffer, got a read-only one")
        cut = 4 * self.parameters.numel()
        target[:cut] = self.parameters.detach().cpu().numpy().view(np.uint8)
        target[cut:] = self._statistics.cpu().numpy().view(np.uint8)

    def load(self, weights: Any) -> None:
        """Takes all weights from a buffer that `write_weights` has filled, of the same configuration.

        Raises:
            ValueError: a buffer of another size.
        """
        # A copy: PyTorch requires writable, aligned memory.
        source = torch.from_numpy(self._bytes_of(weights).copy().view(np.float32))
        cut = self.parameters.numel()
        self.parameters.data.copy_(source[:cut])
        self._statistics.copy_(source[cut:])

    def state_dict(self) -> dict[str, Any]:
        """Network and generators; tensors are not copies."""
        return {
            "network": self.network.state(),
            "exploration": self._exploration.bit_generator.state,
            "noise": self.noise.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes exactly from the state of another actor.

        Raises:
            ValueError: the state is of another network, or is not finite.
        """
        architecture = self.network.state()["architecture"]
        if state["network"]["architecture"] != architecture:
            raise ValueError(
                f"the saved network is {state['network']['architecture']}, this run's is {architecture}"
            )
        load_weights(self.network, state["network"]["weights"])
        self._exploration.bit_generator.state = state["exploration"]
        self.noise.set_state(state["noise"])

    def _best(self, obs: Tensor) -> NDArray[np.int64]:
        with torch.inference_mode():
            values = self.network(obs.to(self.device)).cpu().numpy()
        if not np.isfinite(values).all():
            raise FloatingPointError(
                "the network gave NaN or infinity; are the observations finite? If so, go back to a"
                " checkpoint, and lower the learning rate or check the rewards"
            )
        best: NDArray[np.int64] = values.argmax(1)
        return best

    def _checked(self, obs: NDArray[Any] | Tensor) -> Tensor:
        if isinstance(obs, np.ndarray):
            # Callers may pass read-only arrays, which PyTorch does not take.
            obs = torch.from_numpy(obs if obs.flags.writeable else obs.copy())
        elif not isinstance(obs, Tensor):
            raise TypeError(f"obs should be a numpy array or a tensor, got {type(obs).__name__}")
        if obs.dtype != self._sizes.obs_dtype:
            raise TypeError(f"obs should be {_name(self._sizes.obs_dtype)}, got {_name(obs.dtype)}")
        if tuple(obs.shape[1:]) != self._sizes.obs_shape or obs.ndim == 0:
            hint = "; for one observation pass obs[None]" if tuple(obs.shape) == self._sizes.obs_shape else ""
            expected = ", ".join(["N", *map(str, self._sizes.obs_shape)])
            raise ValueError(f"obs should have shape [{expected}], got {list(obs.shape)}{hint}")
        return obs

    def _bytes_of(self, buffer: Any) -> NDArray[np.uint8]:
        view = np.frombuffer(buffer, np.uint8)
        if len(view) != self.weights_nbytes:
            raise ValueError(
                f"the network has {self.weights_nbytes} bytes of weights, the buffer {len(view)}:"
                " were both made from the same configuration and spaces?"
            )
        return view


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
