"""Networks as a user writes them, good and bad."""

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """For vectors."""

    def __init__(self, obs_space: Any, action_space: Any, width: int = 16, dropout: float = 0.0) -> None:
        super().__init__()
        outputs = int(action_space.n) if hasattr(action_space, "n") else action_space.shape[0]
        self.body = nn.Sequential(nn.LazyLinear(width), nn.Tanh(), nn.Dropout(dropout))
        self.policy, self.values = nn.Linear(width, outputs), nn.Linear(width, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs.flatten(1))
        return self.policy(features), self.values(features).squeeze(-1)


class DictNet(nn.Module):
    """For `space_envs.Cards`."""

    def __init__(self, obs_space: Any, action_space: Any) -> None:
        super().__init__()
        picture = obs_space["picture"].shape
        self.body = nn.Linear(picture[0] * picture[1] * picture[2] + 4, 32)
        self.policy, self.values = nn.Linear(32, int(action_space.n)), nn.Linear(32, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        assert obs["picture"].dtype == torch.uint8
        parts = [obs["picture"].flatten(1) / 255, obs["number"], obs["noise"]]
        features = self.body(torch.cat(parts, 1)).relu()
        return self.policy(features), self.values(features).squeeze(-1)


class Pair(Net):
    """For tuples of two."""

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        return super().forward(torch.cat([obs[0], obs[1].flatten(1)], 1))


class Column(Net):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        outputs, values = super().forward(obs)
        return outputs, values.unsqueeze(-1)


class Alone(Net):
    def forward(self, obs: Tensor) -> Any:
        return super().forward(obs)[0]


class Present(nn.Module):
    """Attends to the numbers that are not 0: NaN where there is none."""

    def __init__(self, obs_space: Any, action_space: Any, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(1, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.policy, self.values = nn.Linear(width, int(action_space.n)), nn.Linear(width, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(obs.unsqueeze(-1))
        x, _ = self.attention(x, x, x, key_padding_mask=obs == 0, need_weights=False)
        features = x.mean(1)
        return self.policy(features), self.values(features).squeeze(-1)


class Transformer(Present):
    """A layer of PyTorch's transformer over the numbers."""

    def __init__(self, obs_space: Any, action_space: Any, width: int = 8) -> None:
        super().__init__(obs_space, action_space, width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.embed(obs.unsqueeze(-1))).mean(1)
        return self.policy(features), self.values(features).squeeze(-1)


class DotProduct(Present):
    """Scaled dot-product attention by itself."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(obs.unsqueeze(-1))
        features = nn.functional.scaled_dot_product_attention(x, x, x).mean(1)
        return self.policy(features), self.values(features).squeeze(-1)


class Decomposed(Present):
    """Has an operator that ONNX lacks."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        q, _ = torch.linalg.qr(self.embed(obs.unsqueeze(-1)).transpose(1, 2))
        features = q.mean(2)
        return self.policy(features), self.values(features).squeeze(-1)


class Raises(nn.Module):
    def __init__(self, obs_space: Any, action_space: Any) -> None:
        super().__init__()
        self.body = nn.Linear(7, 7)

    def forward(self, obs: Tensor) -> Any:
        return self.body(obs)


class Double(Net):
    def __init__(self, obs_space: Any, action_space: Any) -> None:
        super().__init__(obs_space, action_space)
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))


class Fixed(nn.Module):
    def __init__(self, obs_space: Any, action_space: Any) -> None:
        super().__init__()

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(obs), 2), torch.zeros(len(obs))


NOT_A_MODULE = 3


class Features(nn.Module):
    """For SAC and TD3."""

    def __init__(self, obs_space: Any, action_space: Any, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Tanh(), nn.Dropout(0.5))

    def forward(self, obs: Tensor) -> Any:
        return self.body(obs.float())


class FrozenFeatures(nn.Module):
    """Two layers, the first of which does not learn."""

    def __init__(self, obs_space: Any, action_space: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(obs_space.shape[0], 8), nn.Linear(8, 8)
        self.first.requires_grad_(False)

    def forward(self, obs: Tensor) -> Any:
        return self.second(self.first(obs).tanh())
