"""Twelve vehicles that learn to share a highway: one policy for all, then a film of one episode."""

import fastrl
from fastrl.callbacks import VideoRecorder


def main(episodes=800):
    model = fastrl.IPPO("traffic", preset="performance", env__vehicles=12, env__duration=20, seed=0)
    # A film after the first update and one at the end; .mp4 needs pip install '.[render]'.
    film = VideoRecorder(every=10**9, folder="films", suffix=".gif")
    model.learn(total_episodes=episodes, callbacks=[film])
    mean, std = model.evaluate(episodes=20)
    print(f"mean return of an agent: {mean:.1f}, deviation {std:.1f}")


if __name__ == "__main__":
    main()
