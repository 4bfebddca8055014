"""Calls the native classes with sizes that no machine has and sequences that lie, as ``python native_fuzz.py SEED``.

Each call may raise an error of Python's; a panic, an abort or a crash ends the process. The file that is named second
then has the last call.
"""

import functools
import inspect
import mmap
import operator
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from fastrl._native import _rust
from fastrl.envs import make_multi
from fastrl.envs.cage2.workflow import Cage2WorkflowVectorEnv
from fastrl.queue import Queue

# Bytes of address space that calls may take.
ROOM = 2**31
# Bytes that files of shared memory may have.
MOST_SHARED = 2**20
# Bytes of the note of a call.
NOTE = 4096
# Seconds after which a call that waits for others is interrupted.
PATIENCE = 0.02
# Calls with two hostile arguments, of each way to make an object.
PAIRS = 100


class Lying:
    """A sequence that says it has another length."""

    def __init__(self, length: int, items: list[Any]) -> None:
        self.length, self.items = length, items

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __repr__(self) -> str:
        return f"Lying({self.length}, {self.items})"


class Endless(Lying):
    def __getitem__(self, index: int) -> Any:
        return self.items[0]


class Shaped:
    """Says that it is an array of a shape."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


NUMBERS = [
    0,
    -1,
    300,
    10_000_000,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**64 - 1,
    2**70,
    float("nan"),
    float("inf"),
    -1e308,
    1e308,
    5e-324,
]
SEQUENCES = [
    *(
        Lying(length, items)
        for length in (0, 2**62, sys.maxsize)
        for items in ([], [1.0, 2.0], [1, 2], ["a"])
    ),
    Endless(2**20, [1.0]),
    Endless(3, ["x"]),
    [],
    [2**62] * 3,
    [float("nan")] * 3,
    "text",
    b"\xff" * 8,
]
ARRAYS = [
    np.zeros(shape, dtype)
    for shape in ((), (0,), (1,), (2, 3), (1, 1, 3), (0, 3, 3))
    for dtype in (np.float32, np.float64, np.int64, np.uint64, np.bool_)
] + [np.broadcast_to(np.float32(0), (2**30, 3)), np.broadcast_to(np.uint8(0), (2**14, 2**14, 3))]
HOSTILE: list[Any] = [
    *NUMBERS,
    *SEQUENCES,
    *ARRAYS,
    None,
    {},
    Shaped(Lying(2**62, [4, 4, 3])),
    Shaped((2**62, 2**62, 3)),
]


def recorded() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls of native classes with which environments are made: name, arguments and named arguments."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    classes = {
        name: made for name, made in vars(_rust).items() if name.endswith("Vec") and name != "AsyncVec"
    }

    def note(name: str, *arguments: Any, **named: Any) -> Any:
        calls.append((name, arguments, named))
        return classes[name](*arguments, **named)

    for name in classes:
        setattr(_rust, name, functools.partial(note, name))
    try:
        Cage2WorkflowVectorEnv(2).close()
        game = {"red_agent": "fsm", "episode_length": 20, "autoreset_mode": "same_step"}
        _rust.Cage4Vec(2, num_threads=1, numpy_random=True, **game).close()
        for env in (
            "Cage2-v0",
            "highway-v0",
            "roundabout-v0",
            "intersection-v0",
            "parking-v0",
            "ring-v0",
            "CartPole-v1",
        ):
            gymnasium.make_vec(f"fastrl/{env}", 2).close()
        drawn = Path(__file__).parent / "golden" / "cage2_scenarios" / "drawn.yml"
        gymnasium.make_vec("fastrl/Cage2Rows-v0", 2, scenario=str(drawn), rows=16).close()
        for env in ("Cage2Game-v0", "coop-merge-v0", "v2x-resource-v0", "lights-v0"):
            make_multi(f"fastrl/{env}", 2).close()
    finally:
        for name, made in classes.items():
            setattr(_rust, name, made)
    assert {name for name, _, _ in calls} == classes.keys()
    return calls


def others() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    network = {"obs_dim": 3, "hidden": [4], "activation": "tanh"}
    return [
        (
            "Mlp",
            (),
            {
                "kind": "discrete",
                "outputs": 2,
                **network,
                "obs_clip": None,
                "memory_size": 0,
                "num_threads": 1,
            },
        ),
        ("Mlp", (), {"kind": "multi_discrete", "outputs": 4, "nvec": [2, 2], **network}),
        ("Mlp", (), {"kind": "discrete", "outputs": 4, "table_rows": 3, **network}),
        ("Mlp", (), {"kind": "discrete", "outputs": 2, "pooling": (1, 3, 1), **network}),
        ("OffPolicySteps", ("sac",), {"obs_dim": 3, "hidden": [4], "critics": 2, "numbers": 1}),
        ("QSteps", (), {"obs_dim": 3, "hidden": [4], "actions": 2}),
        ("PpoUpdate", (), {**network, "nvec": [2], "numbers": 0, "actor_inputs": 2}),
        ("PpoUpdate", (), {**network, "nvec": [4], "table_rows": 3}),
        ("PpoUpdate", (), {**network, "nvec": [2], "pooling": (1, 3, 1), "shared_trunk": True}),
        ("IdmPlatoon", ([0.0, 20.0], [1.0, 1.0]), {"ring_length": 100.0, "dt": 0.1, "ballistic": False}),
        ("BlueMemory", (2, "full", "plusplus"), {}),
        (
            "Cage2Scenario",
            (),
            {
                "hosts": ["User0", "Op_Server0"],
                "images": ["Gateway", "OP_Server"],
                "confidentiality_tenths": [0, 10],
                "availability_tenths": 100,
                "info": [[(0, True)], [(1, True)]],
                "shows_service": [False, True],
                "subnets": [("Office", 2, [0, 1], "open")],
                "start": 0,
                "blue_sessions": [0, 0, 1],
                "green_sessions": [],
            },
        ),
        ("LockstepBarrier", (2, 64), {}),
        (
            "QueueMemory.create",
            (8, "schema", 16),
            {"max_producers": 2, "policy": "block", "order": "total", "shared": False, "name": None},
        ),
        ("Weights", (8,), {}),
        ("ring_equilibrium_speed", (3, 100.0), {}),
    ]


def made_by_others(calls: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Functions that make objects which have no constructor, by the name of their class.

    Args:
        calls: functions that make others, in the same way.
    """

    def scene() -> Any:
        ring = calls["RingVec"]()
        rows = ring.num_envs * ring.num_agents
        ring.reset(np.zeros((rows, ring.obs_dim), np.float32), np.zeros(ring.num_envs, np.uint64))
        return ring.scene(0)

    return {
        "TrafficScene": scene,
        "AsyncVec": lambda: calls["Cage2Vec"]().asynchronous(0, same_step=True, num_threads=1),
        "Queue": lambda: Queue({"id": "i8"}, 8),
        "Producer": lambda: Queue({"id": "i8"}, 8, policy="error").producer(),
    }


