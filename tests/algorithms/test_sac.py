"""Soft actor-critic and TD3: losses against plain code, values with known answers, bounds, resuming."""

import copy
import math
import pickle
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from small_runs import assert_same_state
from torch.nn.utils import parameters_to_vector

from fastrl.algorithms.off_policy_loss import squashed
from fastrl.algorithms.protocol import Problem
from fastrl.algorithms.sac import SAC
from fastrl.algorithms.sac_settings import SACConfig, TD3Config
from fastrl.algorithms.td3 import TD3
from fastrl.networks.action_space import Actions
from fastrl.networks.bounded_actor import BoundedActor
from fastrl.utils.timer import Stopwatch

OBS = Box(-1, 1, (3,), np.float32)
IMAGE = Box(0, 255, (12, 12, 3), np.uint8)
BOX = Box(np.float32([-2, 3]), np.float32([0.1, 3.4]))
WATCH = Stopwatch()


def learner(obs: Any = OBS, actions: Any = BOX, seed: int = 0, **config: Any) -> SAC:
    return SAC(
        SACConfig(**({"hidden": (8, 8), "batch_size": 6} | config)), Problem(obs, actions, 1, 100, seed=seed)
    )


def td3(obs: Any = OBS, actions: Any = BOX, seed: int = 0, **config: Any) -> TD3:
    return TD3(
        TD3Config(**({"hidden": (8, 8), "batch_size": 6} | config)), Problem(obs, actions, 1, 100, seed=seed)
    )


def batch_of(
    obs: Any = OBS, actions: Any = BOX, count: int = 6, seed: int = 0, masks: int = 0
) -> SimpleNamespace:
    """Transitions as a sampler gives them, a third of them terminated."""
    rng = np.random.default_rng(seed)

    def rows() -> np.ndarray:
        if obs.dtype == np.uint8:
            return rng.integers(0, 256, (count, *obs.shape), np.uint8)
        return rng.normal(size=(count, *obs.shape)).astype(np.float32)

    drawn = (
        rng.integers(0, actions.n, count)
        if isinstance(actions, Discrete)
        else rng.uniform(-1, 1, (count, *actions.shape)).astype(np.float32)
    )
    arrays = {
        "obs": rows(),
        "actions": drawn,
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_obs": rows(),
        "discounts": np.where(rng.random(count) < 1 / 3, 0, 0.9).astype(np.float32),
    }
    allowed = {"masks": None, "next_masks": None}
    if masks:
        arrays |= {name: rng.random((count, masks)) < 0.6 for name in allowed}
        for each in (arrays["masks"], arrays["next_masks"]):
            each[:, 0] |= ~each.any(1)
    return SimpleNamespace(**(allowed | {name: torch.from_numpy(array) for name, array in arrays.items()}))


@pytest.mark.parametrize("entropy_backup", [True, False])
def test_after_a_termination_masks_do_not_count(entropy_backup: bool) -> None:
    config = {"action_masks": True, "entropy_backup": entropy_backup}
    first, second = batch_of(OBS, Discrete(4), masks=4), batch_of(OBS, Discrete(4), masks=4)
    second.next_masks &= (second.discounts > 0)[:, None]
    assert not torch.equal(first.next_masks, second.next_masks)
    errors = [learner(OBS, Discrete(4), **config).update(batch, WATCH) for batch in (first, second)]
    assert torch.equal(*errors)


def actor_of(algorithm: Any) -> Any:
    actor = pickle.loads(pickle.dumps(algorithm.actor_spec()))()
    buffer = bytearray(algorithm.weights_nbytes)
    algorithm.write_weights(buffer)
    actor.load(bytes(buffer))
    return actor


def acted(actor: Any, obs: np.ndarray, size: int, *, greedy: bool = False) -> tuple[np.ndarray, np.ndarray]:
    count = len(obs)
    actions, log_probs = np.zeros((count, size), np.float32), np.zeros(count, np.float32)
    streams = np.arange(count, dtype=np.uint64) * 77
    actor.act(obs, streams, np.zeros(count, np.int64), actions, log_probs, greedy=greedy)
    return actions, log_probs


