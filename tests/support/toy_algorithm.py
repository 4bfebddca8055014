"""An algorithm of a user's own: REINFORCE with a linear softmax policy, in NumPy. It touches nothing of the package."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from pydantic import Field

from fastrl.algorithms.protocol import Algorithm, LearnsFrom, Problem
from fastrl.networks.compiled_actor import Actor, ActorSpec, RowActor, Rows
from fastrl.rollout.fragment import Fragment
from fastrl.utils.config import section
from fastrl.utils.seeding import uniforms
from fastrl.utils.timer import Stopwatch


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(-1, keepdims=True)
    out: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out


class LinearActor(RowActor):
    """Draws actions from a softmax of ``obs @ weights``."""

    def __init__(self, obs_dim: int, num_actions: int) -> None:
        self._weights = np.zeros((obs_dim, num_actions), np.float32)
        self.weights_nbytes = self._weights.nbytes

    def load(self, weights: Any) -> None:
        self._weights[:] = np.frombuffer(weights, np.float32).reshape(self._weights.shape)

    def choose(self, rows: Rows) -> tuple[Any, Any]:
        all_log_probs = _log_softmax(rows.obs @ self._weights)
        cumulated = np.exp(all_log_probs).cumsum(-1)
        drawn = (uniforms(rows.streams, rows.steps)[:, None] >= cumulated).sum(-1)
        if rows.greedy:
            drawn = all_log_probs.argmax(-1)
        actions = np.minimum(drawn, cumulated.shape[1] - 1)
        return actions, np.take_along_axis(all_log_probs, actions[:, None], -1)[:, 0]


@section
class ToyConfig:
    """A linear policy."""

    num_steps: Annotated[int, Field(ge=1, description="steps of each environment between updates")] = 64
    learning_rate: Annotated[float, Field(gt=0, description="step size")] = 0.05
    gamma: Annotated[float, Field(ge=0, le=1, description="discount of future rewards")] = 0.98


class Toy(Algorithm[Sequence[Fragment]]):
    """REINFORCE (Williams, 1992) with the mean return as baseline."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "policy gradient of a linear policy"
    config_type: ClassVar[type[Any]] = ToyConfig
    learns_from: ClassVar[LearnsFrom] = "rollouts"

    def __init__(self, config: ToyConfig, problem: Problem) -> None:
        if not hasattr(problem.action_space, "n"):
            raise ValueError(f"toy takes discrete actions, got {problem.action_space}")
        self.config, self.steps = config, 0
        shape = problem.obs_space.shape[0], int(problem.action_space.n)  # type: ignore[index]
        self.weights = np.zeros(shape, np.float32)
        self._metrics = {"mean_advantage": 0.0}

    def actor_spec(self) -> ActorSpec:
        return partial(LinearActor, *self.weights.shape)

    @property
    def weights_nbytes(self) -> int:
        return self.weights.nbytes

    def write_weights(self, out: Any) -> None:
        np.frombuffer(out, np.float32)[:] = self.weights.ravel()

    def update(self, experience: Sequence[Fragment], watch: Stopwatch) -> None:
        with watch("update"):
            obs, actions, returns = [], [], []
            for fragment in experience:
                to_go = np.zeros(fragment.num_rows, np.float32)
                for t in reversed(range(fragment.num_steps)):
                    over = fragment.terminations[t] | fragment.truncations[t]
                    to_go = fragment.rewards[t] + self.config.gamma * np.where(over, 0, to_go)
                    obs.append(fragment.obs[t])
                    actions.append(fragment.actions[t])
                    returns.append(to_go)
                self.steps += len(fragment)
            all_obs, all_actions, all_returns = map(np.concatenate, (obs, actions, returns))
            advantages = (all_returns - all_returns.mean()) / (all_returns.std() + 1e-6)
            pull = -np.exp(_log_softmax(all_obs @ self.weights))
            pull[np.arange(len(pull)), all_actions] += 1
            self.weights += self.config.learning_rate * all_obs.T @ (pull * advantages[:, None]) / len(pull)
            self._metrics = {"mean_advantage": float(np.abs(advantages).mean())}

    def metrics(self) -> Mapping[str, float]:
        return self._metrics

    def policy_state(self) -> dict[str, Any]:
        return {"weights": torch.from_numpy(self.weights)}

    @classmethod
    def make_actor(cls, policy: Mapping[str, Any], obs_space: Space[Any], action_space: Space[Any]) -> Actor:
        actor = LinearActor(*policy["weights"].shape)
        actor.load(policy["weights"].numpy())
        return actor

    def load_policy(self, state: Mapping[str, Any]) -> list[str]:
        self.weights[:] = state["policy"]["weights"].numpy()
        return []

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy_state(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_policy(state)
        self.steps = state["steps"]
