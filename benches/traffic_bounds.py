"""The share of agents that can arrive in traffic without a crash, by search with the future known.

    python benches/traffic_bounds.py --cases crossing crossing-2 --episodes 256
    python benches/traffic_bounds.py --cases racetrack racetrack-large racetrack-oval --drivers bound steer

Episodes are compiled, and a saved state continues with its own random numbers: a plan that the search finds is one
that a driver could have driven. The search keeps the best states of each step (a beam), so the share it finds is at
least what is possible. Prints a line of JSON for each case and driver: shares in per cent of the agents.

Drivers: "bound" is the search; "idle" takes the action that changes nothing; "brake" brakes while it would meet
somebody in the next seconds if all kept their speeds and headings; "planner" searches anew at each step, with random
numbers other than those that come, and so knows the state of the traffic, but not its future; "steer", on racetracks,
keeps its lane and changes it behind somebody who is near. There the bound is the best of such drives, which change
lanes at other distances.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi
from fastrl.play.play import team_seeds

_SPEEDS = np.arange(3)  # slower, idle, faster


@dataclass(frozen=True)
class Case:
    """An environment and the actions that a search tries.

    Attributes:
        id: without "fastrl/". config: keys on top of the defaults. steps: of an episode.
        actions: that an agent chooses among [M, ...]; `idle` and `slower` are numbers of them.
        arrives: agents have a goal; else those have arrived that are whole at the end of the episode.
        lanes: of a racetrack, which the actions, steering angles from left to right, are for; 0 elsewhere.
    """

    id: str
    steps: int
    config: dict[str, Any] = field(default_factory=dict)
    actions: NDArray[Any] = field(default_factory=lambda: _SPEEDS)
    idle: int = 1
    slower: int = 0
    arrives: bool = True
    lanes: int = 0


def _crossing(agents: int, seconds: int) -> Case:
    if agents == 1:
        return Case("intersection-v0", seconds, {"duration": seconds})
    return Case("intersection-multi-agent-v2", seconds, {"controlled_vehicles": agents, "duration": seconds})


def _racetrack(name: str, lanes: int) -> Case:
    # Places of the agent beside the middle of its lane and headings from it, which `steer` needs.
    features = {"vehicles_count": 2, "features": ["lat_off", "ang_off"], "normalize": False, "clip": False}
    angles = np.linspace(-1, 1, 41, dtype=np.float32)[:, np.newaxis]
    config = {"observation": {"type": "Kinematics", **features}}
    # Times of 1,500 steps add up to a little less than 300 s.
    return Case(f"{name}-v0", 1501, config, angles, idle=20, arrives=False, lanes=lanes)


_ROUNDABOUT = {"actions": np.arange(5), "slower": 4, "arrives": False}
CASES = {
    "crossing": _crossing(1, 13),
    "crossing-long": _crossing(1, 26),
    "crossing-2": _crossing(2, 13),
    "crossing-2-long": _crossing(2, 26),
    "crossing-4": _crossing(4, 13),
    "crossing-4-long": _crossing(4, 26),
    "roundabout": Case("roundabout-v0", 11, **_ROUNDABOUT),
    "roundabout-long": Case("roundabout-v0", 22, {"duration": 22}, **_ROUNDABOUT),
    "racetrack": _racetrack("racetrack", 2),
    "racetrack-large": _racetrack("racetrack-large", 3),
    "racetrack-oval": _racetrack("racetrack-oval", 3),
}


@dataclass
class Node:
    """A state of an episode: which agents arrived and crashed, bool [A], whether its time is up or an agent left the
    road, the rewards so far and the first actions [A] of the way that led here."""

    state: bytes
    arrived: NDArray[np.bool_]
    crashed: NDArray[np.bool_]
    is_late: bool = False
    reward: float = 0.0
    first: NDArray[np.int64] | None = None

    @property
    def is_over(self) -> bool:
        return self.is_late or bool((self.arrived | self.crashed).all())

    @property
    def worth(self) -> tuple[int, int]:
        return int(self.arrived.sum()), -int(self.crashed.sum())

    @property
    def rank(self) -> tuple[int, int, bool, float]:
        """Order of nodes: by agents that arrived and crashed, then those whose episode is over, then by reward."""
        return (*self.worth, self.is_over, self.reward)


class Bed:
    """Environments in which states are tried.

    Args:
        case: what is driven.
        size: environments.
    """

    def __init__(self, case: Case, size: int) -> None:
        self.case = case
        self.env: MultiAgentVectorEnv = make_multi(
            f"fastrl/{case.id}", size, config=case.config, autoreset_mode="disabled", num_threads=1
        )
        self.agents, self.size = self.env.num_agents, size
        rows = size * self.agents
        self._obs = np.empty((rows, self.env.single_observation_space.shape[0]), np.float32)
        self._rewards = np.empty(rows, np.float32)
        self._ends, self._late, self._alive = (np.empty(rows, np.bool_) for _ in range(3))
        self.env.reset(seed=0)

    def start(self, seed: int) -> Node:
        self.env.reset(seed=[seed] * self.size)
        none = np.zeros(self.agents, np.bool_)
        return Node(self.env.save_state(0), none, none)

    def step(self, pairs: list[tuple[Node, NDArray[np.int64]]]) -> Iterator[Node]:
        """The nodes that follow from nodes with numbers of actions [A], one after the other, as many as there are
        environments at most."""
        assert len(pairs) <= self.size
        actions = np.full((self.size, self.agents), self.case.idle)
        for i in range(self.size):
            node, choice = pairs[min(i, len(pairs) - 1)]
            self.env.load_state(node.state, i)
            actions[i] = choice
        self.env.step_into(
            self.case.actions[actions].reshape(self.size * self.agents, *self.case.actions.shape[1:]),
            self._obs,
            self._rewards,
            self._ends,
            self._late,
            self._alive,
        )
        shape = (self.size, self.agents)
        ends, late, rewards = (each.reshape(shape) for each in (self._ends, self._late, self._rewards))
        for i, (node, choice) in enumerate(pairs):
            running = ~(node.arrived | node.crashed)
            ended, arrived, crashed = ends[i] & running, node.arrived.copy(), node.crashed.copy()
            is_off = False
            if ended.any():
                of_agent = self.env.vehicles(i)
                wrecks = set(of_agent["agent"][of_agent["crashed"]].tolist())
                for agent in np.flatnonzero(ended).tolist():
                    crashed[agent] = agent in wrecks
                    arrived[agent] = self.case.arrives and not crashed[agent]
                    is_off |= not (arrived[agent] or crashed[agent])
            is_late = bool(late[i].any())
            if is_late and not self.case.arrives:
                arrived |= running & ~ended
            first = choice if node.first is None else node.first
            reward = node.reward + float(rewards[i].sum())
            yield Node(self.env.save_state(i), arrived, crashed, is_late or is_off, reward, first)

    def key(self, i: int, node: Node) -> tuple[Any, ...]:
        """Key of a state among those of a step: places and speeds of the agents, in whole metres and m/s."""
        vehicles = self.env.vehicles(i)
        mine = vehicles["agent"] >= 0
        numbers = np.stack([vehicles[name][mine] for name in ("x", "y", "speed", "target_speed")])
        return (*node.arrived, *node.crashed, *np.round(numbers).ravel().tolist())


def search(bed: Bed, root: Node, steps: int, width: int, fan: int, rng: np.random.Generator) -> Node:
    """The best end of an episode that a beam of so many states finds; with several agents `fan` joint actions of each
    state at most, drawn anew for each."""
    count = len(bed.case.actions)
    joint = np.array(list(itertools.product(range(count), repeat=bed.agents)))
    best, beam = root, [root]
    for _ in range(steps):
        found: dict[tuple[Any, ...], Node] = {}
        pairs = []
        for node in beam:
            few = joint if len(joint) <= fan else joint[rng.choice(len(joint), fan, replace=False)]
            pairs += [(node, choice) for choice in few]
        for at in range(0, len(pairs), bed.size):
            for i, node in enumerate(bed.step(pairs[at : at + bed.size])):
                best = max(best, node, key=lambda each: each.rank)
                if not node.is_over:
                    known = found.setdefault(bed.key(i, node), node)
                    if node.reward > known.reward:
                        found[bed.key(i, node)] = node
        if best.worth == (bed.agents, 0) or not found:
            break
        # Half of the beam are those with the highest rewards, half are drawn: who waits has less at first.
        left = sorted(found.values(), key=lambda each: (each.crashed.sum(), -each.reward))
        whole = [each for each in left if each.crashed.sum() == left[0].crashed.sum()]
        rest = (
            [whole[i] for i in rng.permutation(np.arange(width // 2, len(whole)))]
            if len(whole) > width // 2
            else []
        )
        beam = (whole[: width // 2] + rest + left[len(whole) :])[:width]
    return best


Drive = Callable[[Bed, Node], NDArray[np.int64]]


def play(bed: Bed, seed: int, drive: Drive) -> Node:
    """The end of an episode that a driver drives."""
    node = bed.start(seed)
    for _ in range(bed.case.steps):
        (node,) = bed.step([(node, drive(bed, node))])
        if node.is_over:
            break
    return node


def idle(bed: Bed, node: Node) -> NDArray[np.int64]:
    return np.full(bed.agents, bed.case.idle)


# Seconds that are looked ahead; metres between the middles of two vehicles that meet.
_AHEAD, _NEAR = np.linspace(0, 3, 13), 6.0


def brake(bed: Bed, node: Node) -> NDArray[np.int64]:
    """Brakes for vehicles that an agent would meet; the others, and those in front, are not its concern."""
    v = bed.env.vehicles(0)
    place = np.stack([v["x"], v["y"]], 1)
    way = np.stack([np.cos(v["heading"]), np.sin(v["heading"])], 1)
    chosen = np.full(bed.agents, len(bed.case.actions) - 1)
    for i in np.flatnonzero(v["agent"] >= 0):
        # An agent that stands would meet nobody, and drive on: it looks where it would be at its usual speed.
        mine = place[i] + _AHEAD[:, None] * max(v["speed"][i], 4.5) * way[i]
        theirs = place[:, None] + _AHEAD[:, None] * (v["speed"][:, None] * way)[:, None]
        meets = (np.linalg.norm(theirs - mine, axis=2) < _NEAR).any(1) & ((place - place[i]) @ way[i] > 0)
        meets[i] = False
        if meets.any():
            chosen[v["agent"][i]] = bed.case.slower
    return chosen


# Gains of a turning rate for m beside the middle of the lane and rad from its heading, 1/m/s and 1/s; the most rad that
# it turns to the side; the width of lanes and metres between axles; the distances, m, at which lanes are changed.
_GAINS, _ASIDE, _WIDTH, _AXLES, CHANGES = (0.5, 3.0), 0.3, 5.0, 5.0, (22.0, 20.0, 18.0, 16.0)


def steer(ahead: float) -> Drive:
    """Drives along the lane, and to one beside it with nobody near as long as somebody is less than `ahead` before."""

    def chosen(bed: Bed, node: Node) -> NDArray[np.int64]:
        v, lanes = bed.env.vehicles(0), bed.case.lanes
        beside, turned = bed.env.observe()[0][0, :2].tolist()
        dx, dy = v["x"] - v["x"][0], v["y"] - v["y"][0]
        # Sections follow one another, each with all lanes.
        near = np.hypot(dx, dy) * np.sign(dx * np.cos(v["heading"][0]) + dy * np.sin(v["heading"][0]))
        lane = target = v["lane"][0] % lanes
        others = v["lane"][1:] % lanes, near[1:]
        if ((others[0] == lane) & (others[1] > 0) & (others[1] < ahead)).any():
            beyond = [to for to in (lane - 1, lane + 1) if 0 <= to < lanes]
            free = [
                to for to in beyond if not ((others[0] == to) & (others[1] > -8) & (others[1] < ahead)).any()
            ]
            target = free[0] if free else lane
        aside = (beside + _WIDTH * (lane - target)) * _GAINS[0] / _GAINS[1]
        rate = -_GAINS[1] * (turned + np.clip(aside, -_ASIDE, _ASIDE))
        slip = np.arcsin(np.clip(rate * _AXLES / 2 / v["speed"][0], -0.9, 0.9))
        angle = np.arctan(2 * np.tan(slip)) / (np.pi / 4)
        return np.abs(bed.case.actions[:, 0] - angle).argmin(keepdims=True)

    return chosen


def bound(bed: Bed, seed: int) -> Node:
    """The best end of the episode: a narrow search first, wider ones as long as an agent does not arrive; on racetracks
    drives that change lanes nearer and nearer to the others."""
    best = root = bed.start(seed)
    rng = np.random.default_rng(seed)
    ends = (
        (play(bed, seed, steer(ahead)) for ahead in CHANGES)
        if bed.case.lanes
        else (search(bed, root, bed.case.steps, width, FAN, rng) for width in WIDTHS)
    )
    for end in ends:
        best = max(best, end, key=lambda each: each.worth)
        if best.worth == (bed.agents, 0):
            break
    return best


class Planner:
    """Drives the first action of the best plan, searched with other random numbers than those that come."""

    def __init__(self, case: Case) -> None:
        self._bed, self._rng = Bed(case, BED), np.random.default_rng(0)

    def __call__(self, bed: Bed, node: Node) -> NDArray[np.int64]:
        other = bed.env.branch(node.state, 1, seed=int(self._rng.integers(2**32)))
        root = Node(other.save_state(0), node.arrived, node.crashed)
        best = search(self._bed, root, bed.case.steps, WIDTHS[0], FAN, self._rng)
        return idle(bed, node) if best.first is None else best.first


WIDTHS, FAN, BED = (8, 64), 27, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    drivers = ("bound", "idle", "brake", "planner", "steer")
    parser.add_argument("--drivers", nargs="*", choices=drivers, default=["bound", "idle", "brake"])
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args()
    seeds = team_seeds(options.seed, options.episodes)
    for name, driver in itertools.product(options.cases, options.drivers):
        case = CASES[name]
        start = time.process_time()
        bed = Bed(case, BED if driver == "bound" and not case.lanes else 1)
        drives = {"idle": idle, "brake": brake, "steer": steer(CHANGES[0])}
        drive = Planner(case) if driver == "planner" else drives.get(driver, idle)
        ends = [bound(bed, seed) if driver == "bound" else play(bed, seed, drive) for seed in seeds]
        arrived, crashed = (
            100 * np.mean([getattr(end, key) for end in ends]) for key in ("arrived", "crashed")
        )
        row = {"case": name, "driver": driver, "episodes": len(ends)}
        shares = {"arrived": round(float(arrived), 1), "crashed": round(float(crashed), 1)}
        print(json.dumps(row | shares | {"cpu_seconds": round(time.process_time() - start)}), flush=True)


if __name__ == "__main__":
    main()
