"""The cross-entropy method: each episode has a linear policy of its own, the mean plus noise from its stream."""

import functools

import numpy as np

from fastrl.algorithms.protocol import Algorithm
from fastrl.utils.config import section
from fastrl.utils.seeding import act_stream

noise = functools.lru_cache(1000)(lambda stream, size: np.random.default_rng(stream).standard_normal(size))


class LinearActor:
    def __init__(self, *shape):
        self.shape, self.weights_nbytes, self.state_size = shape, 8 * shape[0] * shape[1], 0

    def load(self, weights):
        self.mean, self.std = np.frombuffer(weights, np.float32).reshape(2, -1).copy()

    def act(self, obs, streams, steps, actions, log_probs, masks=None, states=None, *, greedy=False):
        scaled = [noise(int(stream), self.mean.size) * (0 if greedy else self.std) for stream in streams]
        actions[:] = np.einsum("kd,kda->ka", obs, (self.mean + scaled).reshape(-1, *self.shape)).argmax(-1)


@section
class CEMConfig:
    num_steps: int = 100
    population: int = 40


class CEM(Algorithm):
    name, summary, config_type, learns_from = "cem", "the cross-entropy method", CEMConfig, "rollouts"
    obs_kinds, action_kinds = frozenset({"vector"}), frozenset({"discrete"})
    weights_nbytes = property(lambda self: 4 * self.mean_std.size)

    def __init__(self, config, problem):
        self.config, self.seed, self.steps = config, problem.seed, 0
        self.shape = problem.obs_dim, int(problem.action_space.n)
        self.mean_std = np.stack([np.zeros(np.prod(self.shape)), np.ones(np.prod(self.shape))])
        self.ended = []  # return, environment and number of each episode of this generation

    def actor_spec(self):
        return functools.partial(LinearActor, *self.shape)

    def write_weights(self, out):
        np.frombuffer(out, np.float32)[:] = self.mean_std.ravel()

    def update(self, fragments, watch):
        for each in fragments:
            self.steps += len(each)
            self.ended += np.column_stack([each.returns, each.episodes]).tolist()
        if len(self.ended) >= self.config.population:
            elites = sorted(self.ended, reverse=True)[: len(self.ended) // 5]
            mean, std = self.mean_std
            z = np.stack([noise(act_stream(self.seed, *episode), mean.size) for _, *episode in elites])
            self.mean_std, self.ended = np.stack([mean + std * z.mean(0), std * z.std(0) + 0.02]), []

    def metrics(self):
        return {"std": float(self.mean_std[1].mean())}

    def policy_state(self):
        return {"mean_std": self.mean_std.tolist(), "shape": self.shape}

    @classmethod
    def make_actor(cls, policy, obs_space, action_space):
        actor = LinearActor(*policy["shape"])
        actor.load(np.float32(policy["mean_std"]))
        return actor

    def load_policy(self, state):
        self.mean_std = np.array(state["policy"]["mean_std"])
        return []

    def state_dict(self):
        return {"policy": self.policy_state(), "steps": self.steps, "ended": self.ended}

    def load_state_dict(self, state):
        self.load_policy(state)
        self.steps, self.ended = state["steps"], state["ended"]
