"""Films, predictions and evaluations of every kind of run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from parallel_toys import Leavers
from PIL import Image

import fastrl
from fastrl.callbacks import VideoRecorder
from fastrl.cli.main import main
from fastrl.envs.spec import as_spec
from fastrl.networks.q_network import QNetwork
from fastrl.play.episodes import EnvEpisodes, build_env
from fastrl.play.film import drawing_env
from fastrl.runs.errors import HookError, TrainError
from fastrl.utils.errors import UserError
from fastrl.utils.video import text_picture, text_shape

CATCH: dict[str, Any] = {
    "num_envs": 2,
    "n_workers": 1,
    "capacity": 2000,
    "learning_starts": 64,
    "overlap": False,
    "eval_episodes": 2,
}
ORDER = "op_server,enterprise,op_host,defender,user"
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "collector": "sequential", "eval_episodes": 2}


class Drawn(Leavers):
    """Draws how far an episode is."""

    metadata = {"name": "drawn", "render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((16, 16, 3), self.t, np.uint8)


def masked(allowed: int = 1, rewarded: int = 1) -> gymnasium.Env[Any, Any]:
    """Allows one action only, and rewards one."""

    class Masked(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(0, 1, (2,), np.float32), Discrete(3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(2, np.float32), float(action == rewarded), False, self.t == 5, {}

        def action_masks(self) -> Any:
            return np.arange(3) == allowed

    return Masked()


def masked_first() -> gymnasium.Env[Any, Any]:
    return masked(0, 0)


def masked_last() -> gymnasium.Env[Any, Any]:
    return masked(2, 2)


def catch() -> fastrl.Model:
    return fastrl.DQN("fastrl/Catch-v0", **CATCH)


def workflow() -> fastrl.Model:
    return fastrl.Model(
        "cage2-workflow",
        total_episodes=60,
        plain_ppo=False,
        workflow=ORDER,
        episodes_per_update=20,
        measured_episodes=20,
        eval_episodes=1,
    )


MAKERS: dict[str, tuple[Callable[[], fastrl.Model], int | None]] = {
    "dqn": (lambda: fastrl.DQN("CartPole-v1", num_envs=2, collector="sequential", eval_episodes=2), 64),
    "frames": (catch, 100),
    "stacked": (lambda: fastrl.PPO("fastrl/Catch-v0", **SMALL), 64),
    "cage2": (lambda: fastrl.PPO("cage2", num_envs=2, episode_length=30, eval_episodes=1), 60),
    "workflow": (workflow, None),
    "traffic": (
        lambda: fastrl.IPPO("fastrl/coop-merge-v0", total_episodes=2, num_envs=2, eval_episodes=2),
        None,
    ),
    "pettingzoo": (lambda: fastrl.IPPO("test_play:Drawn", num_envs=2, num_steps=8), 16),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("traffic", "workflow") else ())
        for name in MAKERS
    ],
)
def test_every_run_is_filmed_on_the_way_and_afterwards(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    make, steps = MAKERS[name]
    run = tmp_path / "run"
    model = make()
    model.learn(steps, callbacks=[VideoRecorder(10**6, suffix=".gif")], run_dir=run)
    films = sorted((run / "videos").iterdir())
    assert films[-1].name == f"step-{model.steps:012d}.gif"
    mean, std = model.evaluate(episodes=2)
    assert np.isfinite([mean, std]).all()
    out = tmp_path / "film.gif"
    assert main(["render", str(run), "--trust", f"--out={out}", "--seed=0"]) == 0
    with Image.open(out) as later, Image.open(films[-1]) as before:
        assert (later.size, later.n_frames) == (before.size, before.n_frames)  # type: ignore[attr-defined]
    assert main(["eval", str(run), "--trust", "--episodes=2", "--json"]) == 0


def test_dqn_predicts_from_stacked_frames(tmp_path: Path) -> None:
    # This seed's policy chooses several actions.
    model = fastrl.DQN("fastrl/Catch-v0", **CATCH, seed=1).learn(100, run_dir=tmp_path / "run")
    env = model.env_spec.make()
    obs, _ = env.reset(seed=0)
    assert obs.shape == (10, 10, 2)
    rng = np.random.default_rng(0)
    batch = rng.integers(0, 256, (50, 10, 10, 2)).astype(np.uint8)
    actions, state = model.predict(batch)
    assert state is None and len(set(actions.tolist())) > 1
    network = QNetwork.from_state(model.trainer.policy_checkpoint()["policy"])

    first = torch.from_numpy(np.moveaxis(batch, -1, 1).copy())
    assert actions.tolist() == network(first).argmax(1).tolist()
    assert [model.predict(each)[0] for each in batch] == actions.tolist()
    loaded = fastrl.load(tmp_path / "run")
    assert loaded.predict(batch)[0].tolist() == actions.tolist()
    with pytest.raises(UserError, match=r"expected shape \[10, 10, 2\] for one observation"):
        model.predict(obs[..., 0])


def test_an_evaluation_plays_as_predict_does() -> None:
    model = catch().learn(100)
    env = model.env_spec.make()
    returns = []
    for number in np.random.SeedSequence([0, 1]).generate_state(3):
        obs, _ = env.reset(seed=int(number))
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(model.predict(obs)[0])
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    assert model.evaluate(3) == pytest.approx((np.mean(returns), np.std(returns, ddof=1)))


@pytest.mark.slow
def test_a_workflow_predicts_in_the_challenge(tmp_path: Path) -> None:
    model = workflow()
    with pytest.raises(UserError, match="not tried a workflow yet"):
        model.predict(np.zeros(52, np.float32))
    model.learn(run_dir=tmp_path / "run")
    env = model.env_spec.make()
    obs, _ = env.reset(seed=0)
    policy = fastrl.load_policy(tmp_path / "run")
    for _ in range(20):
        action, _ = model.predict(obs)
        # The environment has the actions that the policy uses, the challenge has all.
        assert policy.actions[action] == policy.act(np.float32(obs))
        obs, *_ = env.step(action)


def test_teams_have_no_single_environment() -> None:
    with pytest.raises(TrainError, match="environments of several agents"):
        _ = fastrl.IPPO("fastrl/coop-merge-v0", total_episodes=2).env_spec


@pytest.mark.parametrize("factory", ["masked_first", "masked_last"])
@pytest.mark.parametrize("algorithm", [fastrl.PPO, fastrl.DQN])
def test_an_evaluation_keeps_to_action_masks(algorithm: Any, factory: str) -> None:
    options: dict[str, Any] = {"num_envs": 2, "collector": "sequential"}
    model = algorithm(f"test_play:{factory}", action_masks=True, **options)
    # The best of all actions may be another one, the best of those that are allowed is rewarded.
    assert model.evaluate(3) == (5.0, 0.0)


def test_without_masks_an_environment_is_played_without() -> None:
    env = build_env(as_spec("test_play:masked_first").as_rows())

    class Second:
        state_size = 0

        def act(self, obs: Any, streams: Any, steps: Any, actions: Any, *others: Any, **options: Any) -> None:
            assert others[1] is None
            actions[:] = 1

    actor: Any = Second()
    assert EnvEpisodes(env, "masked", actor).returns(2, 0, 10) == (0.0, 0.0)


@pytest.mark.slow
def test_the_device_of_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fastrl.PPO("fastrl/Catch-v0", **SMALL).learn(64, run_dir=tmp_path / "run")
    scores = []
    for options in ([], ["--device=cpu"]):
        assert main(["eval", str(tmp_path / "run"), "--episodes=2", "--json", *options]) == 0
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0] == scores[1]


def test_an_environment_that_was_made_without_a_render_mode_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    env = gymnasium.make("CartPole-v1")
    model = fastrl.PPO(env, **SMALL)
    with pytest.raises(TrainError, match="made without a render mode: make it with render_mode='rgb_array'"):
        model.learn(32, callbacks=[VideoRecorder()])
    with pytest.raises(TrainError, match="neither render mode, rgb_array or ansi"):
        drawing_env(as_spec("test_play:masked_first"))


class Fragile(gymnasium.Env[Any, Any]):
    """Fails in the third step of an episode that is drawn."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space, action_space = Box(0, 1, (2,), np.float32), Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.t = render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        if self.t == 3 and self.render_mode is not None:
            raise ZeroDivisionError("glass")
        return np.zeros(2, np.float32), 0.0, False, self.t == 5, {}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


def test_an_environment_that_fails_in_a_film_is_to_blame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    model = fastrl.PPO("test_play:Fragile", **SMALL).learn(32, run_dir=run)
    assert main(["render", str(run), "--trust", f"--out={tmp_path / 'a.gif'}", "--seed=7"]) == 1
    printed = capsys.readouterr().err
    assert (
        "test_play:Fragile failed at step 3 of the episode that reset(seed=7) started: ZeroDivisionError: glass"
        in printed
    )
    assert "checkpoint" not in printed
    # The run itself is saved.
    with pytest.raises(HookError, match=r"callback VideoRecorder failed: .* ZeroDivisionError: glass"):
        model.learn(32, run_dir=run, callbacks=[VideoRecorder(suffix=".gif")])
    assert fastrl.load(run, trust=True).steps == model.steps > 32


def test_text_becomes_pictures_of_one_size() -> None:
    shape = text_shape("ab\n\x1b[31mred\x1b[0m")
    assert shape == (3, 5)
    picture, longer = text_picture("ab\n\x1b[31mred\x1b[0m", shape), text_picture("x" * 99, shape)
    assert picture.shape == longer.shape and picture.dtype == np.uint8 and picture.any()
    assert (text_picture("ab\nred", shape) == picture).all()
