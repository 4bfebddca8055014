"""Networks of the user's own: a ``torch.nn.Module`` by its import path, checked before anything depends on it."""

import copy
import importlib
import multiprocessing
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastrl.envs.rows import ObsRows
from fastrl.envs.spec import ElsewhereError
from fastrl.networks.acting_network import PolicyNet, network_type
from fastrl.networks.action_space import Actions
from fastrl.networks.distributions import log_std_parameter
from fastrl.networks.encoders import Decoder
from fastrl.networks.parameters import check_layers
from fastrl.utils.env_options import parse_options

# Observations in the batch that a network is checked with.
_BATCH = 3

# The seed of a network whose initial weights are replaced anyway.
_NO_SEED = 0


def import_network(path: str) -> type[nn.Module]:
    """The class of an import path such as ``my_module:Net``.

    Raises:
        ValueError: there is none, or it is no ``torch.nn.Module``.
        ElsewhereError: this is a worker process, and the class is one of a notebook or shell.
    """
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"network should be module:Class of your own, such as my_module:Net; got {path!r}")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        if module == "__main__" and multiprocessing.parent_process() is not None:
            raise ElsewhereError(
                f"network: {name} is defined in a notebook or a shell, so other processes cannot make it; put it into a"
                f" module, such as my_module.py, and give 'my_module:{name}', or collect with 'sequential'"
            ) from None
        raise ValueError(f"network {path}: {error}") from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"network {path}: should be a subclass of torch.nn.Module, got {found!r}")
    return found