def variants(value: Any) -> Iterator[Any]:
    """Hostile values in place of a value, or of a part of it."""
    yield from HOSTILE
    if isinstance(value, dict):
        for key in value:
            for other in variants(value[key]):
                yield {**value, key: other}
        if "parts" in value or "type" in value:
            endless: dict[str, Any] = {"type": "TupleObservation"}
            endless["parts"] = [endless]
            yield endless
    elif isinstance(value, list | tuple) and value:
        for other in NUMBERS:
            yield type(value)([other, *value[1:]])


class Fuzzer:
    """Makes the calls, and notes the last one.

    Args:
        log: the file for it.
    """

    def __init__(self, log: Path, seed: int) -> None:
        # Written without a call of the system, and kept if the process is killed.
        log.write_bytes(b"\0" * NOTE)
        with log.open("r+b") as file:
            self.log = mmap.mmap(file.fileno(), NOTE)
        self.random, self.calls = random.Random(seed), 0
        self.calling = False

    def call(self, name: str, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        self.log[:] = f"{name} {arguments} {named}".encode()[:NOTE].ljust(NOTE, b" ")
        self.calls += 1
        try:
            self.calling = True
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            try:
                return function(*arguments, **named)
            finally:
                self.calling = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Exception:
            return None

    def interrupt(self, *_: object) -> None:
        """Handles the alarm, which may come after the call."""
        if self.calling:
            raise TimeoutError

    def construct(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Makes objects, each with one hostile argument or two."""
        make = operator.attrgetter(name)(_rust)
        given: dict[int | str, Any] = {**dict(enumerate(arguments)), **named}
        others = {key: list(variants(value)) for key, value in given.items()}
        changes = [{key: other} for key in others for other in others[key]]
        for _ in range(PAIRS if len(given) > 1 else 0):
            changes.append(
                {key: self.random.choice(others[key]) for key in self.random.sample(list(given), 2)}
            )
        for change in changes:
            values = given | change
            positional = [values.pop(place) for place in range(len(arguments))]
            self.call(name, make, *positional, **values)

    def use(self, name: str, make: Callable[[], Any], rounds: int = len(HOSTILE)) -> None:
        """Calls the methods of objects with hostile arguments."""
        for method in [each for each in dir(getattr(_rust, name)) if not each.startswith("_")]:
            made = make()
            found = getattr(made, method, None)
            if not callable(found):
                continue
            parameters = inspect.signature(found).parameters.values()
            for turn in range(rounds if parameters else 1):
                values = [
                    HOSTILE[turn] if turn < len(HOSTILE) else self.random.choice(HOSTILE) for _ in parameters
                ]
                positional = [
                    v for v, p in zip(values, parameters, strict=True) if p.kind is not p.KEYWORD_ONLY
                ]
                keywords = {
                    p.name: v for v, p in zip(values, parameters, strict=True) if p.kind is p.KEYWORD_ONLY
                }
                self.call(f"{name}.{method}", found, *positional, **keywords)


def main() -> None:
    seed, log = int(sys.argv[1]), Path(sys.argv[2])
    calls = [*recorded(), *others()]
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, taken + ROOM))
    # Of files, and so of shared memory.
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_SHARED, MOST_SHARED))
    fuzzer = Fuzzer(log, seed)
    signal.signal(signal.SIGALRM, fuzzer.interrupt)
    makers: dict[str, Callable[[], Any]] = {}
    for name, arguments, named in calls:
        fuzzer.construct(name, arguments, named)
        if inspect.isclass(getattr(_rust, name, None)):
            makers[name] = functools.partial(getattr(_rust, name), *arguments, **named)
    for name, make in (makers | made_by_others(makers)).items():
        fuzzer.use(name, make)
    print(fuzzer.calls)


if __name__ == "__main__":
    main()
