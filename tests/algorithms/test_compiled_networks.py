"""The compiled gradient steps of policies and critics of many agents against PyTorch's, from the same rollouts."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import differences

from fastrl.algorithms.ippo import IPPO
from fastrl.algorithms.mappo import MAPPO, MAPPOConfig
from fastrl.algorithms.ppo_loss import log_probs_of
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.reinforce import REINFORCE, REINFORCEConfig
from fastrl.networks.distributions import mask_logits
from fastrl.utils.timer import Stopwatch

SPACES = {
    "discrete": Discrete(5),
    "multi_discrete": MultiDiscrete([3, 1, 4]),
    "multi_discrete of one": MultiDiscrete([4]),
    "box": Box(-1, 1, (3,), np.float32),
}
ALGORITHMS = {"ippo": IPPO, "mappo": MAPPO, "reinforce": REINFORCE}
OBS = Box(-np.inf, np.inf, (6,), np.float32)
TABLE = Box(-np.inf, np.inf, (3, 2), np.float32)
SMALL = {"num_steps": 9, "minibatch_size": 30, "hidden": (16, 12), "learning_rate": 3e-3}


def learner(backend, name="ippo", kind="discrete", *, agents=3, obs=OBS, **config):
    problem = Problem(obs, SPACES[kind], 4, 10_000, seed=3, num_agents=agents)
    config_type = REINFORCEConfig if name == "reinforce" else MAPPOConfig
    return ALGORITHMS[name](config_type(update_backend=backend, **(SMALL | config)), problem)


def fill(learner, alive, seed):
    """Fills the rollout with numbers. Log-probabilities are nearly the policies': some ratios are within the clip range
    and some are not."""
    rng, rollout = np.random.default_rng(seed), learner.rollout
    for array in (rollout.obs, rollout.rewards):
        array[:] = rng.normal(size=array.shape)
    if learner.config.encoder == "rows":
        # Some rows are empty.
        rollout.obs.reshape(-1, *TABLE.shape)[:] *= rng.random((rollout.obs.size // 6, 3, 1)) < 0.7
    rollout.terminations[:] = rng.random(rollout.terminations.shape) < 0.1
    rollout.alive[:] = rng.random(rollout.alive.shape) < alive
    space = learner.policy.actions.space
    if isinstance(space, Box):
        rollout.actions[:] = rng.normal(size=rollout.actions.shape)
    else:
        choices = space.nvec if isinstance(space, MultiDiscrete) else space.n
        rollout.actions[:] = rng.integers(0, choices, rollout.actions.shape)
    masks = None
    if rollout.masks is not None:
        nvec = learner.policy.actions.nvec
        taken = rollout.actions.reshape(*rollout.rewards.shape, -1) + np.cumsum(nvec) - nvec
        rollout.masks[:] = rng.random(rollout.masks.shape) < 0.5
        np.put_along_axis(rollout.masks[:-1], taken, True, -1)
        masks = rollout.flat("masks")
    for name, optimizer in learner.actors.items():
        actor, places = optimizer.network, learner.rows_of(name)
        rows = torch.from_numpy(places)
        outputs = actor(rollout.flat("obs")[rows], rows % learner.num_agents)
        outputs = mask_logits(outputs, None if masks is None else masks[rows])
        chosen = log_probs_of(outputs, actor.log_std, rollout.flat("actions")[rows], actor.choices)
        noise = 0.2 * rng.normal(size=len(places))
        rollout.log_probs.reshape(-1)[places] = chosen.detach().numpy() + noise
    learner.critics.evaluate(rollout)


def learned(learner, alive=0.7, updates=2):
    """Metrics of some updates; the second has statistics of observations and moments of Adam."""
    metrics = []
    for seed in range(updates):
        fill(learner, alive, seed)
        learner.learn_rollout(Stopwatch())
        metrics.append(learner.metrics())
    return metrics


def optimizers(learner):
    return [*learner.actors.values(), *learner.critics.optimizers.values()]


CONFIGS = st.fixed_dictionaries(
    {
        "hidden": st.sampled_from([(), (16,), (17, 33), (8, 8, 8)]),
        "activation": st.sampled_from(["tanh", "relu"]),
        "minibatch_size": st.sampled_from([3, 30, 1000]),
        "critic_epochs": st.integers(1, 3),
        "entropy_coef": st.sampled_from([0.0, 0.05]),
        "critic_learning_rate": st.sampled_from([None, 1e-3]),
        "max_grad_norm": st.sampled_from([0.1, 1e6]),
        "normalize_obs": st.booleans(),
        "normalize_advantages": st.sampled_from(["rollout", "none"]),
        "agent_ids": st.booleans(),
        "share": st.booleans(),
        "agents": st.sampled_from([1, 3]),
        "table": st.booleans(),
    }
)


def with_table(config):
    """A configuration whose observations are numbers, or with ``table`` a table of three rows, which are pooled."""
    config = dict(config)
    if config.pop("table"):
        # With larger steps of three samples rounding soon turns a unit off in one network and not in the other.
        config = {"learning_rate": 3e-4} | config | {"obs": TABLE, "encoder": "rows", "normalize_obs": False}
    return config


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("name", ALGORITHMS)
@settings(deadline=None, max_examples=10)
@given(config=CONFIGS, alive=st.sampled_from([1.0, 0.7, 0.05, 0.0]))
def test_same_parameters_moments_and_metrics(name, kind, config, alive):
    config = with_table(config)
    torchs, compiled = (learner(backend, name, kind, **config) for backend in ("torch", "compiled"))
    metrics = [learned(each, alive) for each in (torchs, compiled)]
    steps = sum(row["gradient_steps"] for row in metrics[0])
    for one, other in zip(*map(optimizers, (torchs, compiled)), strict=True):
        assert one.steps == other.steps
        # Where a gradient is nearly zero Adam moves a parameter by the sign of its rounding error.
        rate = max(compiled.config.learning_rate, config["critic_learning_rate"] or 0)
        atol = rate * (0.02 + 1e-3 * steps)
        torch.testing.assert_close(one.vector.data, other.vector.data, rtol=1e-3, atol=atol)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-3, atol=1e-4)
    for one, other in zip(*metrics, strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=1e-4)
    generators = (each.state_dict()["generators"] for each in (torchs, compiled))
    assert differences(*generators) == []


@pytest.mark.parametrize(
    ("kind", "masked"), [*((kind, False) for kind in SPACES), ("discrete", True), ("multi_discrete", True)]
)
@pytest.mark.parametrize("name", ["ippo", "mappo"])
@pytest.mark.parametrize("table", [False, True])
def test_parameters_differ_by_rounding_alone(name, kind, masked, table):
    """After eight minibatches, with rates at which Adam does not enlarge what is next to nothing."""
    options = {"learning_rate": 1e-4, "num_epochs": 2, "critic_epochs": 2, "activation": "tanh"}
    options = with_table(options | {"table": table, "agent_ids": table})
    options["action_masks"] = masked
    torchs, compiled = (learner(backend, name, kind, **options) for backend in ("torch", "compiled"))
    found = [learned(each, updates=1)[0] for each in (torchs, compiled)]
    assert found[0]["gradient_steps"] >= 4
    np.testing.assert_allclose(list(found[0].values()), list(found[1].values()), rtol=1e-4, atol=1e-5)
    for one, other in zip(*map(optimizers, (torchs, compiled)), strict=True):
        error = torch.linalg.vector_norm(one.vector - other.vector) / torch.linalg.vector_norm(one.vector)
        assert error < 1e-5


@settings(deadline=None, max_examples=20)
@given(
    name=st.sampled_from(["ippo", "mappo"]),
    alive=st.sampled_from([1.0, 0.7, 0.0]),
    hidden=st.sampled_from([(), (16,), (17, 33)]),
    agent_ids=st.booleans(),
    table=st.booleans(),
)
def test_values_are_those_of_pytorch(name, alive, hidden, agent_ids, table):
    values, finals = [], []
    for backend in ("torch", "compiled"):
        each = learner(backend, name, hidden=hidden, agent_ids=agent_ids, **with_table({"table": table}))
        rollout, rng = each.rollout, np.random.default_rng(5)
        rollout.truncations[:] = rng.random(rollout.truncations.shape) < 0.3
        rollout.final_obs[:] = rng.normal(size=rollout.final_obs.shape)
        fill(each, alive, 1)
        values.append(rollout.values[rollout.alive])
        finals.append(rollout.final_values[rollout.cut_off()])
    for found in (values, finals):
        np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)
    assert len(values[0]) == rollout.alive.sum()


def test_stops_at_the_same_step():
    """Also the order of the next update is the same, though not all of this one was drawn."""
    options = {"target_kl": 0.02, "num_epochs": 4, "learning_rate": 0.01}
    torchs, compiled = (learner(backend, **options) for backend in ("torch", "compiled"))
    steps = [[row["gradient_steps"] for row in learned(each)] for each in (torchs, compiled)]
    assert steps[0] == steps[1] and steps[0][0] < 12
    assert differences(*(each.state_dict()["generators"] for each in (torchs, compiled))) == []


def test_resumes_with_the_other_backend():
    compiled, other = learner("compiled"), learner("torch")
    learned(compiled, updates=1)
    other.load_state_dict(compiled.state_dict())
    assert differences(other.state_dict(), compiled.state_dict()) == []
    for each in (compiled, other):
        learned(each, updates=1)
    for one, both in zip(*map(optimizers, (compiled, other)), strict=True):
        torch.testing.assert_close(one.vector, both.vector, rtol=1e-3, atol=1e-4)


KNOWN = "perceptrons of vectors or the encoder rows of a table, with tanh or relu, without images, memory or dropout"


class Calm(IPPO):
    def loss(self, batch):
        return super().loss(batch) + 0.1 * batch.outputs.square().mean()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dropout": 0.1}, KNOWN),
        ({"memory": "gru"}, KNOWN),
        ({"activation": "elu"}, KNOWN),
        ({"obs": TABLE, "encoder": "rows", "activation": "elu"}, KNOWN),
        ({"obs": TABLE, "encoder": "rows", "precision": "bf16"}, "precision fp32 with the encoder rows"),
        ({"obs": TABLE, "encoder": "rows", "agents": 342, "name": "mappo"}, KNOWN),
        ({"obs": Box(0, 255, (8, 8, 1), np.uint8), "encoder": "mlp"}, "perceptrons of vectors"),
        ({"name": "calm"}, "IPPO's own loss"),
    ],
)
def test_pytorch_takes_the_steps_of_what_compiled_ones_do_not_know(options, match, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "calm", Calm)
    fallback = learner("auto", **options)
    [remark] = fallback.remarks()
    assert remark.startswith(f"PyTorch takes the gradient steps: compiled ones are for {match}")
    with pytest.raises(
        ValueError, match=f"update_backend compiled is for {match}.*set update_backend to auto"
    ):
        learner("compiled", **options)
    assert learner("auto").remarks() == learner("torch", **options).remarks() == []
