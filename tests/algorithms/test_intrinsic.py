"""Random network distillation: rewards for what is new, beside those of the environment."""

import copy
import functools
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from corridor import Corridor
from fake_env import Constant
from fragments import Rows, parts, whole_episodes
from gymnasium.spaces import Box, Discrete
from small_runs import differences, run_cli, trainer_of, untimed_state
from space_cases import OBS_SPACES

import fastrl
from fastrl.algorithms.intrinsic import RND, next_rows
from fastrl.algorithms.intrinsic_settings import IntrinsicConfig
from fastrl.algorithms.protocol import Problem
from fastrl.envs.rows import ObsRows
from fastrl.networks.actor_critic import ActorCritic
from fastrl.rollout.fragment import Fragment
from fastrl.runs.checkpoint import load_checkpoint, save_checkpoint
from fastrl.runs.errors import TrainError

GAMMA = 0.99
PLACE = Box(-1, 1, (1,))


def rnd_of(space: Any = PLACE, num_envs: int = 3, num_agents: int = 1, **settings: Any) -> RND:
    config = IntrinsicConfig(kind="rnd", **{"predictor_hidden": (16,), **settings})
    return RND(config, Problem(space, Discrete(2), num_envs, 1_000, num_agents=num_agents))


def fragments(count: int, num_steps: int = 7, num_envs: int = 3, episode_length: int = 4) -> list[Fragment]:
    """Fragments of the same rows, one after the other, of observations that are all different."""
    rows = Rows(Constant(num_envs=num_envs, episode_length=episode_length))
    policy = ActorCritic(1, 2, (), generator=torch.Generator())
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        fragment = rows.play(policy, num_steps)
        fragment.obs[:] = rng.normal(size=fragment.obs.shape)
        fragment.final_obs[:] = rng.normal(size=fragment.final_obs.shape)
        fragment.rewards[:] = rng.normal(size=fragment.rewards.shape)
        found.append(fragment)
    return found


def slow_next(fragment: Fragment) -> np.ndarray[Any, Any]:
    ended = fragment.terminations | fragment.truncations
    return np.array(
        [
            [
                fragment.final_obs[t, r] if ended[t, r] else fragment.obs[t + 1, r]
                for r in range(fragment.num_rows)
            ]
            for t in range(fragment.num_steps)
        ]
    )


def test_rewards_are_errors_over_the_deviation_of_their_discounted_sums() -> None:
    rnd, sums, all_sums = rnd_of(coef=0.5), np.zeros(3), []
    for fragment in fragments(3):
        # The networks before they learn from the fragment, with the statistics after it.
        network = copy.deepcopy(rnd.network)
        [found] = rnd.rewarded([fragment])
        rows = torch.from_numpy(slow_next(fragment))
        network.observe(rows.flatten(0, 1))
        with torch.no_grad():
            errors = network(rows.flatten(0, 1)).view(7, 3).numpy()
        for each in errors:  # ends of episodes do not reset the sums
            sums = GAMMA * sums + each
            all_sums.append(sums)
        expected = fragment.rewards + 0.5 * errors / np.std(all_sums)
        np.testing.assert_allclose(found.rewards, expected, rtol=1e-4, atol=1e-5)
        assert found.rewards.dtype == np.float32 and found.obs is fragment.obs
        mean = rnd.metrics()["intrinsic_reward"]
        assert mean == pytest.approx((expected - fragment.rewards).mean(), rel=1e-3)


def test_observations_are_whitened_and_clipped() -> None:
    rows = torch.randn((50, 1), generator=torch.Generator().manual_seed(0)) * 7 + 3
    whitened, plain = rnd_of(obs_clip=0.5).network, rnd_of(obs_clip=None).network
    plain.load_state_dict({name: each for name, each in whitened.state_dict().items() if "norm" not in name})
    for network in (whitened, plain):
        network.observe(rows)
    seen = ((rows - rows.mean()) / rows.std(correction=0)).clamp(-0.5, 0.5)
    torch.testing.assert_close(whitened(rows), plain(seen))


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1, 1)])
def test_the_division_into_fragments_changes_no_bit(sizes: tuple[int, ...]) -> None:
    one, several = rnd_of(predictor_share=0.5), rnd_of(predictor_share=0.5)
    for fragment in fragments(2):
        [whole] = one.rewarded([fragment])
        found = several.rewarded(parts(fragment, *sizes))
        assert np.array_equal(np.concatenate([each.rewards for each in found], 1), whole.rewards)
    assert differences(one.state_dict(), several.state_dict()) == []


