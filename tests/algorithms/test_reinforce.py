"""REINFORCE: learning to a known optimum, its gradient against automatic differentiation, exact resumption."""

import io

import numpy as np
import pytest
import torch
from multi_agent_run import Run, problem_of
from team_env import TeamEnv

from fastrl.algorithms.ppo_loss import log_probs_of
from fastrl.algorithms.reinforce import REINFORCE, REINFORCEConfig


def reinforce_for(env, *, seed=0, total_updates=60, **config):
    options = {"num_steps": 16, "hidden": (32, 32), "minibatch_size": 512, "learning_rate": 5e-3, **config}
    problem = problem_of(env, total_updates, options["num_steps"], seed)
    return Run(REINFORCE(REINFORCEConfig(**options), problem), env)


@pytest.mark.parametrize(
    ("critic", "box"),
    [
        ("own", True),
        ("central", False),
        pytest.param("own", False, marks=pytest.mark.slow),
        pytest.param("central", True, marks=pytest.mark.slow),
    ],
)
def test_learns_to_the_known_optimum(critic, box):
    env = TeamEnv(32, 3, box=box)
    # Discounted little, walking any one way would be better than dithering, and whole returns soon find that.
    episodes, rows = reinforce_for(env, critic=critic, gamma=0.7).train()
    assert episodes["return_mean"].mean() == pytest.approx(env.best_return(), abs=0.08)
    assert rows[-1]["gradient_steps"] == 1 and rows[-1]["clip_fraction"] == 0


@pytest.mark.parametrize("box", [False, True])
def test_its_step_is_along_the_policy_gradient(box, monkeypatch):
    """Of the mean over living agents of log pi(a) (return - baseline), in chunks."""
    monkeypatch.setattr("fastrl.networks.multi_agent.CHUNK", 37)
    env = TeamEnv(8, 3, box=box)
    run = reinforce_for(env, entropy_coef=0.0, normalize_advantages="none", max_grad_norm=1e9)
    trained = run.learner.actors["shared"]
    seen = []
    step = trained.step
    monkeypatch.setattr(trained, "step", lambda *args: seen.append(trained.gradient.clone()) or step(*args))
    run.collect()
    actor = trained.network
    before = [parameter.detach().clone() for parameter in actor.parameters()]
    run.update()
    rollout = run.learner.rollout
    for parameter, value in zip(actor.parameters(), before, strict=True):
        parameter.data.copy_(value)
    rows = torch.from_numpy(np.flatnonzero(rollout.alive[:-1]))
    outputs = actor(rollout.flat("obs")[rows], rows % 3)
    log_probs = log_probs_of(outputs, actor.log_std, rollout.flat("actions")[rows])
    loss = -(log_probs * rollout.flat("advantages")[rows]).mean()
    expected = torch.autograd.grad(loss, list(actor.parameters()))
    torch.testing.assert_close(
        seen[0], torch.cat([each.flatten() for each in expected]), atol=1e-6, rtol=1e-4
    )


def test_returns_are_whole():
    """With a baseline of zero, advantages are the sums of rewards to the end of each agent's life."""
    env = TeamEnv(4, 2, horizon=4)
    run = reinforce_for(
        env, gamma=1.0, num_steps=4, normalize_rewards=False, normalize_advantages="none", critic="own"
    )
    for trained in run.learner.critics.optimizers.values():
        trained.vector.data.zero_()
    run.collect()
    run.update()
    rollout = run.learner.rollout
    ended = rollout.terminations | rollout.truncations
    for row in range(8):
        first = np.flatnonzero(ended[:, row])[0]
        np.testing.assert_allclose(
            rollout.advantages[0, row], rollout.rewards[: first + 1, row].sum(), rtol=1e-5
        )


def test_resumes_to_the_bit():
    env = TeamEnv(8, 3)
    whole = reinforce_for(env, dropout=0.1)
    whole.train(2)
    state, buffer = whole.state_dict(), io.BytesIO()
    torch.save(state["learner"], buffer)
    buffer.seek(0)
    _, expected = whole.train(2)
    diverged = reinforce_for(TeamEnv(8, 3), dropout=0.1)
    diverged.train(1)
    other = Run(diverged.learner, TeamEnv(8, 3))
    other.load_state_dict({**state, "learner": torch.load(buffer, weights_only=True)})
    assert other.train(2)[1] == expected
    for name, vector in ((n, t.vector) for n, t in whole.learner.actors.items()):
        assert torch.equal(other.learner.actors[name].vector, vector)


def test_a_policy_that_never_acts_takes_no_step():
    env = TeamEnv(4, 2)
    env.set_difficulty(num_agents=1)
    run = reinforce_for(env, share=False, critic="own")
    before = run.learner.actors["agent1"].vector.detach().clone()
    _, rows = run.train(2)
    assert rows[-1]["gradient_steps"] == 1
    assert torch.equal(run.learner.actors["agent1"].vector, before)
