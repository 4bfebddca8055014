"""Films of a run in traffic, as `fastrl.training.video_recorder.VideoRecorder` makes them."""

from collections.abc import Iterator, Mapping
from typing import Any

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.networks.multi_agent import MultiAgentPolicy
from fastrl.tasks.traffic.render import Moment, moments, pictures
from fastrl.training.film import Films, Picture
from fastrl.training.play import team_seeds


class TrafficFilms(Films):
    """Films of traffic, at real speed.

    Args:
        env: one environment, see `make_env`; closed with this.
    """

    fps = 25.0

    def __init__(self, env: MultiAgentVectorEnv) -> None:
        self._env = env

    def play(
        self, state: Mapping[str, Any], episodes: int, seed: int
    ) -> Iterator[tuple[int, Picture, float]]:
        """See `Films.play`; episodes have the seeds that ``fastrl eval`` uses too. All pictures of a step but the last
        come without its reward."""
        policy = MultiAgentPolicy.from_state(state["policy"])
        rewards: list[tuple[int, float]] = []

        def watched() -> Iterator[Moment]:
            for moment in moments(self._env, policy.act, team_seeds(seed, episodes)):
                if moment.reward is not None:
                    rewards.append((moment.episode, float(moment.reward.mean())))
                yield moment

        episode = 0
        for picture in pictures(watched(), self._env.view, fps=self.fps, speed=1.0):
            reward = 0.0
            while rewards:
                episode, each = rewards.pop(0)
                reward += each
            yield episode, picture, reward

    def close(self) -> None:
        self._env.close()
