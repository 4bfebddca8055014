"""Runs on parallel environments of PettingZoo with action masks, in one that raises when an agent ignores its mask."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel_toys import Leavers, Masked
from test_pettingzoo_run import check_resume, train, training_of

import fastrl
from fastrl.cli.main import main
from fastrl.play.policy import PredictError
from fastrl.utils.errors import UserError

SMALL: dict[str, Any] = {"preset": "smoke", "num_envs": 2, "eval_episodes": 0, "action_masks": True}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fastrl.IPPO, fastrl.MAPPO, fastrl.REINFORCE])
def test_policies_learn_which_of_two_allowed_actions_is_right(algorithm: Any) -> None:
    options = {"num_envs": 8, "num_steps": 32, "learning_rate": 3e-3, "eval_episodes": 0}
    model = algorithm(Masked, action_masks=True, **options)
    # Agents act in 11 / 3 steps of an episode, and are right in half of them.
    assert model.evaluate(40)[0] == pytest.approx(11 / 6, abs=0.3)
    model.learn(4_000)
    assert model.evaluate(40)[0] > 3.2


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "reinforce"])
def test_a_run_that_stops_resumes_to_the_bit(algorithm: str, tmp_path: Path) -> None:
    masks: Any = {f"{algorithm}.action_masks": True}
    make = functools.partial(training_of, "Masked", algorithm, 3, **masks)
    check_resume(make, 3, tmp_path / "stopped", collect__n_workers=2)


def test_a_run_from_the_command_line_is_scored_and_filmed(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "episode.gif"
    assert train(run, "Masked", "--ippo.action-masks", "--total-timesteps=96") == 0
    assert main(["eval", str(run), "--episodes=3", "--trust"]) == 0
    assert main(["render", str(run), f"--out={out}", "--trust"]) == 0
    assert out.stat().st_size > 100


@pytest.mark.parametrize("how", ["infos", "observations"])
def test_predict_and_exports_keep_to_masks(how: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = fastrl.IPPO(Masked, env__options=[f"how={how}"], **SMALL)
    found = fastrl.export(model, tmp_path / "team.onnx", check=True, episodes=3)
    assert found.actions > 3 * 3 * 2 and found.different == 0
    policy, env = fastrl.runtime.load(tmp_path / "team.onnx"), Masked(how)
    obs, _ = env.reset(seed=1)
    while env.agents:
        masks = {agent: env.masks[agent].astype(np.bool_) for agent in env.agents}
        best, _ = model.predict(obs, action_masks=masks)
        assert policy.act(obs, action_masks=masks) == best
        for drawn in (
            model.predict(obs, deterministic=False, action_masks=masks)[0],
            policy.act(obs, False, action_masks=masks),
        ):
            assert all(masks[agent][action] for agent, action in drawn.items())
        obs, *_ = env.step(best)
        obs = {agent: obs[agent] for agent in env.agents}


def test_masks_of_rows_of_agents() -> None:
    model = fastrl.IPPO("fastrl/coop-merge-v0", total_episodes=2, num_envs=2, eval_episodes=0, vehicles=3)
    size = model.policy.team.actions.size  # type: ignore[union-attr]
    obs = np.zeros((5, 3, model.policy.obs_dim), np.float32)
    masks = np.random.default_rng(0).random((5, 3, size)) < 0.5
    masks[..., 1] = True
    actions, _ = model.predict(obs, action_masks=masks)
    assert np.take_along_axis(masks, actions[..., None], -1).all()
    np.testing.assert_array_equal(model.predict(obs[2], action_masks=masks[2])[0], actions[2])
    with pytest.raises(PredictError, match=r"action_masks: expected bool \[5, 3, "):
        model.predict(obs, action_masks=masks[2])


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([True] * 50, "action_masks: expected a dict of the masks of 'a', 'b', got a list"),
        ({"a": np.ones(50, np.bool_)}, "action_masks: expected a dict of the masks of 'a', 'b'"),
        (
            {"a": np.ones(50, np.bool_), "b": np.ones(3)},
            r"action_masks\['b'\]: expected bool \[40\], got float64",
        ),
    ],
)
def test_wrong_masks_are_one_line(masks: Any, message: str) -> None:
    obs, _ = Masked().reset(seed=0)
    with pytest.raises(PredictError, match=message):
        fastrl.IPPO(Masked, **SMALL).predict(obs, action_masks=masks)


def test_continuous_actions_have_no_masks() -> None:
    with pytest.raises(UserError, match="action masks are for discrete actions: set action_masks to false"):
        fastrl.IPPO(Leavers, env__options=["continuous=true"], **SMALL)