def test_whole_episodes_are_rewarded_each_by_itself() -> None:
    [fragment] = fragments(1, num_steps=8)
    episodes = whole_episodes(fragment)
    # One that is shorter than the others, as they may be.
    episodes += whole_episodes(fragments(1, num_steps=3, num_envs=1, episode_length=3)[0])
    rnd = rnd_of(coef=1.0)
    network = copy.deepcopy(rnd.network)
    found = rnd.rewarded(episodes)
    added = [after.rewards - before.rewards for after, before in zip(found, episodes, strict=True)]
    rows = [torch.from_numpy(slow_next(each)).flatten(0, 1) for each in episodes]
    network.observe(torch.cat(rows))
    sums, errors = [], [network(each).detach().numpy() for each in rows]
    for each in errors:
        total = 0.0
        for error in each:
            total = GAMMA * total + error
            sums.append(total)
    for bonus, error in zip(added, errors, strict=True):
        np.testing.assert_allclose(bonus[:, 0], error / np.std(sums), rtol=1e-3, atol=1e-5)


def test_of_many_agents_those_that_acted_are_rewarded() -> None:
    steps, envs, agents = 5, 2, 3
    rng = np.random.default_rng(1)
    alive = rng.random((steps + 1, envs, agents)) < 0.7
    ends = rng.random((steps, envs)) < 0.3
    nothing = np.zeros((steps, envs, agents), bool)
    fragment = Fragment(
        obs=rng.normal(size=(steps + 1, envs, agents, 1)).astype(np.float32),
        actions=np.zeros((steps, envs, agents), np.int64),
        log_probs=np.zeros((steps, envs, agents), np.float32),
        rewards=np.zeros((steps, envs, agents), np.float32),
        terminations=nothing,
        truncations=nothing,
        final_obs=rng.normal(size=(steps, envs, agents, 1)).astype(np.float32),
        version=1,
        env_indices=np.arange(envs),
        returns=np.zeros(0),
        lengths=np.zeros(0, np.int64),
        episodes=np.zeros((0, 2), np.int64),
        alive=alive,
        ends=ends,
    )
    rows, counts = next_rows(fragment)
    for t, env, agent in np.ndindex(steps, envs, agents):
        assert counts[t, env, agent] == (alive[t, env, agent] and (ends[t, env] or alive[t + 1, env, agent]))
        expected = fragment.final_obs[t, env, agent] if ends[t, env] else fragment.obs[t + 1, env, agent]
        assert (rows[t, env, agent] == expected).all()
    rnd = rnd_of(num_envs=envs, num_agents=agents)
    nobody = replace(fragment, alive=np.zeros_like(alive))
    assert rnd.rewarded([nobody]) == [nobody]
    [found] = rnd.rewarded([fragment])
    assert ((found.rewards > 0) == counts).all()


def test_a_minibatch_of_a_replay_is_rewarded_by_what_is_known_now() -> None:
    rnd = rnd_of(Box(-1, 1, (4,)), coef=2.0)
    generator, all_errors = torch.Generator().manual_seed(0), list[torch.Tensor]()
    for _ in range(3):
        # Two frames, as stacked ones come.
        batch = SimpleNamespace(next_obs=torch.randn((20, 2, 2), generator=generator), rewards=torch.ones(20))
        network = copy.deepcopy(rnd.network)
        network.observe(batch.next_obs.flatten(1))
        all_errors.append(network(batch.next_obs.flatten(1)).detach())
        assert rnd.rewarded(batch) is batch
        deviation = torch.cat(all_errors).std(correction=0)
        torch.testing.assert_close(batch.rewards, 1 + 2 * all_errors[-1] / deviation, rtol=1e-4, atol=1e-5)
    assert rnd.metrics()["predictor_loss"] == pytest.approx(torch.cat(all_errors).mean().item(), rel=1e-3)


@pytest.mark.parametrize("obs", ["vector", "image", "dict with image", "discrete"])
def test_what_was_seen_is_new_no_more_and_the_rest_is(obs: str) -> None:
    space = OBS_SPACES[obs]
    obs_rows = ObsRows(space)
    space.seed(0)
    drawn = np.zeros((2, 8, obs_rows.size), obs_rows.dtype)
    for place in np.ndindex(2, 8):
        obs_rows.write(space.sample(), drawn[place])
    known, new = torch.from_numpy(drawn)
    rnd = rnd_of(space, predictor_learning_rate=5e-3)
    errors = []
    for _ in range(40):
        rnd.rewarded(SimpleNamespace(next_obs=known, rewards=torch.zeros(8)))
        errors.append([rnd.network(each).mean().item() for each in (known, new)])
    assert errors[-1][0] < 0.2 * errors[0][0]
    # Of discrete observations there are too few for new ones.
    assert obs == "discrete" or errors[-1][1] > 2 * errors[-1][0]


