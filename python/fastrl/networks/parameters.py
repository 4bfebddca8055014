"""Parameters of networks: drawn from seeds, flattened, loaded, and checked against what a file claims."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def check_architecture(saved: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuses weights of a network of another architecture.

    Raises:
        ValueError: it says in what they differ.
    """
    differ = [
        f"{name} {saved.get(name)}, not {value}" for name, value in new.items() if saved.get(name) != value
    ]
    if differ:
        raise ValueError(f"its network has {', '.join(differ)}")


def check_shards(network: nn.Module) -> None:
    """Refuses a network that cannot learn from a batch in parts.

    Raises:
        ValueError: it takes statistics of whole batches.
    """
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules()):
        raise ValueError(
            "BatchNorm takes statistics of whole batches: leave it out, or train without ranks and shards"
        )


def check_layers(state: Mapping[str, Any], **layers: Sequence[Any]) -> None:
    """Refuses the saved state of a network whose layers are not those of the settings.

    Args:
        state: with an ``architecture``.
        layers: widths, such as ``hidden=(64, 64)``.

    Raises:
        ValueError
    """
    for name, sizes in layers.items():
        # Networks of other layers have no such argument.
        saved = state["architecture"].get(name, list(sizes))
        if saved != list(sizes):
            raise ValueError(f"the saved {name} layers are {saved}, not {list(sizes)}")


def check_moments(state: Mapping[str, Tensor], parameters: Tensor) -> None:
    """Refuses the saved state of an optimiser of other parameters, or a damaged one.

    Raises:
        ValueError
    """
    shapes = {"step": [], "exp_avg": list(parameters.shape), "exp_avg_sq": list(parameters.shape)}
    if state and state.keys() != shapes.keys():
        raise ValueError(f"the optimizer should have {', '.join(shapes)}, got {', '.join(map(str, state))}")
    for name, tensor in state.items():
        if list(tensor.shape) != shapes[name] or tensor.dtype != torch.float32:
            raise ValueError(
                f"the optimizer's {name} should have shape {shapes[name]}, got {tensor.dtype} {list(tensor.shape)}"
            )


def generator_of(seed: np.random.SeedSequence) -> torch.Generator:
    """A generator on the CPU with a seed of its own."""
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)


@torch.no_grad()
def draw_uniform(network: nn.Module, generator: torch.Generator | None) -> None:
    """Draws the weights and biases of linear layers and convolutions from -b to b, with b = 1 / sqrt(fan in): the
    initial values of PyTorch's own layers. Other parameters stay."""
    for layer in network.modules():
        weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        if isinstance(weight, nn.Parameter) and weight.dim() > 1:
            bound = weight[0].numel() ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            if isinstance(bias, nn.Parameter):
                bias.uniform_(-bound, bound, generator=generator)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """``network.load_state_dict(weights)`` that refuses in one line.

    Raises:
        ValueError: missing, unknown, wrongly shaped or not finite weights. The network is unchanged then.
    """
    check_shapes(network.state_dict(), weights)
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ValueError(f"weights {name!r} are not finite (NaN or infinity)")
    network.load_state_dict(weights)


