"""The smoke test of an installed wheel: every compiled module is imported, and a part of each is used. No PyTorch."""

import numpy as np

import fastrl
import fastrl.envs
import fastrl.queue
import fastrl.replay
import fastrl.runtime
from fastrl._native import _epochs, _pixels, _replay_samplers, _returns, _rows

env = fastrl.envs.Cage2VectorEnv(4)
obs, _ = env.reset(seed=0)
for _ in range(100):
    obs, rewards, *_ = env.step(env.action_space.sample())
replay = fastrl.replay.Replay(100, (52,), np.float32, num_envs=4)
over = np.zeros(4, np.bool_)
replay.add_many(obs, np.zeros(4, np.int64), np.ones(4, np.float32), obs, over, over)
queue = fastrl.queue.Queue({"obs": (np.float32, 52)}, capacity=8, shared=True)
with queue.producer() as producer, producer.reserve(2) as rows:
    rows["obs"] = 1.0
assert len(queue.get_many(2)) == 2 and len(replay) == 4
queue.close()
modules = [_epochs, _pixels, _replay_samplers, _returns, _rows]
print(
    "fastrl", fastrl.__version__, "with", *(module.__name__.rpartition(".")[2] for module in modules), "works"
)