ALGORITHMS = {
    "ppo": ["--ppo.num-steps=8", "--ppo.minibatch-size=16", "--ppo.num-epochs=1", "--ppo.hidden=8"],
    "dqn": [
        "--replay.capacity=100",
        "--replay.learning-starts=16",
        "--replay.save",
        "--dqn.batch-size=8",
        "--dqn.hidden=8",
    ],
}


def small(algorithm: str, *options: str, obs: str = "vector") -> Any:
    env = ["--env=space_cases:AnySpaces", "--env.options", f"obs={obs}", "actions=discrete"]
    common = ["--num-envs=2", "--collector=sequential", "--total-timesteps=64", "--run.row-seconds=0"]
    common += ["--run.eval-episodes=0", "--device=cpu", "--intrinsic.predictor-hidden=8"]
    return trainer_of("gym", f"--algo={algorithm}", *env, *common, *ALGORITHMS[algorithm], *options)


@pytest.mark.parametrize(("algorithm", "obs"), [("ppo", "dict with image"), ("dqn", "vector")])
def test_a_stopped_run_resumes_to_the_bit(algorithm: str, obs: str, tmp_path: Any) -> None:
    straight = small(algorithm, "--intrinsic=rnd", obs=obs)
    list(straight.rows())
    first = small(algorithm, "--intrinsic=rnd", obs=obs)
    rows = first.rows()
    list(islice(rows, 6 if algorithm == "dqn" else 2))
    rows.close()
    save_checkpoint(tmp_path / "state", first.state_dict())
    first.source.save_files(tmp_path)
    second = small(algorithm, "--intrinsic=rnd", obs=obs)
    second.source.load_files(tmp_path)
    second.load_state_dict(load_checkpoint(tmp_path / "state"))
    list(second.rows())
    assert second.iteration == straight.iteration > first.iteration
    found, expected = (untimed_state(each.state_dict()) for each in (second, straight))
    for part in ("learner", "intrinsic"):
        assert differences(found[part], expected[part]) == []
    with pytest.raises(ValueError, match="weights"):
        small(algorithm, "--intrinsic=rnd", "--intrinsic.predictor-hidden=9", obs=obs).load_state_dict(found)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_sum_of_both_rewards_is_what_is_learned_from(algorithm: str) -> None:
    options = ["--no-normalize-returns"] if algorithm == "ppo" else []
    trainer, without = small(algorithm, "--intrinsic=rnd", "--coef=50", *options), small(algorithm, *options)
    row, plain = ([row.record() for row in each.rows()][-1] for each in (trainer, without))
    assert row["train/intrinsic_reward"] > 5 and "train/intrinsic_reward" not in plain
    assert "intrinsic" not in without.state_dict()
    if algorithm == "ppo":
        rollouts = [each.algorithm.rollout for each in (trainer, without)]
        added = rollouts[0].rewards.mean() - rollouts[1].rewards.mean()
        assert added > 5 and rollouts[0].returns.mean() > rollouts[1].returns.mean() + added
    else:
        assert row["train/td_error"] > plain["train/td_error"] + 0.9 * row["train/intrinsic_reward"]


def test_what_has_no_intrinsic_rewards_refuses_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrainError, match="--intrinsic rnd is for runs without stages"):
        fastrl.Model("CartPole-v1", algo="ppo", intrinsic="rnd", stages=("512 ppo.gamma=0.9",))
    for command in (["CartPole-v1", "--algo=bc"], ["cage2-workflow"]):
        code, _, err = run_cli(capsys, "train", *command, "--intrinsic=rnd")
        assert code == 2 and "--intrinsic" in err and len(err.strip().splitlines()) <= 2


@pytest.mark.learning
@pytest.mark.parametrize(("intrinsic", "expected"), [("none", 0.0), ("rnd", 1.0)])
def test_a_goal_that_chance_does_not_reach_is_found(intrinsic: str, expected: float) -> None:
    model = fastrl.Model(
        functools.partial(Corridor, length=80, most_steps=160),
        algo="ppo",
        intrinsic=intrinsic,
        coef=0.05,
        predictor_hidden=(64,),
        predictor_learning_rate=3e-4,
        normalize_obs=False,
        normalize_returns=False,
        num_envs=8,
        num_steps=64,
        minibatch_size=128,
        num_epochs=4,
        hidden=(32,),
        learning_rate=1e-3,
        total_timesteps=60_000,
        seed=0,
        device="cpu",
        collector="sequential",
        eval_episodes=0,
    )
    model.learn(progress=False)
    assert model.evaluate(5)[0] == expected