@pytest.mark.parametrize("actions", [BOX, Discrete(4)], ids=["box", "discrete"])
@pytest.mark.parametrize("value", ["min", "mean"])
def test_losses_are_those_of_plain_code(actions: Any, value: str) -> None:
    sac = learner(actions=actions, policy_value=value, temperature=0.7, critics=3)
    batch = sac.minibatch(batch_of(actions=actions), True)
    outputs, after = sac.policy(batch.obs), sac.policy(batch.next_obs)
    if isinstance(actions, Discrete):
        log_probs, after = torch.log_softmax(outputs, -1), torch.log_softmax(after, -1)
        values, q = sac.critics(batch.obs), sac.critics(batch.obs)[:, torch.arange(6), batch.actions]
        least = sac.targets(batch.next_obs)[batch.target_critics].amin(0)
        next_values = (after.exp() * (least - 0.7 * after)).sum(-1)
        chances = log_probs.exp()
    else:
        drawn, log_probs, _ = squashed(outputs, batch.noise)
        later, after, _ = squashed(after, batch.next_noise)
        values, q = sac.critics(batch.obs, drawn), sac.critics(batch.obs, batch.actions)
        next_values = sac.targets(batch.next_obs, later)[batch.target_critics].amin(0) - 0.7 * after
        chances = torch.ones(())
    best = values.mean(0) if value == "mean" else values.amin(0)
    expected = (chances * (0.7 * log_probs - best)).reshape(6, -1).sum(-1).mean()
    entropy = -(chances * log_probs).reshape(6, -1).sum(-1).mean()
    found = sac.policy_loss(batch)
    torch.testing.assert_close((found.policy_loss, found.entropy), (expected, entropy))
    temperature_loss = math.log(0.7) * (entropy.detach() - sac.target_entropy)
    torch.testing.assert_close(found.total, expected + temperature_loss)
    errors = q - (batch.rewards + batch.discounts * next_values)
    critic_loss = sac.critic_loss(batch)
    torch.testing.assert_close(critic_loss.total, sum(each.square().mean() for each in errors) / 2)
    torch.testing.assert_close(critic_loss.td_errors, errors.abs().mean(0).detach())


def test_log_densities_are_exact_and_finite_where_tanh_is_1() -> None:
    normal = torch.distributions.Normal(torch.tensor([0.3, -0.2]), torch.tensor([0.5, 0.8]))
    exact = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform(cache_size=1)]
    )
    noise = torch.tensor([[1.0, -0.5]])
    outputs = torch.cat([normal.mean, normal.stddev.log()])[None]
    actions, log_probs, _ = squashed(outputs, noise)
    torch.testing.assert_close(log_probs, exact.log_prob(actions).sum(-1))
    far = torch.tensor([[-1e4, -30.0, 30.0, 1e4, 0.0, 0.0, 0.0, 0.0]])
    actions, log_probs, _ = squashed(far, torch.zeros(1, 4))
    assert actions.abs().eq(1).all()
    assert torch.isfinite(log_probs).all()


def test_compiled_actors_and_learners_agree_on_densities() -> None:
    sac = learner()
    sac.update(batch_of(), WATCH)
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actor = actor_of(sac)
    assert isinstance(actor, BoundedActor)
    actions, log_probs = acted(actor, obs, 2)
    with torch.no_grad():
        outputs = sac.policy(torch.from_numpy(obs))
    means, log_stds = outputs.chunk(2, -1)
    normal = torch.distributions.Normal(means, log_stds.exp())
    exact = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    np.testing.assert_allclose(
        log_probs, exact.log_prob(torch.from_numpy(actions)).sum(-1), rtol=1e-3, atol=1e-3
    )
    greedy, _ = acted(actor, obs, 2, greedy=True)
    np.testing.assert_allclose(greedy, means.tanh(), atol=1e-5)


def test_noise_of_gradient_steps_is_standard_normal_and_independent() -> None:
    experience, draws = batch_of(count=128), []
    for sac in (learner(), learner(seed=1)):
        for sac.updates in range(100):
            batch = sac.minibatch(experience, learns_policy=True)
            draws += [batch.noise, batch.next_noise]
    noise = torch.stack(draws).double().reshape(2, 100, 2, 128, 2)
    # Means over N numbers whose variance is 1, 2, 15 and 96 lie within four deviations of theirs.
    for power, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], 1):
        assert abs(noise.pow(power).mean() - mean) < 4 * math.sqrt(variance / noise.numel())
    # Seeds, steps, noise of both actions, transitions (halves, too), and numbers of an action.
    pairs = [
        (noise.narrow(axis, 0, n - 1), noise.narrow(axis, 1, n - 1)) for axis, n in enumerate(noise.shape)
    ]
    for one, other in [*pairs, noise.chunk(2, 3)]:
        for x, y in [(one, other), (one.square() - 1, other.square() - 1)]:
            assert abs((x * y).mean()) < 4 * x.std() * y.std() / math.sqrt(x.numel())


