"""Environments that do not fit into memory, and altered states, are refused with an error, never with a crash.

The compiled side's own test (`rust/core/tests/state_properties.rs`) alters many more of them.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from waiting import TIMEOUT

from fastrl.envs import (
    Cage2VectorEnv,
    Cage2WorkflowVectorEnv,
    ClassicVectorEnv,
    HighwayVectorEnv,
    NativeVectorEnv,
    RingVectorEnv,
)
from fastrl.envs.multi_agent import MultiAgentVectorEnv
from fastrl.envs.registration import make_multi


def few_agents() -> MultiAgentVectorEnv:
    """A crossing whose difficulty has been changed."""
    env = make_multi(
        "fastrl/intersection-multi-agent-v2", 2, config={"controlled_vehicles": 3}, num_threads=1
    )
    env.set_difficulty(num_agents=2, density=0.3)
    return env


MAKERS: dict[str, Callable[[], NativeVectorEnv | MultiAgentVectorEnv]] = {
    "cage2": lambda: Cage2VectorEnv(2, red_agent="mix", num_threads=1),
    "cage2 with Python's draws": lambda: Cage2VectorEnv(2, random="python", num_threads=1),
    "workflow": lambda: Cage2WorkflowVectorEnv(2, num_threads=1),
    "highway": lambda: HighwayVectorEnv(2, config={"vehicles_count": 4}, num_threads=1),
    "cartpole": lambda: ClassicVectorEnv(2, num_threads=1),
    "acrobot": lambda: ClassicVectorEnv(2, task="Acrobot", num_threads=1),
    "ring": lambda: RingVectorEnv(2, num_threads=1, warmup_steps=1, horizon=20),
    "coop": lambda: make_multi("fastrl/coop-merge-v0", 2, max_agents=3, background=2, num_threads=1),
    "crossing with few agents": few_agents,
}


@cache
def played(name: str) -> bytes:
    """A state within an episode."""
    env = MAKERS[name]()
    env.reset(seed=3)
    step(env, 3)
    return env.save_state()


def step(env: NativeVectorEnv | MultiAgentVectorEnv, times: int) -> None:
    shape: tuple[int, ...] = env.single_action_space.shape or ()
    shape = (2, env.num_agents, *shape) if isinstance(env, MultiAgentVectorEnv) else (2, *shape)
    actions: Any = np.ones(shape, env.single_action_space.dtype)
    for _ in range(times):
        env.step(actions)


def mended(body: bytes) -> bytes:
    """A state with that body and its checksum."""
    return b"fastrlv2" + zlib.crc32(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("name", MAKERS)
def test_an_altered_state_is_refused_or_works(name: str) -> None:
    env, body = MAKERS[name](), played(name)[12:]
    refused = 0
    for at in range(0, len(body), 1 + len(body) // 1000):
        for byte in (0, 99, 255):
            altered = body[:at] + bytes([byte]) + body[at + 1 :]
            env.load_state(played(name))
            try:
                env.load_state(mended(altered))
            except ValueError as error:
                assert str(error).startswith("this environment state cannot be restored: ")  # noqa: PT017
                refused += 1
            with suppress(gymnasium.error.ResetNeeded):  # it may have to be reset first
                step(env, 2)
    assert refused > 50
    env.load_state(played(name))
    assert env.save_state() == played(name)


@pytest.mark.parametrize("name", MAKERS)
def test_the_error_names_the_defect_of_a_state(name: str) -> None:
    env, body = MAKERS[name](), played(name)[12:]
    for wrong, why in (
        (b"", "not have the form"),
        (body[:-1], "form|saved by"),
        (body + b"\0", "more follows"),
        (b"\x05other" + body, "saved by other, this is"),
    ):
        with pytest.raises(ValueError, match=f"cannot be restored: .*({why})"):
            env.load_state(mended(wrong))


LIMITED = """
import resource
from fastrl.envs import Cage2VectorEnv, Cage2WorkflowVectorEnv, HighwayVectorEnv, RingVectorEnv, make_multi

pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (4096 * pages + (200 << 20),) * 2)
for make, most in (
    (Cage2VectorEnv, 1 << 24),
    (Cage2WorkflowVectorEnv, 1 << 24),
    (HighwayVectorEnv, 1 << 24),
    (RingVectorEnv, 1 << 24),
    (lambda n, **options: make_multi("fastrl/coop-merge-v0", n, **options), 1 << 20),
):
    for count in (most, 1 << 18):
        try:
            make(count, num_threads=1)
        except MemoryError as error:
            print(error)
    make(8, num_threads=1).reset(seed=0)
env = Cage2VectorEnv(1 << 16, num_threads=1)
env.reset(seed=0)
taken = []
try:
    while True:
        taken.append(bytes(1 << 20))
except MemoryError:
    pass
try:
    env.save_state()
except MemoryError as error:
    taken.clear()
    print(error)
print("alive", len(env.save_state()) > 1 << 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and limits the address space")
def test_too_many_environments_are_a_memory_error() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=TIMEOUT)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("16777216 environments need about ")
    assert lines[0].endswith(" MB of memory, more than there is")
    assert sum("need about" in line for line in lines) >= 8
    assert lines[-2] == "there is not enough memory to save the state of 65536 environments"
    assert lines[-1] == "alive True"
