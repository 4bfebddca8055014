"""A CartPole agent: trained, scored, saved, and used."""

import gymnasium

import fastrl

if __name__ == "__main__":
    model = fastrl.PPO("CartPole-v1", seed=0)
    model.learn(100_000)
    print("mean and standard deviation of the return:", model.evaluate(episodes=20))

    model.save("cartpole.safetensors")
    model = fastrl.load("cartpole.safetensors")
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    print("the first action:", model.predict(obs)[0])