class OwnModule(nn.Module):
    """A module of the user's, which gets observations in the form of their space.

    It is made as ``Net(obs_space, action_space, **options)`` and called with a tensor, or of Dict and Tuple spaces with
    a dict or tuple of tensors: uint8 [B, ...] of images as the space has them, else float32 [B, ...]; of Discrete and
    MultiDiscrete one-hot, float32 [B, n].

    Args:
        path: import path of its class.
        options: further arguments, JSON-able.
        obs: `ObsRows.state` of the observations.
        actions: `Actions.state` of what it chooses.
        normalize_obs: whiten numbers that are not of images by running statistics.
        generator: its next number is the seed of the initial weights; None: a seed of 0. PyTorch's global generator
            stays as it is.

    Raises:
        ValueError: the class cannot be made with these arguments, or has parameters that are not float32.
    """

    def __init__(
        self,
        path: str,
        options: Mapping[str, Any],
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        normalize_obs: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.obs_rows, self.actions = ObsRows.from_state(obs), Actions.from_state(actions)
        self.decoder = Decoder(self.obs_rows, normalize_obs)
        network = import_network(path)
        seed = _NO_SEED if generator is None else int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self.module = network(self.obs_rows.space, self.actions.space, **options)
            except Exception as error:
                raise ValueError(
                    f"network {path}(obs_space, action_space{''.join(f', {name}=...' for name in options)}) raised"
                    f" {_line(error)}"
                ) from error
            # Layers that take their sizes from the first batch have parameters after it.
            self(sample_rows(self.obs_rows, 1))
        for name, parameter in self.module.named_parameters():
            if parameter.dtype != torch.float32:
                raise ValueError(
                    f"network {path}: its parameter {name} is {parameter.dtype}, expected torch.float32"
                )
        if not any(parameter.requires_grad for parameter in self.module.parameters()):
            raise ValueError(f"network {path}: it has no parameters to learn")

    def check_outputs(self, **shapes: tuple[int, ...]) -> None:
        """Runs a batch of observations, drawn from their space, and refuses other outputs than float32 tensors of these
        shapes.

        Args:
            shapes: by the tensors' names, without the axis of the batch. One name: ``forward`` returns the tensor;
                several: a tuple of tensors.

        Raises:
            ValueError
        """
        self._shapes = shapes
        self._run(sample_rows(self.obs_rows, _BATCH))

    def check_finite(self, obs: NDArray[Any]) -> None:
        """Refuses outputs for observations [B, size] of the environment that have another shape, or NaN or infinity.

        Raises:
            ValueError
        """
        rows = torch.from_numpy(obs).to(next(self.parameters()).device)
        for name, tensor in self._run(rows).items():
            good = tensor.isfinite().reshape(len(rows), -1).all(1)
            if not good.all():
                bad = int(good.logical_not().nonzero()[0])
                inputs = self.observation(rows[bad : bad + 1])
                raise ValueError(
                    f"network {self.path}: forward({describe(inputs)}) gave NaN or infinity as {name} with its initial"
                    f" weights, for this observation of the environment: {_numbers(inputs)}"
                )

    @torch.no_grad()
    def _run(self, rows: Tensor) -> dict[str, Tensor]:
        """The outputs for observations, by name; see `check_outputs`."""
        was_training = self.training
        result = self.eval()(rows)
        self.train(was_training)
        count = len(rows)
        tensors = [f"float32 {[count, *shape]}" for shape in self._shapes.values()]
        names, expected = (
            ", ".join(each) if len(each) == 1 else f"({', '.join(each)})" for each in (self._shapes, tensors)
        )
        returned = describe(result)
        if returned != expected:
            last_axis = returned.replace(", 1]", "]") == expected.replace(", 1]", "]")
            hint = "; squeeze(-1) drops a last axis of length 1, unsqueeze(-1) adds one" if last_axis else ""
            raise ValueError(
                f"network {self.path}: forward({describe(self.observation(rows))}) should return {names} as {expected};"
                f" it returned {returned}{hint}"
            )
        return dict(zip(self._shapes, [result] if len(self._shapes) == 1 else result, strict=True))

    def feature_size(self) -> int:
        """The length n of what ``forward`` returns, features float32 [B, n].

        Raises:
            ValueError: it returns something else.
        """
        with torch.no_grad():
            result = self(sample_rows(self.obs_rows, _BATCH))
        size = result.shape[-1] if isinstance(result, Tensor) and result.dim() == 2 else 1
        self.check_outputs(features=(size,))
        return int(size)

    def observation(self, rows: Tensor) -> Any:
        """The observations in the form of their space."""
        vector = self.decoder.vector(rows)
        if self.decoder.norm is not None:
            vector = self.decoder.norm(vector)
        leaves: dict[tuple[Any, ...], Tensor] = {}
        at = 0
        for part in self.obs_rows.parts:
            if part.kind == "image":
                leaves[part.path] = rows[:, part.place].unflatten(1, part.shape)
            else:
                leaves[part.path] = vector[:, at : at + part.size].unflatten(1, part.shape or (1,))
                at += part.size
        return nested(self.obs_rows.space, leaves, ())

    def forward(self, rows: Tensor) -> Any:
        """Runs the module on observations [B, size].

        Raises:
            ValueError: it raised one of the errors by which Python and PyTorch say that shapes or types do not fit.
        """
        obs = self.observation(rows)
        try:
            return self.module(obs)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
            raise ValueError(
                f"network {self.path}: forward({describe(obs)}) raised {_line(error)}"
            ) from error


class OwnPolicy(PolicyNet):
    """A policy and a value function that a module of the user's computes; see `OwnModule`.

    Its ``forward`` returns ``(outputs, values)``: logits (of MultiDiscrete those of all numbers side by side) or means
    float32 [B, num_actions], and float32 [B]. The logarithm of a Gaussian's deviation is a parameter beside it.

    Args:
        path, options, obs, actions, normalize_obs, generator: see `OwnModule`.
        initial_log_std: of the Gaussian.

    Raises:
        ValueError: the module cannot be made, or gives something else; the message says what was expected.
    """

    kind = "own"
    has_noise = True  # It may have dropout.
    gives_values = True

    def __init__(
        self,
        path: str,
        options: Mapping[str, Any],
        obs: Mapping[str, Any],
        actions: Mapping[str, Any],
        *,
        normalize_obs: bool = False,
        initial_log_std: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.own = OwnModule(path, options, obs, actions, normalize_obs=normalize_obs, generator=generator)
        self.obs_rows, self.num_actions = self.own.obs_rows, self.own.actions.size
        self.obs_dim = self.obs_rows.size
        is_box = self.own.actions.is_box
        self.log_std = log_std_parameter(self.num_actions, initial_log_std) if is_box else None
        self.own.check_outputs(outputs=(self.num_actions,), values=())

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        outputs, values = self.own(rows)
        return outputs, values

    def update_statistics(self, rows: Tensor) -> None:
        self.own.decoder.update_statistics(rows)


def own_path(state: Mapping[str, Any]) -> str | None:
    """The import path that making the network of a policy's saved state imports; None: it imports nothing."""
    path = state.get("architecture", {}).get("path")
    return None if path is None else str(path)


def check_own_network(path: str | None, options: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuses the saved state of a policy that would import another network, or give it other options, than settings
    say: these have been checked against what their reader trusts.

    Args:
        path, options: of the settings.

    Raises:
        ValueError
    """
    if own_path(state) != path:
        raise ValueError(f"the saved policy has the network {own_path(state)}, the settings have {path}")
    saved = state.get("architecture", {}).get("options", {})
    if path is not None and saved != options:
        raise ValueError(
            f"the saved policy's network has the options {saved}, the settings have {dict(options)}"
        )


def check_network(config: Any, state: Mapping[str, Any]) -> None:
    """Refuses the saved state of a network that is not the one of the settings.

    Raises:
        ValueError
    """
    check_own_network(config.network, parse_options(config.network_options), state)
    if config.network is None:
        check_layers(state, hidden=config.hidden)
    network_type(state).check_size(state)


def sample_rows(obs_rows: ObsRows, count: int) -> Tensor:
    """Rows [count, size] of observations that are drawn from their space, the same each time."""
    rows = np.zeros((count, obs_rows.size), obs_rows.dtype)
    space = copy.deepcopy(obs_rows.space)
    space.seed(0)
    for row in rows:
        obs_rows.write(space.sample(), row)
    return torch.from_numpy(rows)


def nested(
    space: gymnasium.Space[Any], leaves: Mapping[tuple[Any, ...], Tensor], path: tuple[Any, ...]
) -> Any:
    """The parts of an observation in dicts and tuples as of the space."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: nested(child, leaves, (*path, key)) for key, child in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(nested(child, leaves, (*path, index)) for index, child in enumerate(space.spaces))
    return leaves[path]


def describe(value: Any) -> str:
    """Types and shapes of tensors, in one line."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(describe, value)) + ")"
    return f"a {type(value).__name__}"


def _numbers(obs: Any) -> str:
    """The first numbers of the parts of an observation [1, ...], in one line."""
    if isinstance(obs, Mapping):
        return "{" + ", ".join(f"{key!r}: {_numbers(each)}" for key, each in obs.items()) + "}"
    if isinstance(obs, tuple):
        return "(" + ", ".join(map(_numbers, obs)) + ")"
    first = ", ".join(f"{number:.3g}" for number in obs.flatten()[:8].tolist())
    return f"[{first}{', ...' if obs.numel() > 8 else ''}]"


def _line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
