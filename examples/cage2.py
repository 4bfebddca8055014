"""A defender of CAGE Challenge 2: trained, scored by the challenge's protocol, and used step by step."""

import fastrl
from fastrl.envs import Cage2VectorEnv


def main(timesteps=2_000_000, episodes=200):
    model = fastrl.PPO("cage2", seed=0)  # the settings of `fastrl-train cage2`
    model.learn(timesteps)
    total, _ = model.evaluate(episodes=episodes)
    print(f"total of the challenge, over red agents and horizons: {total:.1f}")

    model.save("defender.safetensors")
    policy = fastrl.load_policy("defender.safetensors")
    games = Cage2VectorEnv(1, red_agent="bline", memory=policy.memory, info_state=True)
    obs, info = games.reset(seed=1)
    for _ in range(10):
        actions = policy.act(obs, deterministic=True, action_mask=games.action_masks())
        obs, rewards, _, _, info = games.step(actions)
        print(
            f"blue action {actions[0]:3d}, reward {rewards[0]:5.1f}, red holds {info['red_access'][0].tolist()}"
        )


if __name__ == "__main__":
    main()