def test_actions_are_uniform_until_something_is_learned() -> None:
    sac = learner()
    obs = np.zeros((20_000, 3), np.float32)
    actions, log_probs = acted(actor_of(sac), obs, 2)
    assert abs(actions.mean()) < 0.02 and actions.var() == pytest.approx(1 / 3, rel=0.02)
    assert log_probs[0] == pytest.approx(-2 * math.log(2))
    sac.update(batch_of(), WATCH)
    assert acted(actor_of(sac), obs, 2)[1].std() > 0


def test_log_densities_of_compiled_actors_are_finite_where_tanh_is_1() -> None:
    sac = learner()
    sac.update(batch_of(), WATCH)
    with torch.no_grad():
        *_, bias = sac.policy.parameters()
        bias[..., :2] = torch.tensor([90.0, -90.0])
    actions, log_probs = acted(actor_of(sac), np.zeros((5, 3), np.float32), 2)
    np.testing.assert_array_equal(actions, [[1, -1]] * 5)
    assert np.isfinite(log_probs).all()


@pytest.mark.parametrize(("name", "make"), [("sac", learner), ("td3", td3)])
def test_infinite_bounds_are_refused_in_one_line(name: str, make: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{name} draws actions between finite bounds, .* finite low"
    ) as error:
        make(actions=Box(-np.inf, 1, (2,), np.float32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [{"target_critics": 3}, {"temperature": 0}, {"network_options": ["a=1"]}])
def test_settings_that_do_not_go_together_are_refused(config: Any) -> None:
    with pytest.raises(
        ValueError, match=r"target_critics should be at most|cannot be learned|set network, too"
    ):
        SACConfig(**config)


def test_a_network_of_ones_own_gives_features() -> None:
    own = learner(**OWN, hidden=())
    assert own.policy.own is not None and own.critics.own is not None
    assert (own.policy.num_features, own.critics.body.sizes) == (12, (14, 1))
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    own.update(batch_of(), WATCH)
    greedy, _ = acted(actor_of(own), obs, 2, greedy=True)
    with torch.no_grad():
        means = own.policy(torch.from_numpy(obs))[:, :2]
    np.testing.assert_allclose(greedy, means.tanh(), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"should return features as float32 \[3, 1\]; it returned \(float32"
    ):
        learner(network="own_networks:Net")
    state = copy.deepcopy(own.state_dict())
    with pytest.raises(
        ValueError, match="the saved policy has the network own_networks:Features, the settings"
    ):
        own.check_state(learner().config, state)


@pytest.mark.parametrize("make", [learner, td3])
def test_frozen_layers_of_ones_own_network_stay(make: Any) -> None:
    algorithm = make(network="own_networks:FrozenFeatures", policy_every=1)
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.update(batch_of(), WATCH)
    after = algorithm.state_dict()
    pairs = [(before["critics"], after["critics"]), (before["policy"]["weights"], after["policy"]["weights"])]
    for old, new in pairs:
        moved = {name for name in old if not torch.equal(old[name], new[name])}
        assert moved == {name for name in old if ".first." not in name} != set(old)


def test_td3s_losses_are_those_of_plain_code() -> None:
    algorithm = td3(critics=3, target_critics=3, target_noise=0.4, target_noise_clip=0.3)
    batch = algorithm.minibatch(batch_of(), True)
    values = algorithm.critics(batch.obs, algorithm.policy(batch.obs).tanh())
    torch.testing.assert_close(algorithm.policy_loss(batch).total, -values[0].mean())
    noise = (0.4 * batch.next_noise).clamp(-0.3, 0.3)
    actions = (algorithm.target_policy(batch.next_obs).tanh() + noise).clamp(-1, 1)
    expected = algorithm.targets(batch.next_obs, actions).amin(0)
    torch.testing.assert_close(algorithm.next_values(batch), expected)


def test_td3_explores_with_noise_within_the_bounds() -> None:
    algorithm = td3(exploration_noise=0.5)
    algorithm.update(batch_of(), WATCH)
    obs = np.zeros((20_000, 3), np.float32)
    noisy, _ = acted(actor_of(algorithm), obs, 2)
    best, _ = acted(actor_of(algorithm), obs, 2, greedy=True)
    assert np.abs(noisy).max() <= 1 and np.ptp(best, axis=0).max() == 0
    inside = np.abs(noisy) < 1
    assert 0.3 < (noisy - best)[inside].std() < 0.5


OWN = {"network": "own_networks:Features", "network_options": ("width=12",)}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "td3": (OBS, BOX, {}),
    "td3 image": (IMAGE, BOX, {"layer_norm": True}),
    "box": (OBS, BOX, {}),
    "discrete": (OBS, Discrete(4), {}),
    "masks": (OBS, Discrete(4), {"action_masks": True}),
    "image": (IMAGE, BOX, {}),
    "discrete image": (IMAGE, Discrete(4), {}),
    "rlpd": (OBS, BOX, {"critics": 5, "layer_norm": True, "policy_every": 2, "policy_value": "mean"}),
    "fixed temperature": (OBS, BOX, {"learn_temperature": False, "temperature": 0.0}),
    "own": (OBS, BOX, OWN),
    "td3 own": (OBS, BOX, OWN),
    "discrete own image": (IMAGE, Discrete(4), OWN),
    "half": (OBS, BOX, {"precision": "bf16"}),
    "simba": (OBS, BOX, {"encoder": "simba", "policy_hidden": (4,), "weight_decay": 0.01}),
    "discrete simba": (OBS, Discrete(4), {"encoder": "simba"}),
    "simba_v2": (OBS, BOX, {"encoder": "simba_v2", "final_learning_rate": 0.0}),
    "td3 simba_v2": (OBS, BOX, {"encoder": "simba_v2"}),
}


