"""Small vector environments in numpy with the native interface, whose best policies and values are known."""

import pickle

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode


class FakeVectorEnv:
    """The common base: SAME_STEP autoreset, a fixed time limit, action masks, save and restore.

    A subclass keeps its state in ``self.state`` (int64 [N], written in place), and defines the first state, the step
    and the observation.
    """

    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, num_envs, obs_dim, num_actions, episode_length, *, stagger=False):
        self.num_envs = num_envs
        self.single_observation_space = Box(-np.inf, np.inf, (obs_dim,), np.float32)
        self.single_action_space = Discrete(num_actions)
        self.episode_length = episode_length
        self.stagger = stagger
        self.state = np.zeros(num_envs, np.int64)
        self.age = np.zeros(num_envs, np.int64)
        self.rng = None
        self.seeds = None

    def first_state(self, count):
        return np.zeros(count, np.int64)

    def advance(self, actions):
        """Changes ``self.state``; returns rewards and terminations."""
        raise NotImplementedError

    def observe(self, out):
        raise NotImplementedError

    def allowed(self, out):
        out[:] = True

    def reset_into(self, obs, *, seed=None, reset_mask=None):
        self.seeds = seed
        self.rng = np.random.default_rng(seed)
        self.state[:] = self.first_state(self.num_envs)
        # Staggered episodes end at different times, the others all at once.
        self.age[:] = np.arange(self.num_envs) % self.episode_length if self.stagger else 0
        self.observe(obs)

    def step_into(self, actions, obs, rewards, terminations, truncations, final_obs=None):
        assert actions.dtype == self.single_action_space.dtype
        space = self.single_action_space
        low, high = (space.low, space.high) if isinstance(space, Box) else (0, space.n - 1)
        assert np.all((low <= actions) & (actions <= high))
        rewards[:], terminations[:] = self.advance(actions)
        self.age += 1
        truncations[:] = self.age >= self.episode_length
        self.observe(obs)
        ended = terminations | truncations
        final_obs[ended] = obs[ended]
        self.state[ended] = self.first_state(ended.sum())
        self.age[ended] = 0
        self.observe(obs)

    def action_masks(self, out=None):
        out = np.empty((self.num_envs, self.single_action_space.n), np.bool_) if out is None else out
        self.allowed(out)
        return out

    def save_state(self):
        return pickle.dumps((self.state, self.age, self.rng))

    def load_state(self, state):
        saved_state, saved_age, self.rng = pickle.loads(state)
        self.state[:], self.age[:] = saved_state, saved_age


class Bandit(FakeVectorEnv):
    """A contextual bandit: each of ``contexts`` contexts has one right action with reward 1; the others give 0.

    The best return is ``episode_length``. With ``masked``, half the actions are allowed in each context, and
    a forbidden one would give 10.
    """

    def __init__(self, num_envs=16, contexts=4, num_actions=6, episode_length=10, *, masked=False, **kwargs):
        super().__init__(num_envs, contexts, num_actions, episode_length, **kwargs)
        self.contexts = contexts
        self.masked = masked

    def first_state(self, count):
        return self.rng.integers(self.contexts, size=count)

    def forbidden(self):
        """Bool [N, num_actions]; never the right action."""
        distance = (np.arange(self.single_action_space.n) - self.state[:, None]) % self.single_action_space.n
        return distance >= self.single_action_space.n // 2

    def advance(self, actions):
        rewards = (actions == self.state).astype(np.float64)
        if self.masked:
            rewards[self.forbidden()[np.arange(self.num_envs), actions]] = 10
        self.state[:] = self.first_state(self.num_envs)
        return rewards, np.zeros(self.num_envs, bool)

    def observe(self, out):
        out[:] = np.eye(self.contexts, dtype=np.float32)[self.state]

    def allowed(self, out):
        out[:] = ~self.forbidden() if self.masked else True


class Dial(FakeVectorEnv):
    """A contextual bandit of continuous actions: in context i a step costs the squared distance of the two numbers from
    ``targets[i]``, in units of half their ranges. The best return is 0.
    """

    targets = np.array([[3.0, -60.0], [4.0, 0.0], [5.5, 45.0]], np.float32)

    def __init__(self, num_envs=16, episode_length=10, **kwargs):
        super().__init__(num_envs, len(self.targets), 1, episode_length, **kwargs)
        self.single_action_space = Box(np.float32([2, -90]), np.float32([6, 90]))

    def first_state(self, count):
        return self.rng.integers(len(self.targets), size=count)

    def advance(self, actions):
        distance = (actions - self.targets[self.state]) / np.float32([2, 90])
        self.state[:] = self.first_state(self.num_envs)
        return -np.square(distance).sum(1), np.zeros(self.num_envs, bool)

    def observe(self, out):
        out[:] = np.eye(len(self.targets), dtype=np.float32)[self.state]


class Corridor(FakeVectorEnv):
    """A corridor of ``length`` places; each step costs 1; the episode terminates at the right end.

    Actions: left, right. The best return is ``1 - length``. A learner that treats the end as a truncation, or
    bootstraps there, has no reason to move.
    """

    def __init__(self, num_envs=16, length=5, episode_length=30, **kwargs):
        super().__init__(num_envs, length, 2, episode_length, **kwargs)
        self.length = length

    def advance(self, actions):
        self.state += 2 * actions - 1
        np.maximum(self.state, 0, out=self.state)
        return -np.ones(self.num_envs), self.state == self.length - 1

    def observe(self, out):
        out[:] = np.eye(self.length, dtype=np.float32)[self.state]


class Constant(FakeVectorEnv):
    """Reward -1 each step. The observation is 3 right after a reset, 5 at the end of an episode, else 1.

    Environments with odd indices terminate; the others are truncated.
    """

    def __init__(self, num_envs=4, episode_length=5, **kwargs):
        super().__init__(num_envs, 1, 2, episode_length, **kwargs)

    def advance(self, actions):
        return -np.ones(self.num_envs), (self.age + 1 >= self.episode_length) & (
            np.arange(self.num_envs) % 2 == 1
        )

    def observe(self, out):
        out[:, 0] = np.where(self.age == 0, 3, np.where(self.age >= self.episode_length, 5, 1))
