"""A slow and simple model of a replay: a list of episodes for each environment."""

import tempfile
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import numpy as np

from fastrl.replay import UniformSampler

OBS_SHAPE = (3,)
EXTRA = {"extra": (np.float64, ())}
# Arguments of a replay without masks, with those of observations that are acted on, and with those of last ones, too.
MASKS = {"none": {}, "acted": {"num_masked": 5}, "final": {"num_masked": 5, "final_masks": True}}


def contents(replay):
    """All bytes of a replay, by the names of the files in which it is saved."""
    with tempfile.TemporaryDirectory() as folder:
        replay.save(Path(folder, "saved"))
        return {path.name: path.read_bytes() for path in Path(folder, "saved").iterdir()}


@dataclass
class Episode:
    """``obs`` has one more entry than ``steps``, or as many while the newest step has no next observation; so has
    ``masks``, whose entries may be None."""

    start: int  # rows written for this environment before
    obs: list
    masks: list
    steps: list  # (action, reward, terminated, truncated, extra)


@dataclass
class Ring:
    episodes: list = field(default_factory=list)
    # State of the newest row: "closed", "provisional" (continued by a step with the same observation) or "pending" (a
    # step whose next observation is unknown).
    state: str = "closed"

    @property
    def head(self):
        return sum(len(episode.obs) for episode in self.episodes)


class Model:
    def __init__(self, num_envs, rows_per_env, stack=1, pad="zero", num_masked=0, final_masks=False):
        self.rings = [Ring() for _ in range(num_envs)]
        self.num_masked, self.final_masks = num_masked, final_masks
        self.rows_per_env, self.stack, self.pad = rows_per_env, stack, pad
        self.lost = 0

    def add(
        self, obs, action, reward, next_obs, terminated, truncated, env, extra, mask=None, next_mask=None
    ):
        ring = self.rings[env]
        self._place(ring, obs, mask)
        episode = ring.episodes[-1]
        episode.steps.append((action, reward, terminated, truncated, extra))
        self._follow(ring, next_obs, next_mask)
        ring.state = "closed" if terminated or truncated else "provisional"

    def append(self, record):
        ring, obs = self.rings[record["env"]], record["obs"].copy()
        mask = record["mask"].copy() if "mask" in record.dtype.names else None
        if record["end"]:
            if ring.state == "pending":
                self._follow(ring, obs, mask)
            ring.state = "closed"
            return
        ended = ring.state == "pending" and (ring.episodes[-1].steps[-1][2] or ring.episodes[-1].steps[-1][3])
        if ring.state == "pending" and not ended:
            self._follow(ring, obs, mask)
        else:
            self._place(ring, obs, mask)
        step = (
            record["action"],
            record["reward"],
            record["terminated"],
            record["truncated"],
            record["extra"],
        )
        ring.episodes[-1].steps.append(step)
        ring.state = "pending"

    def cut(self, env):
        ring = self.rings[env]
        self._lose(ring)
        ring.state = "closed"

    def _lose(self, ring):
        if ring.state == "pending":
            ring.episodes[-1].steps.pop()
            self.lost += 1

    def _follow(self, ring, obs, mask):
        ring.episodes[-1].obs.append(obs)
        ring.episodes[-1].masks.append(mask)

    def _place(self, ring, obs, mask):
        self._lose(ring)
        if ring.state == "provisional" and ring.episodes[-1].obs[-1].tobytes() == obs.tobytes():
            ring.episodes[-1].masks[-1] = mask
            return
        ring.episodes.append(Episode(ring.head, [obs], [mask], []))

    def starts(self):
        """(env, episode, step) of all steps that can be sampled: their frames and next observation are stored."""
        found = []
        for env, ring in enumerate(self.rings):
            oldest = ring.head - self.rows_per_env
            for episode in ring.episodes:
                for i in range(min(len(episode.steps), len(episode.obs) - 1)):
                    if episode.start + max(0, i - self.stack + 1) >= oldest:
                        found.append((env, episode, i))
        return found

    def stacked(self, episode, i):
        if self.stack == 1:
            return episode.obs[i]
        before = np.zeros_like(episode.obs[0]) if self.pad == "zero" else episode.obs[0]
        return np.stack([episode.obs[j] if j >= 0 else before for j in range(i - self.stack + 1, i + 1)])

    def transition(self, episode, i, n_step, gamma):
        """A transition of a batch: obs, action, reward, next_obs, discount, terminated, truncated, extra, and the masks
        that there are."""
        total, discount, k = 0.0, 1.0, 0
        while True:
            _, reward, terminated, truncated, _ = episode.steps[i + k]
            total += discount * float(reward)
            discount *= gamma
            k += 1
            if k == n_step or terminated or truncated or i + k == len(episode.obs) - 1:
                break
        return (
            self.stacked(episode, i).tobytes(),
            int(episode.steps[i][0]),
            np.float32(total).tobytes(),
            self.stacked(episode, i + k).tobytes(),
            np.float32(0 if terminated else discount).tobytes(),
            bool(terminated),
            bool(truncated),
            float(episode.steps[i][4]),
            *(episode.masks[j].tobytes() for j in (i, i + k) if self.has_mask(j - i)),
        )

    def has_mask(self, later):
        """True if transitions have masks of observations so many steps later."""
        return self.num_masked > 0 and (later == 0 or self.final_masks)

    def transitions(self, n_step=1, gamma=0.99):
        return [self.transition(episode, i, n_step, gamma) for _, episode, i in self.starts()]