def steps_of(seed: int, num_steps: int = 4, rows: int = 1) -> Any:
    """Collected steps of as many environments, as `observe` takes them."""
    rng = np.random.default_rng(seed)
    return SimpleNamespace(
        obs=rng.normal(2, 3, (num_steps + 1, rows, 3)).astype(np.float32),
        rewards=rng.normal(1, 20, (num_steps, rows)).astype(np.float32),
        terminations=rng.random((num_steps, rows)) < 0.2,
        truncations=np.zeros((num_steps, rows), bool),
        env_indices=np.arange(rows),
    )


def learn(algorithm: Any, batches: list[Any], start: int = 0) -> torch.Tensor:
    """Learns from minibatches, before each of which steps are collected; returns the last TD errors."""
    for i, batch in enumerate(batches):
        algorithm.observe([steps_of(start + i)])
        td_errors = algorithm.update(batch, WATCH)
    return td_errors


@pytest.mark.parametrize("case", CASES)
def test_learning_resumes_to_the_bit(case: str) -> None:
    obs, actions, config = CASES[case]
    masks = 4 if config.get("action_masks") else 0
    batches = [batch_of(obs, actions, seed=seed, masks=masks) for seed in range(5)]
    make: Any = td3 if "td3" in case else learner
    straight = make(obs, actions, **config)
    start = copy.deepcopy(straight.state_dict())
    assert learn(straight, batches).shape == (6,)
    first, second = make(obs, actions, **config), make(obs, actions, seed=5, **config)
    learn(first, batches[:3])
    state = copy.deepcopy(first.state_dict())
    second.check_state(second.config, state)
    second.load_state_dict(state)
    learn(second, batches[3:], 3)
    assert_same_state(second.state_dict(), straight.state_dict())
    # Each part has learned.
    for part in ("critics", "targets"):
        assert any(
            not torch.equal(start[part][name], each) for name, each in straight.state_dict()[part].items()
        )
    moved = [
        name
        for name, each in straight.policy.state_dict().items()
        if not torch.equal(start["policy"]["weights"][name], each)
    ]
    assert len(moved) == len(straight.policy.state_dict())
    metrics = straight.metrics()
    assert metrics["gradient_steps"] == 5 and all(map(math.isfinite, metrics.values()))
    assert math.isnan(straight.metrics()["q"])