def check_shapes(state: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuses weights of other names or shapes than those of a network.

    Raises:
        ValueError
    """
    if state.keys() != weights.keys():
        raise ValueError(f"weights do not fit the network: expected {sorted(state)}, got {sorted(weights)}")
    for name, tensor in weights.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"weights {name!r} must have shape {list(state[name].shape)}, got {list(tensor.shape)}"
            )


# Largest size of a file's observation space, as a multiple of the number of its weights. Encoders have more weights
# than images have pixels; bounds of a space take memory, too.
_NUMBERS_PER_WEIGHT = 4


def claimed_numbers(space: Mapping[str, Any]) -> int:
    """Counts the numbers of a saved observation space (see `fastrl.envs.rows.ObsRows.state`), without making it.

    Raises:
        ValueError: a size is negative.
    """
    if "spaces" in space:
        return sum(map(claimed_numbers, space["spaces"]))
    size = 1
    for side in space.get("shape", ()):
        if side < 0:
            raise ValueError(f"a shape of {space['shape']} is claimed")
        size *= side
    return size


# Arguments of constructors that decide initial weights alone.
_INITIAL = ("generator", "initial_log_std")


def _plain(value: Any) -> Any:
    """Sequences as lists and mappings as dicts, which are what JSON gives."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, list | tuple) else value


class SavedNetwork(nn.Module):
    """A network that is saved as its architecture and its weights.

    The architecture is the arguments of the constructor, JSON-able, but for what decides initial weights alone. One of
    these is ``generator``, which the constructor has to take.
    """

    _architecture: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        # Copies are made without arguments, and get the attribute later.
        given = inspect.signature(cls.__init__).bind_partial(made, *args, **kwargs)
        given.apply_defaults()
        kinds = {name: each.kind for name, each in given.signature.parameters.items()}
        made._architecture = {
            name: _plain(value)
            for name, value in given.arguments.items()
            if value is not made and name not in _INITIAL and kinds[name] != inspect.Parameter.VAR_KEYWORD
        }
        return made

    def state(self) -> dict[str, Any]:
        """All that `from_state` needs: ``architecture`` (JSON-able) and ``weights`` (name -> tensor)."""
        return {"architecture": dict(self._architecture), "weights": self.state_dict()}

    @classmethod
    def check_size(cls, state: Mapping[str, Any], **options: Any) -> None:
        """Refuses an architecture of other numbers than the weights, before memory is taken for it. (That of the user's
        own network is decided by code, which trusted files alone name.)

        Args:
            options: as of `from_state`.

        Raises:
            ValueError
        """
        architecture, weights = state["architecture"], state["weights"]
        if architecture.get("path") is not None:
            return
        there = sum(tensor.numel() for tensor in weights.values())
        layers = len(architecture.get("hidden", ())) + len(architecture.get("conv", ()))
        # Each leaf of the observations has a number, but those of numbers have no layer of their own.
        numbers = claimed_numbers(architecture.get("obs") or {"shape": (0,)})
        if layers <= len(weights) and numbers <= _NUMBERS_PER_WEIGHT * there:
            try:
                with torch.device("meta"):
                    claimed = cls(**architecture, **options, generator=None).state_dict()
                numbers = sum(tensor.numel() for tensor in claimed.values())
            except RuntimeError:  # numbers beyond int64
                numbers = 2**63
            if numbers <= there:
                return
        raise ValueError(
            f"a network of {layers} hidden layers, of or for {numbers:,} numbers, is claimed, the weights are"
            f" {len(weights)} arrays of {there:,} numbers"
        )

    @classmethod
    def without_weights(cls, architecture: Mapping[str, Any], **options: Any) -> Self:
        """A network whose weights are to be loaded; what they are until then is not defined."""
        # A generator of its own: building the network must not draw from torch's global one.
        return cls(**architecture, **options, generator=torch.Generator())

    @classmethod
    def from_state(cls, state: Mapping[str, Any], **options: Any) -> Self:
        """The network that `state` came from.

        Args:
            options: arguments of the constructor besides the architecture.

        Raises:
            ValueError: the weights do not fit the architecture, or are not finite.
        """
        cls.check_size(state, **options)
        network = cls.without_weights(state["architecture"], **options)
        load_weights(network, state["weights"])
        return network


def flatten_parameters(module: nn.Module) -> nn.Parameter:
    """Makes the parameters of a module, and their gradients, views of one vector, which is returned.

    An optimiser then has one tensor to step instead of many small ones, which for small networks costs a
    tenth of a gradient step. Gradients add up in ``vector.grad``: zero it, do not set it to None. Moving the
    module to another device breaks the connection.
    """
    parameters = list(module.parameters())
    vector = nn.Parameter(nn.utils.parameters_to_vector(parameters).detach().clone())
    vector.grad = torch.zeros_like(vector)
    sizes = [parameter.numel() for parameter in parameters]
    views = zip(parameters, vector.data.split(sizes), vector.grad.split(sizes), strict=True)
    for parameter, data, gradient in views:
        parameter.data = data.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return vector


def flat_size(network: nn.Module) -> int:
    """Numbers of all parameters and buffers."""
    return sum(tensor.numel() for tensor in network.state_dict().values())


@torch.no_grad()
def write_tensors(tensors: Sequence[Tensor], out: NDArray[np.float32]) -> None:
    """Writes tensors one after the other.

    Args:
        tensors: at least one, all on one device.
        out: float32, of as many numbers.

    Raises:
        ValueError: ``out`` is not such an array.
    """
    size = sum(tensor.numel() for tensor in tensors)
    if out.shape != (size,) or out.dtype != np.float32:
        raise ValueError(f"out: expected float32 [{size}], got {out.dtype} {list(out.shape)}")
    if not out.flags.writeable:
        raise ValueError("out: expected an array that can be written to, got a read-only one")
    torch.from_numpy(out).copy_(torch.cat([tensor.reshape(-1) for tensor in tensors]))


@torch.no_grad()
def read_flat(network: nn.Module, values: NDArray[np.float32]) -> None:
    """Copies numbers into all parameters and buffers of a network, one after the other.

    Args:
        values: float32 [`flat_size`].

    Raises:
        ValueError: another size, or NaN or infinity in it; nothing has changed then.
    """
    size = flat_size(network)
    if values.shape != (size,):
        raise ValueError(f"weights: expected {4 * size} bytes, got {values.nbytes}")
    if not np.isfinite(values).all():
        raise ValueError("weights: expected finite numbers, got NaN or infinity")
    end, flat = 0, torch.from_numpy(values.copy())  # PyTorch takes no read-only memory
    for tensor in network.state_dict().values():
        start, end = end, end + tensor.numel()
        tensor.copy_(flat[start:end].view_as(tensor))
