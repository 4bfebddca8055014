"""Writing of recorded fragments as the episodes of a data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.collectors.protocol import CollectError
from fastrl.demos.plan import RecordingPlan, recorded_pair
from fastrl.envs.contract import ACTION_MASK, AGENT, ENV_EPISODE, ENV_STEP
from fastrl.envs.exact_rows import ExactRows
from fastrl.replay.episode_writer import EpisodeWriter
from fastrl.replay.episodes import Episode, EpisodeDataset, load
from fastrl.rollout.fragment import Fragment
from fastrl.utils.seeding import NO_ENV, env_seeds


class FragmentWriter:
    """Writes fragments, each a whole episode, into a data set.

    Args:
        plan: of the recording.
        writer: of the data set.
        has_noise: the fragments have the expert's actions beside those that were taken.

    Attributes:
        next_number: of the next episode.
    """

    def __init__(self, plan: RecordingPlan, writer: EpisodeWriter, has_noise: bool) -> None:
        self.plan, self._writer, self._has_noise = plan, writer, has_noise
        self.next_number = writer.next_index
        self.flush, self.close = writer.flush, writer.close

    def write(self, fragments: list[Fragment]) -> None:
        """Writes fragments in the order of the episodes.

        Raises:
            CollectError: an observation is not finite. The episodes before are written.
        """
        if not fragments:
            return
        exact = self.plan.obs_rows
        assert isinstance(exact, ExactRows)
        lengths = [len(fragment) for fragment in fragments]
        rows = _joined([fragment.obs[:, 0] for fragment in fragments])
        episodes, seeds = self._episodes(fragments)
        # Collectors check rows of floats themselves.
        if exact.dtype == np.uint8 and (wrong := exact.not_finite(rows)) is not None:
            row, value = wrong
            firsts = np.cumsum([0, *lengths[:-1]]) + np.arange(len(lengths))
            at = int(np.searchsorted(firsts, row, side="right")) - 1
            self.write(fragments[:at])
            raise CollectError(
                f"{self.plan.env.id}: the observation after step {row - firsts[at]} of episode {episodes[at]} (reset"
                f" with seed {seeds[at]}) has {value}; observations should be finite"
            )
        taken, experts = recorded_pair(_joined([fragment.actions[:, 0] for fragment in fragments]))
        steps = Episode(
            observations=exact.read(rows),
            actions=taken,
            rewards=_joined([fragment.rewards[:, 0] for fragment in fragments]).astype(
                np.float64, copy=False
            ),
            terminated=_joined([fragment.terminations[:, 0] for fragment in fragments]),
            truncated=_joined([fragment.truncations[:, 0] for fragment in fragments]),
            expert_actions=experts if self._has_noise else None,
            infos=exact.read_infos(rows) if exact.infos else None,
        )
        self._writer.write_many(steps, lengths, seeds.tolist())
        self.next_number = self._writer.next_index

    def _episodes(self, fragments: list[Fragment]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Numbers of the fragments' episodes, and the seeds of their resets."""
        episodes = np.array([fragment.episodes[0, 1] for fragment in fragments])
        return episodes, env_seeds(self.plan.seed, np.full(len(episodes), NO_ENV), episodes)


class TeamFragmentWriter(FragmentWriter):
    """Writes episodes of environments of many agents: an episode of the data set for each time that an agent takes
    part, in the order of the environment's episodes, of agents and of steps. Its infos say which.

    An environment's episode may be on disk in part after a kill. It is recorded again then, and what is there is left
    out.
    """

    def __init__(self, plan: RecordingPlan, writer: EpisodeWriter, has_noise: bool) -> None:
        super().__init__(plan, writer, has_noise)
        self._skipped = 0
        if writer.next_index:
            demos = load(writer.path)
            self.next_number = whole_episodes(demos)
            self._skipped = int((demos.first_infos(ENV_EPISODE) == self.next_number).sum())
        self.close = self._close

    def _close(self) -> None:
        # Totals say that the last episode is whole.
        (self._writer.flush if self._skipped else self._writer.close)()

    def write(self, fragments: list[Fragment]) -> None:
        if not fragments:
            return
        episodes, seeds = self._episodes(fragments)
        self.next_number = int(episodes[-1]) + 1
        lives = [(i, *life) for i, fragment in enumerate(fragments) for life in lives_of(fragment)]
        new, self._skipped = lives[self._skipped :], max(self._skipped - len(lives), 0)
        if not new:
            return

        def steps_of(name: str, last: int = 0) -> NDArray[Any]:
            return _joined(
                [getattr(fragments[i], name)[start : end + last, 0, agent] for i, agent, start, end in new]
            )

        which, agents, starts, ends = np.array(new).T
        lengths = ends - starts
        rows = lengths + 1
        infos = {
            AGENT: np.repeat(agents, rows),
            ENV_EPISODE: np.repeat(episodes[which], rows),
            ENV_STEP: np.arange(rows.sum()) + np.repeat(starts - (np.cumsum(rows) - rows), rows),
        }
        infos = {name: values.astype(np.int32) for name, values in infos.items()}
        if self.plan.action_masks:
            infos[ACTION_MASK] = steps_of("masks")
        taken, experts = recorded_pair(steps_of("actions"))
        steps = Episode(
            observations=steps_of("obs", last=1).reshape(-1, *(self.plan.recorded_space.shape or ())),
            actions=taken,
            rewards=steps_of("rewards"),
            terminated=steps_of("terminations"),
            truncated=steps_of("truncations"),
            expert_actions=experts if self._has_noise else None,
            infos=infos,
        )
        self._writer.write_many(steps, lengths.tolist(), seeds[which].tolist())


def whole_episodes(demos: EpisodeDataset) -> int:
    """Number of whole episodes of the environment in a data set of many agents, which is not empty. After a kill the
    last one may be there in part: then there is more than when totals were written."""
    return int(demos.first_infos(ENV_EPISODE)[-1]) + (demos.meta.get("episodes") == len(demos))


def lives_of(fragment: Fragment) -> list[tuple[int, int, int]]:
    """The times that agents take part in an episode, whose fragment this is: agent, first step, end."""
    assert fragment.alive is not None, "it is of many agents"
    found = []
    ended = (fragment.terminations | fragment.truncations)[:, 0]
    for agent in range(ended.shape[1]):
        acts, ends = fragment.alive[:-1, 0, agent], ended[:, agent]
        starts = acts & np.append(True, ~acts[:-1] | ends[:-1])
        stops = acts & (ends | np.append(~acts[1:], True))
        pairs = zip(np.flatnonzero(starts).tolist(), np.flatnonzero(stops).tolist(), strict=True)
        found += [(agent, start, stop + 1) for start, stop in pairs]
    return found


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Arrays one after the other. `numpy.concatenate` gives up the interpreter's lock at each of them, so that a thread
    that collects meanwhile takes half as long again."""
    data = b"".join([np.ascontiguousarray(part).data for part in parts])
    return np.frombuffer(data, parts[0].dtype).reshape(sum(map(len, parts)), *parts[0].shape[1:])