@pytest.mark.parametrize("make", [learner, td3])
def test_the_learning_rate_moves_to_its_end(make: Any) -> None:
    algorithm = make(final_learning_rate=0.0, learning_rate=1e-2, policy_every=1)

    def bits() -> list[torch.Tensor]:
        networks = (algorithm.critics, algorithm.policy)
        return [parameters_to_vector(each.parameters()).detach() for each in networks]

    sizes = []
    for steps in (0, 50, 100):
        before = bits()
        algorithm.steps = steps
        algorithm.update(batch_of(), WATCH)
        sizes.append([float((b - a).abs().max()) for a, b in zip(before, bits(), strict=True)])
    # Adam's steps are about as large as the learning rate.
    np.testing.assert_allclose(sizes, [[1e-2] * 2, [5e-3] * 2, [0] * 2], rtol=0.3)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    sac, batch = learner(), batch_of()
    batch.rewards[0] = math.inf
    sac.update(batch, WATCH)
    with pytest.raises(FloatingPointError, match="after 1 gradient steps"):
        sac.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("actions", [Box(-1, 1, (1,), np.float32), Discrete(2)], ids=["box", "discrete"])
def test_truncated_episodes_are_bootstrapped(actions: Any, terminated: bool) -> None:
    """Reward 1, discount 0.9, ten steps: the value is 10 if episodes are truncated, else what is left of them."""
    sac = learner(
        actions=actions,
        learn_temperature=False,
        temperature=0.0,
        gamma=0.9,
        learning_rate=1e-2,
        tau=0.2,
        hidden=(32, 32),
    )
    # The observation is the step of the episode.
    steps = torch.linspace(-1, 1, 10)
    obs = steps[:, None] * torch.ones(10, 3)
    # What follows the last step is like the first one.
    after = obs.roll(-1, 0)
    discounts = torch.full((10,), 0.9)
    if terminated:
        discounts[-1] = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        drawn = (
            torch.randint(2, (10,), generator=generator)
            if isinstance(actions, Discrete)
            else 2 * torch.rand(10, 1, generator=generator) - 1
        )
        sac.update(
            SimpleNamespace(
                obs=obs,
                actions=drawn,
                rewards=torch.ones(10),
                next_obs=after,
                discounts=discounts,
                masks=None,
                next_masks=None,
            ),
            WATCH,
        )
    with torch.no_grad():
        own = None if isinstance(actions, Discrete) else torch.zeros(10, 1)
        values = (
            sac.critics(obs, own).flatten(2).mean((0, 2)) if own is None else sac.critics(obs, own).mean(0)
        )
    left = torch.arange(10, 0, -1)
    expected = 10 * (1 - 0.9**left) if terminated else torch.full((10,), 10.0)
    torch.testing.assert_close(values, expected, atol=0.25, rtol=0.05)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_gradient_steps_are_counted_per_environment_step(num_envs: int) -> None:
    import fastrl

    model = fastrl.SAC(
        Target,
        num_envs=num_envs,
        hidden=[4],
        batch_size=2,
        replay={"learning_starts": 6, "updates_per_step": 0.5},
        collector="sequential",
        device="cpu",
    )
    model.learn(36)
    learned: Any = model.trainer
    assert (learned.steps, learned.algorithm.updates) == (36, 15)


class Target(gymnasium.Env[Any, Any]):
    """One step; the reward is less the farther the action is from the best one, in units of the bounds."""

    best = np.float32([-1.5, 3.3])

    def __init__(self) -> None:
        self.observation_space, self.action_space = OBS, BOX

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        far = (action - self.best) / (BOX.high - BOX.low)
        return np.zeros(3, np.float32), -float(np.abs(far).sum()), True, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("sac", {"batch_size": 64}),
        ("td3", {"batch_size": 64}),
        ("sac", {"encoder": "simba_v2", "batch_size": 32, "replay": {"updates_per_step": 0.6}}),
    ],
    ids=["sac", "td3", "simba_v2"],
)
def test_the_best_action_is_found_and_none_leaves_the_bounds(algorithm: str, settings: Any) -> None:
    import fastrl

    model = fastrl.Model(
        Target,
        algo=algorithm,
        num_envs=4,
        seed=0,
        hidden=[32, 32],
        learning_rate=3e-3,
        collector="sequential",
        device="cpu",
        **(
            settings
            | {"replay": {"learning_starts": 100, "updates_per_step": 1.0} | settings.get("replay", {})}
        ),
    )
    model.learn(1_000)
    action, _ = model.predict(np.zeros(3, np.float32))
    assert (np.abs(action - Target.best) < 0.1 * (BOX.high - BOX.low)).all()
    drawn = model.predict(np.zeros((1000, 3), np.float32), deterministic=False)[0]
    assert (drawn >= BOX.low).all() and (drawn <= BOX.high).all()
    assert Actions(BOX).is_bounded and drawn.std(0).min() > 0
    assert model.evaluate(2)[0] > -0.1