def rows_of(batch):
    """A batch as a list of transitions such as `Model.transition` returns."""
    columns = (batch.obs, batch.actions, batch.rewards, batch.next_obs, batch.discounts)
    obs, actions, rewards, next_obs, discounts = (column.numpy() for column in columns)
    masks = [column.numpy() for column in (batch.masks, batch.next_masks) if column is not None]
    return [
        (
            obs[i].tobytes(),
            int(actions[i]),
            rewards[i].tobytes(),
            next_obs[i].tobytes(),
            discounts[i].tobytes(),
            bool(batch.terminated[i]),
            bool(batch.truncated[i]),
            float(batch.extra["extra"][i]),
            *(column[i].tobytes() for column in masks),
        )
        for i in range(len(actions))
    ]


class Writer:
    """Writes the same steps to a replay and to a model, with observations that do not repeat by chance."""

    def __init__(self, replay, model):
        self.replay, self.model = replay, model
        self.count = 0
        # The next observation of each environment, if its episode continues.
        self.now = [None] * replay.num_envs

    def new_obs(self):
        self.count += 1
        dtype = self.replay.dtype["obs"].base
        shape = self.replay.dtype["obs"].shape
        return (np.arange(np.prod(shape)).reshape(shape) + self.count * 7).astype(dtype)

    def masks(self, *names):
        """New masks, by the names of arguments: of an observation, and of the one that follows it."""
        replay, count = self.replay, self.count
        drawn = np.random.default_rng(count).random((2, replay.num_masked)) < 0.5
        there = (replay.num_masked > 0, replay.final_masks)
        return {name: mask for name, mask, is_there in zip(names, drawn, there, strict=True) if is_there}

    def step(self, env, follows):
        """A new step: obs, action, reward, next_obs, extra."""
        obs = self.now[env] if follows and self.now[env] is not None else self.new_obs()
        next_obs = self.new_obs()
        action, reward = self.count % 11, np.float32(self.count * 0.37 - 3)
        return obs, action, reward, next_obs, float(self.count)

    def do(self, op):
        kind, envs, flags, follows = op
        envs = [env % self.replay.num_envs for env in envs]
        getattr(self, kind)(envs, flags, follows)

    def add(self, envs, flags, follows):
        for env, (terminated, truncated, _) in zip(envs, cycle(flags), strict=False):
            obs, action, reward, next_obs, extra = self.step(env, follows)
            masks = self.masks("mask", "next_mask")
            self.replay.add(
                obs, action, float(reward), next_obs, terminated, truncated, env, extra=extra, **masks
            )
            self.model.add(obs, action, reward, next_obs, terminated, truncated, env, extra, **masks)
            self.now[env] = None if terminated or truncated else next_obs

    def add_many(self, envs, flags, follows):
        rows, masks = [], []
        for env, (terminated, truncated, _) in zip(envs, cycle(flags), strict=False):
            obs, action, reward, next_obs, extra = self.step(env, follows)
            rows.append((obs, action, reward, next_obs, terminated, truncated, env, extra))
            masks.append(self.masks("mask", "next_mask"))
            self.now[env] = None if terminated or truncated else next_obs
        columns = list(zip(*rows, strict=True))
        self.replay.add_many(
            np.stack(columns[0]),
            np.array(columns[1], np.int64),
            np.array(columns[2], np.float32),
            np.stack(columns[3]),
            np.array(columns[4], bool),
            np.array(columns[5], bool),
            np.array(columns[6], np.int64),
            extra=np.array(columns[7]),
            **{f"{name}s": np.stack([each[name] for each in masks]) for name in masks[0]},
        )
        for row, mask in zip(rows, masks, strict=True):
            self.model.add(*row, **mask)

    def append(self, envs, flags, follows):
        records = np.zeros(len(envs), self.replay.dtype)
        for record, env, (terminated, truncated, end) in zip(records, envs, cycle(flags), strict=False):
            obs, action, reward, next_obs, extra = self.step(env, follows)
            record["env"], record["obs"], record["end"] = env, obs, end
            record["action"], record["reward"], record["extra"] = action, reward, extra
            record["terminated"], record["truncated"] = terminated, truncated
            if self.replay.num_masked:
                record["mask"] = self.masks("mask", "")["mask"]
            self.now[env] = next_obs
        records.flags.writeable = False
        self.replay.append(records)
        for record in records:
            self.model.append(record)

    def append_steps(self, envs, flags, follows):
        envs, steps = sorted(set(envs)), len(flags)
        dtype = self.replay.dtype
        records = np.zeros((len(envs), steps), dtype)
        # Older frames of stacks, and last observations of episodes that have not ended, are not stored.
        obs = np.full((steps + 1, len(envs), self.replay.stack, *OBS_SHAPE), 77, dtype["obs"].base)
        final_obs, masks = obs[1:].copy(), np.zeros((2, steps, len(envs), self.replay.num_masked), bool)
        for row, env in enumerate(envs):
            for t, (terminated, truncated, _) in enumerate(flags):
                now, action, reward, next_obs, _ = self.step(env, follows or t > 0)
                records[row, t]["action"], records[row, t]["reward"] = action, reward
                records[row, t]["terminated"], records[row, t]["truncated"] = terminated, truncated
                records[row, t]["env"], records[row, t]["extra"] = env, self.count
                obs[t, row, -1] = records[row, t]["obs"] = now
                drawn = np.random.default_rng(self.count).random((2, self.replay.num_masked)) < 0.5
                masks[:, t, row] = drawn
                if self.replay.num_masked:
                    records[row, t]["mask"] = drawn[0]
                self.model.append(records[row, t])
                self.now[env] = next_obs
                if terminated or truncated:
                    end = records[row, t].copy()
                    end["end"], end["obs"] = True, next_obs
                    if self.replay.num_masked:
                        end["mask"] = drawn[1] & self.replay.final_masks & (not terminated)
                    final_obs[t, row, -1], self.now[env] = next_obs, None
                    self.model.append(end)
        given = (masks[0], masks[1]) if self.replay.num_masked else (None, None)
        self.replay.append_steps(
            np.array(envs, np.int64),
            obs.reshape(steps + 1, len(envs), -1),
            *(
                np.ascontiguousarray(records[name].T)
                for name in ("action", "reward", "terminated", "truncated")
            ),
            final_obs.reshape(steps, len(envs), -1),
            masks=given[0],
            final_masks=given[1] if self.replay.final_masks else None,
            # One value for all steps, or one for each.
            extra=np.array(records["extra"][0, 0]) if records.size == 1 else records["extra"].T.copy(),
        )

    def cut(self, envs, flags, follows):
        for env in envs:
            self.replay.cut(env)
            self.model.cut(env)
            self.now[env] = None


def all_of(replay, **options):
    return UniformSampler(replay, len(replay), replacement=False, **options).sample()
