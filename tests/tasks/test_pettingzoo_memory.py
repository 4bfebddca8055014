"""Policies with a memory on parallel environments of PettingZoo: predict, evaluations, films and exports remember."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from parallel_toys import Hints, Masked

import fastrl
from fastrl.cli.main import main
from fastrl.play.policy import PredictError

SMALL: dict[str, Any] = {"preset": "smoke", "num_envs": 2, "eval_episodes": 0, "memory_size": 8}
# Observations and actions of the steps of each episode of environments of this process.
EPISODES: list[list[tuple[Any, Any]]] = []


class Recorded(Hints):
    """Keeps its steps in `EPISODES`."""

    metadata = {"name": "recorded", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        super().__init__()
        self.render_mode = render_mode

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episode: list[tuple[Any, Any]] = []
        EPISODES.append(self.episode)
        self.obs, infos = super().reset(seed, options)
        return self.obs, infos

    def step(self, actions: Any) -> Any:
        self.episode.append((self.obs, dict(actions)))
        result = super().step(actions)
        self.obs = {agent: result[0][agent] for agent in self.agents}
        return result

    def render(self) -> NDArray[np.uint8]:
        return np.full((16, 16, 3), 20 * self.t, np.uint8)


def model_of(algo: str, env: Any, memory: str, **options: Any) -> Any:
    """A model whose actions depend on the steps before."""
    model = getattr(fastrl, algo)(env, memory=memory, **(SMALL | options))
    for actor in model.trainer.algorithm.actors.values():
        actor.network.body[-1].weight.data.mul_(300)
        actor.network.memory.bias_hh.data.add_(0.3)
    return model


@pytest.mark.parametrize(("algo", "memory"), [("IPPO", "gru"), ("MAPPO", "lstm"), ("REINFORCE", "gru")])
def test_evaluations_and_films_take_the_actions_of_predict(algo: str, memory: str, tmp_path: Path) -> None:
    model, file = model_of(algo, "test_pettingzoo_memory:Recorded", memory), tmp_path / "model.safetensors"
    model.save(file)
    EPISODES.clear()
    assert main(["eval", str(file), "--trust", "--episodes=6", "--json"]) == 0
    assert main(["render", str(file), "--trust", "--episodes=6", f"--out={tmp_path / 'film.gif'}"]) == 0
    episodes = [episode for episode in EPISODES if episode]
    assert len(episodes) >= 12
    forgets = 0
    for episode in episodes:
        state = None
        for obs, actions in episode:
            found, state = model.predict(obs, state)
            assert found == actions
            forgets += model.predict(obs)[0] != actions
    assert forgets


@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("options", [{}, {"share": False}, {"agent_ids": True, "action_masks": True}])
def test_exports_remember(memory: str, options: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    env_type = Masked if "action_masks" in options else Hints
    model = model_of("IPPO", env_type, memory, **options)
    found = fastrl.export(model, tmp_path / "team.onnx", check=True, episodes=5)
    assert found.actions > 40 and found.different == 0
    model.save(tmp_path / "model")
    loaded = fastrl.load(tmp_path / "model")
    policy, env = fastrl.runtime.load(tmp_path / "team.onnx"), env_type()
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        state = other = None
        policy.reset()
        while env.agents:
            masks = None
            if env_type is Masked:
                masks = {agent: env.masks[agent].astype(np.bool_) for agent in env.agents}
            best, after = model.predict(obs, state, action_masks=masks)
            assert loaded.predict(obs, state, action_masks=masks)[0] == best
            assert policy.act(obs, action_masks=masks) == best
            ours, other = policy.predict(obs, other, action_masks=masks)
            assert ours == best
            np.testing.assert_allclose(other[0][0], after, atol=1e-4)
            assert [not each.any() for each in after] == [agent not in obs for agent in env.possible_agents]
            obs, *_ = env.step(best)
            obs, state = {agent: obs[agent] for agent in env.agents}, after


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_rows_of_agents_have_states(memory: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = model_of("MAPPO", "fastrl/coop-merge-v0", memory, preset=None, vehicles=3)
    found = fastrl.export(model, tmp_path / "team.onnx", check=True, episodes=3)
    assert found.actions > 10 and found.different == 0
    policy = fastrl.runtime.load(tmp_path / "team.onnx")
    obs = np.random.default_rng(0).normal(size=(4, 5, 3, model.policy.obs_dim)).astype(np.float32)
    state = other = None
    for each in obs:
        actions, state = model.predict(each, state)
        ours, other = policy.predict(each, other)
        np.testing.assert_array_equal(ours, actions)
        np.testing.assert_allclose(other[0], state, atol=1e-4)
        # An agent whose episode has ended starts with zeros.
        state[2, 1] = other[0][2, 1] = 0
    alone, after = model.predict(obs[0, 2])
    np.testing.assert_array_equal(alone, model.predict(obs[0])[0][2])
    assert after.shape == (3, model.policy.state_size)
    with pytest.raises(PredictError, match=r"state: expected what predict\(\) returned"):
        model.predict(obs[0], after)


def test_a_policy_without_a_memory_has_no_state() -> None:
    model = fastrl.IPPO(Hints, **SMALL)
    obs, _ = Hints().reset(seed=0)
    assert model.predict(obs)[1] is None
    with pytest.raises(PredictError, match="state: this policy has no memory, expected None, got ndarray"):
        model.predict(obs, np.zeros((3, 8), np.float32))
