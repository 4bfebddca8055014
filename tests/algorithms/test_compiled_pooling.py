"""The compiled gradient steps of PPO with the encoder rows against PyTorch's, from the same rollouts."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_updates import (
    SPACES,
    assert_close,
    assert_close_metrics,
    assert_same,
    fill,
    learn,
    numbers,
    table_learner,
)

from fastrl.algorithms.ppo import PPO
from fastrl.algorithms.ppo_settings import PPOConfig
from fastrl.algorithms.protocol import Problem
from fastrl.utils.timer import Stopwatch

ROWS = st.fixed_dictionaries(
    {
        "rows": st.sampled_from([2, 5, 16]),
        "width": st.sampled_from([1, 4, 27]),
        "beside": st.sampled_from([0, 3]),
        "actions": st.sampled_from(list(SPACES)),
        "shared_trunk": st.booleans(),
        "hidden": st.sampled_from([(), (16,), (17, 33)]),
        "activation": st.sampled_from(["tanh", "relu"]),
        "minibatch_size": st.sampled_from([7, 30, 1000]),
        "value_clip": st.sampled_from([None, 0.1]),
        "value_coef": st.sampled_from([0.0, 0.5]),
        "entropy_coef": st.sampled_from([0.0, 0.05]),
        "max_grad_norm": st.sampled_from([0.1, 1e6]),
    }
)


def rows_learner(backend, **config):
    """A learner of tables whose rows are pooled."""
    return table_learner(backend, encoder="rows", **({"actions": "discrete"} | config))


def vector(ppo):
    """A copy of all parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in ppo.policy.parameters()])


class TestPooledRows:
    @pytest.mark.slow
    @settings(deadline=None, max_examples=40)
    @given(config=ROWS, masked=st.booleans(), distinct=st.sampled_from([None, 1, 6]))
    def test_same_parameters_moments_and_metrics(self, config, masked, distinct):
        # With many larger steps rounding turns a unit off in one network and not in the other.
        config = config | {"action_masks": masked and config["actions"] != "box", "learning_rate": 1e-4}
        torchs, compiled = (rows_learner(backend, **config) for backend in ("torch", "compiled"))
        metrics = [learn(ppo, distinct=distinct) for ppo in (torchs, compiled)]
        rate = compiled.config.learning_rate
        steps = sum(metric.gradient_steps for metric in metrics[0])
        assert_close(torchs, compiled, rtol=1e-3, atol=rate * (0.02 + 1e-3 * steps))
        assert_close_metrics(*metrics)

    @pytest.mark.parametrize("shared_trunk", [True, False])
    @pytest.mark.parametrize("actions", ["discrete", "box"])
    @pytest.mark.parametrize("beside", [0, 3])
    def test_parameters_differ_by_rounding_alone(self, actions, beside, shared_trunk):
        """Minibatches of more tables than go through the network together, and rates at which Adam does not enlarge
        what is next to nothing."""
        options = {
            "num_steps": 80,
            "minibatch_size": 200,
            "rows": 40,
            "learning_rate": 1e-4,
            "beside": beside,
        }
        options |= {"shared_trunk": shared_trunk, "actions": actions, "activation": "tanh"}
        torchs, compiled = (rows_learner(backend, **options) for backend in ("torch", "compiled"))
        before = vector(torchs)
        assert_close_metrics(*(learn(ppo) for ppo in (torchs, compiled)))
        one, other = map(vector, (torchs, compiled))
        assert torch.linalg.vector_norm(one - other) < 1e-3 * torch.linalg.vector_norm(one - before)

    @pytest.mark.parametrize("shared_trunk", [True, False])
    def test_tables_without_rows(self, shared_trunk):
        learners = [rows_learner(backend, shared_trunk=shared_trunk) for backend in ("torch", "compiled")]
        metrics = []
        for ppo in learners:
            fill(ppo)
            ppo.rollout.obs[:] = 0
            ppo.rollout.find_groups()
            metrics.append([ppo.learn(Stopwatch())])
        assert_close_metrics(*metrics)
        assert_close(*learners, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("shared_trunk", [True, False])
    def test_values(self, shared_trunk):
        ppo = rows_learner("compiled", num_steps=300, shared_trunk=shared_trunk)
        fill(ppo)
        obs = torch.from_numpy(ppo.rollout.obs.reshape(-1, ppo.rollout.obs.shape[-1]))
        with torch.inference_mode():
            expected = ppo.policy.value(obs).reshape(ppo.rollout.obs.shape[:2])
        np.testing.assert_allclose(ppo.predict_values(ppo.rollout.obs), expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("shared_trunk", [True, False])
    def test_the_number_of_threads_does_not_matter(self, shared_trunk, monkeypatch):
        results = []
        for threads in (1, 2, 3):
            monkeypatch.setattr("fastrl.algorithms.compiled_update.threads", lambda threads=threads: threads)
            results.append(
                rows_learner("compiled", num_steps=80, minibatch_size=200, rows=40, shared_trunk=shared_trunk)
            )
            learn(results[-1])
        for other in results[1:]:
            assert_same(results[0], other)

    @pytest.mark.parametrize(
        "config",
        [{"layer_norm": True}, {"memory": "gru"}, {"dropout": 0.1}, {"rows": 1025, "width": 1}],
    )
    def test_what_pytorch_learns(self, config):
        with pytest.raises(ValueError, match="the encoders pointer or rows of a table that comes first"):
            rows_learner("compiled", **config)
        assert rows_learner("auto", **config).compiled_update is None
        assert rows_learner("auto").compiled_update is not None

    @pytest.mark.parametrize(
        "spaces",
        [
            {"a": numbers(3), "table": numbers(5, 4)},
            {"a": numbers(5, 4), "b": numbers(2, 4)},
            {"a": numbers(5, 4), "image": Box(0, 255, (40, 40, 3), np.uint8)},
        ],
    )
    def test_observations_that_pytorch_encodes(self, spaces):
        problem = Problem(Dict(spaces), Discrete(3), 3, 10_000, seed=3)
        config = PPOConfig(encoder="rows", normalize_obs=False, num_steps=11)
        assert PPO(config, problem).compiled_update is None
