"""Population-based training (Jaderberg et al., 2017): members train side by side, and after each part of the training
the worst ones copy the best ones, networks and settings, and change the settings a little.

A member's part is a run directory of its own, which continues from that of its parent. Who is whose parent follows from
the seed and the scores, so that a search is resumed from its journal alone.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastrl.algorithms import find
from fastrl.tuning.phases import ConfirmationPhase
from fastrl.tuning.runner import Phase
from fastrl.tuning.space import Point, Space
from fastrl.tuning.study import Study
from fastrl.tuning.trial import SAMPLING, SEARCH, Trial, TuneError, seed_of
from fastrl.utils.config import Values, to_plain

# Share of the members that copy, and of those that are copied; what numbers are multiplied or divided by; how often a
# setting is drawn anew instead.
_SHARE, _STEP, _ANEW = 0.25, 1.2, 0.25


def population_space(space: Space) -> Space:
    """The part of a space that may change while a run trains: its fractions.

    Whole numbers and choices are sizes of networks, batches and rollouts, which a checkpoint fixes.
    """
    return space.only([each.name for each in space.parameters if not each.choices and not each.integer])


class PopulationPhase(Phase):
    """The parts of all members."""

    title, prefix = "population", "member-"

    @property
    def total(self) -> int:
        return self.study.config.trials * self.study.config.generations

    def propose(self) -> Trial | None:
        for generation in range(self.study.config.generations):
            for member in range(self.study.config.trials):
                if name_of(generation, member) not in self.study.trials:
                    return self._part(generation, member)
            # All of them are compared before the next part.
            if any(trial.result is None for trial in members(self.study, generation)):
                return None
        return None

    def _part(self, generation: int, member: int) -> Trial:
        name, seed = name_of(generation, member), seed_of(self.study.seed, SEARCH, generation, member)
        if generation == 0:
            draws = np.random.default_rng(seed_of(self.study.seed, SAMPLING, member))
            return Trial(name, member, self.study.space.draw(draws), seed)
        parent = parent_of(self.study, generation, member)
        point = members(self.study, generation - 1)[parent].point
        if parent != member:
            point = perturbed(
                self.study.space,
                point,
                np.random.default_rng(seed_of(self.study.seed, SAMPLING, generation, member)),
            )
        return Trial(name, member, point, seed)

    def job(self, trial: Trial) -> Mapping[str, Any]:
        generation = generation_of(trial)
        settings = self.study.trial_settings(trial, part_values(self.study, trial))
        job = self.study.job(trial, settings)
        if generation == 0:
            return job
        parent = parent_of(self.study, generation, trial.number)
        before = members(self.study, generation - 1)[parent]
        return {**job, "fork": str(self.study.run_of(before))}


def name_of(generation: int, member: int) -> str:
    """The name of a member's part."""
    return f"member-{generation:03d}-{member:03d}"


def generation_of(trial: Trial) -> int:
    """The generation of a member's part."""
    return int(trial.name.split("-")[1])


def members(study: Study, generation: int) -> list[Trial]:
    """The parts of all members in a generation that has been started, by number."""
    names = [name_of(generation, member) for member in range(study.config.trials)]
    return [study.trials[name] for name in names if name in study.trials]


def parent_of(study: Study, generation: int, member: int) -> int:
    """The member that another one, or itself, continues from.

    Raises:
        TuneError: no member has a score.
    """
    before = members(study, generation - 1)
    order = sorted(
        before, key=lambda trial: (-math.inf if math.isnan(trial.score) else trial.score, -trial.number)
    )
    alive = [trial for trial in order if not math.isnan(trial.score)]
    if not alive:
        raise TuneError("all members of the population have failed")
    copying = max(round(_SHARE * len(order)), len(order) - len(alive), 1 if len(order) > 1 else 0)
    if before[member] not in order[:copying]:
        return member
    best = alive[-max(round(_SHARE * len(alive)), 1) :]
    draws = np.random.default_rng(seed_of(study.seed, SAMPLING, generation, member, 1))
    return best[int(draws.integers(len(best)))].number


def perturbed(space: Space, point: Point, draws: np.random.Generator) -> Point:
    """A point near another one."""
    near: Point = {}
    for each in space.parameters:
        anew, up, share = draws.random(), draws.random() < 0.5, draws.random()
        if anew < _ANEW:
            near[each.name] = each.at(share)
        else:
            near[each.name] = each.from_drawn(each.to_drawn(point[each.name]) * (_STEP if up else 1 / _STEP))
    return near


def part_values(study: Study, trial: Trial) -> Values:
    """The settings of a member's part beside its point: how long it trains."""
    return {
        **goal(study, generation_of(trial) + 1),
        **({"replay.save": True} if hasattr(study.settings, "replay") else {}),
        "run.eval_points": 0,
    }


def goal(study: Study, generations: int) -> Values:
    """The length of the run after some generations, by dotted key."""
    run = study.settings.run
    key = "run.total_timesteps" if run.total_timesteps is not None else "run.total_episodes"
    total = run.total_timesteps or run.total_episodes
    return {key: max(total * generations // study.config.generations, 1)}


def lineage(study: Study, member: int) -> list[Point]:
    """The settings of all generations that led to a member's last part."""
    points: list[Point] = []
    for generation in reversed(range(study.config.generations)):
        points.append(members(study, generation)[member].point)
        if generation:
            member = parent_of(study, generation, member)
    return points[::-1]


def lineage_values(study: Study, member: int) -> Values:
    """The settings of a run that follows a member's lineage: stages, where the algorithm has them, else those of the
    last part."""
    points = lineage(study, member)
    last = study.space.values(points[-1])
    if not has_stages(study):
        return last
    stages, (key, _) = [], next(iter(goal(study, 1).items()))
    for generation, (point, following) in enumerate(itertools.pairwise(points), 1):
        if point != following:
            pairs = [f"{name}={to_plain(value)!r}" for name, value in study.space.values(point).items()]
            stages.append(" ".join([str(goal(study, generation)[key]), *pairs]))
    return {**last, "run.stages": tuple(stages)}


def has_stages(study: Study) -> bool:
    """True if settings of a run may change on its way without a population."""
    run = study.settings.run
    return find(run.algo).has_stages() and run.total_timesteps is not None


class PopulationConfirmation(ConfirmationPhase):
    """The lineages of the best members, each trained again from the start with the same other seeds."""

    def job(self, trial: Trial) -> Mapping[str, Any]:
        values = {**lineage_values(self.study, trial.number), **self.evaluation()}
        return self.study.job(trial, self.study.trial_settings(trial, values))


def check_population(study_space: Space, space: Space) -> None:
    """Refuses a space of the user's own with settings that cannot change while a run trains.

    Raises:
        TuneError
    """
    kept = {each.name for each in space.parameters}
    others = [each.name for each in study_space.parameters if each.name not in kept]
    if others:
        raise TuneError(f"pbt varies fractions alone, not {', '.join(others)}: take them out of the space")
