"""Environments in worker processes: the contract of vector environments, and deaths of workers and parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from paths import import_path
from waiting import TIMEOUT, is_running, wait_until

from fastrl.envs import ProcessVectorEnv, process_vector
from fastrl.testing import check_vector_env
from fastrl.utils.processes import SHARED_MEMORY


class Walk(gymnasium.Env[Any, Any]):
    """A position that starts at a random number and rises by the action; the episode terminates at `ends_at`. The
    observation [2] is the position and the number of steps. `fault` happens in the second step of an episode that
    started at `fatal`."""

    def __init__(self, ends_at: int = 6, fatal: int = -1, fault: str = "") -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Discrete(3)
        self.ends_at, self.fatal, self.fault = ends_at, fatal, fault
        self.seed: int | None = None
        self.loaded_torch = "torch" in sys.modules
        self.threads = os.environ.get("OMP_NUM_THREADS")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seed = seed
        self.start = self.place = float((options or {}).get("start", seed or 0))
        self.steps = 0
        return np.array([self.place, 0]), {"seed": -1 if seed is None else seed}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place += int(action)
        if self.start == self.fatal and self.steps == 2:
            if self.fault == "raise":
                raise ValueError("this walk is broken")
            if self.fault == "hang":
                time.sleep(10 * TIMEOUT)
            if self.fault == "exit":
                os._exit(7)
        over = self.place - self.start >= self.ends_at
        return np.array([self.place, self.steps]), float(action), over, False, {"steps": self.steps}

    def double(self, x: int) -> float:
        return 2 * x + self.place


class Various(gymnasium.Env[Any, Any]):
    """An environment without array spaces, or with other spaces each time."""

    made = 0

    def __init__(self, kind: str) -> None:
        Various.made += 1
        size = Various.made if kind == "differ" else 2
        one = Box(0, 1, (size,), np.float32)
        self.observation_space = Dict({"a": one}) if kind == "dict" else one
        self.action_space = Discrete(2)


def broken() -> Any:
    raise RuntimeError("nobody can build this")


def arrays(env: ProcessVectorEnv) -> list[NDArray[Any]]:
    n = env.num_envs
    return [
        np.zeros((n, 2), np.float32),
        np.zeros(n, np.float32),
        np.zeros(n, np.bool_),
        np.zeros(n, np.bool_),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_it_is_a_correct_vector_environment(mode: AutoresetMode) -> None:
    def make(num_envs: int, autoreset_mode: AutoresetMode) -> ProcessVectorEnv:
        return ProcessVectorEnv(
            "CartPole-v1",
            num_envs,
            min(num_envs, 2),
            autoreset_mode=autoreset_mode,
            max_episode_steps=20,
            start_method="forkserver",
            info=True,
        )

    check_vector_env(make, modes=[mode], steps=40, time_limit=20)


@pytest.fixture(scope="module")
def walks() -> Any:
    with closing(
        ProcessVectorEnv(Walk, 5, 2, autoreset_mode="same_step", info=True, start_method="forkserver")
    ) as env:
        yield env


@pytest.mark.parametrize("action", [-1, 3, 2**32, 2**63, 2**64 - 1])
def test_an_action_outside_the_space_is_refused_before_the_step(walks: ProcessVectorEnv, action: int) -> None:
    walks.reset(seed=0)
    actions: NDArray[Any] = np.zeros(5, np.int64 if action < 2**63 else np.uint64)
    actions[3] = action
    with pytest.raises(
        ValueError, match=rf"expected those of Discrete\(3\), got {action} for environment 3$"
    ):
        walks.step(actions)
    out = arrays(walks)
    # An environment that does not step may have any action.
    walks.step_into(actions, *out, mask=np.arange(5) != 3)
    assert out[0][:, 1].tolist() == [1, 1, 1, 0, 1]
    assert walks.step(np.ones(5, np.int64))[0][:, 1].tolist() == [2, 2, 2, 1, 2]


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (Discrete(3, start=-1), [-1, 1], [-2, 2]),
        (MultiDiscrete([2, 3]), [[0, 0], [1, 2]], [[2, 0], [0, -1]]),
        (MultiDiscrete([2, 3], start=[5, 0]), [[5, 2]], [[0, 0], [7, 0]]),
        (MultiBinary(2), [[0, 1]], [[0, 2], [-1, 0]]),
        (Box(-1, 5, (2,), np.int8), [[-1, 5]], [[0, 6], [-2, 0]]),
    ],
)
def test_bounds_of_actions(space: Any, inside: list[Any], outside: list[Any]) -> None:
    low, high = process_vector.bounds(space) or (0, 0)
    for action in inside:
        assert space.contains(np.array(action, space.dtype))
        assert np.all((low <= np.array(action)) & (np.array(action) <= high))
    for action in outside:
        assert not np.all((low <= np.array(action)) & (np.array(action) <= high))
    assert process_vector.bounds(Box(-1, 1, (2,), np.float32)) is None


def test_infos_agree_with_gymnasium(walks: ProcessVectorEnv) -> None:
    same = gymnasium.vector.SyncVectorEnv([Walk] * 5, autoreset_mode=AutoresetMode.SAME_STEP)
    ours, theirs = walks.reset(seed=[1, 2, 3, 4, 5]), same.reset(seed=[1, 2, 3, 4, 5])
    for _ in range(8):
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert set(ours[-1]) == set(theirs[-1])
        for key in ours[-1].keys() - {"final_obs", "final_info"}:
            np.testing.assert_array_equal(ours[-1][key], theirs[-1][key])
        if "final_obs" in ours[-1]:
            ended = ours[-1]["_final_obs"]
            np.testing.assert_array_equal(
                ours[-1]["final_obs"][ended], np.stack(theirs[-1]["final_obs"][ended])
            )
            np.testing.assert_array_equal(ours[-1]["final_info"]["steps"], theirs[-1]["final_info"]["steps"])
        actions = np.array([0, 1, 2, 2, 1])
        ours, theirs = walks.step(actions), same.step(actions)


def test_next_seeds_are_used_once_at_the_next_end(walks: ProcessVectorEnv) -> None:
    obs, rewards, terminations, truncations = arrays(walks)
    final_obs = np.full((5, 2), -1, np.float32)
    walks.reset_into(obs, seed=[10, 20, 30, 40, 50])
    walks.next_seeds[:] = [100, 200, 300, 400, 500]
    actions = np.array([2, 2, 0, 0, 2])
    for step in range(3):
        walks.step_into(actions, obs, rewards, terminations, truncations, final_obs)
        assert terminations.tolist() == [step == 2] * 2 + [False] * 2 + [step == 2]
    assert obs[:, 0].tolist() == [100, 200, 30, 40, 500]
    assert final_obs.tolist() == [[16, 3], [26, 3], [-1, -1], [-1, -1], [56, 3]]
    assert walks.next_seeds.tolist() == [-1, -1, 300, 400, -1]


def test_no_reset_skips_the_autoreset(walks: ProcessVectorEnv) -> None:
    step = arrays(walks)
    final_obs = np.zeros((5, 2), np.float32)
    walks.reset_into(step[0], seed=[10] * 5)
    walks.next_seeds[:] = [-2, 7, 7, 7, 7]
    for _ in range(3):
        walks.step_into(np.full(5, 2), *step, final_obs)
    assert step[0].tolist() == [[16, 3]] + [[7, 0]] * 4
    assert final_obs.tolist() == [[16, 3]] * 5
    with pytest.raises(ResetNeeded, match="environment 0 has to be reset"):
        walks.step_into(np.full(5, 2), *step)
    walks.step_into(np.full(5, 2), *step, mask=np.arange(5) > 0)
    walks.reset_into(step[0], seed=[20] * 5, reset_mask=np.arange(5) == 0)
    assert step[0].tolist() == [[20, 0]] + [[9, 1]] * 4


def test_only_environments_of_the_mask_step_and_reset(walks: ProcessVectorEnv) -> None:
    obs, rewards, terminations, truncations = arrays(walks)
    walks.reset_into(obs, seed=[10, 20, 30, 40, 50])
    mask = np.array([False, True, False, True, False])
    before = obs.copy()
    walks.step_into(np.full(5, 2), obs, rewards, terminations, truncations, mask=mask)
    assert obs[:, 1].tolist() == [0, 1, 0, 1, 0] and rewards.tolist() == [0, 2, 0, 2, 0]
    np.testing.assert_array_equal(obs[~mask], before[~mask])
    walks.reset_into(obs, seed=[7] * 5, reset_mask=~mask)
    assert obs.tolist() == [[7, 0], [22, 1], [7, 0], [42, 1], [7, 0]]


def test_options_attributes_and_calls_reach_the_environments(walks: ProcessVectorEnv) -> None:
    obs, _ = walks.reset(seed=0, options={"start": 3.0})
    assert obs[:, 0].tolist() == [3.0] * 5
    assert walks.call("double", 2) == (7.0,) * 5
    walks.set_attr("place", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert walks.get_attr("place") == (1.0, 2.0, 3.0, 4.0, 5.0)
    with pytest.raises(RuntimeError, match=r"(?s)'nothing' of an environment.*AttributeError"):
        walks.get_attr("nothing")
    walks.set_attr("ends_at", 6)
    assert walks.get_attr("ends_at") == (6,) * 5


def test_workers_load_no_torch_and_keep_to_one_thread() -> None:
    with closing(ProcessVectorEnv(Walk, 1)) as env:
        assert env.get_attr("loaded_torch") == (False,)
        assert env.get_attr("threads") == (os.environ.get("OMP_NUM_THREADS", "1"),)
        spent, _ = env.worker_seconds[0]
        env.reset()
        assert env.worker_seconds[0, 0] > spent


def with_fault(fault: str, num_envs: int = 4, **options: Any) -> ProcessVectorEnv:
    return ProcessVectorEnv(
        Walk,
        num_envs,
        2,
        fatal=3,
        fault=fault,
        autoreset_mode="disabled",
        start_method="forkserver",
        **options,
    )


@pytest.mark.parametrize(
    ("fault", "cause", "traceback"),
    [
        ("raise", "ValueError: this walk is broken", "this walk is broken"),
        ("exit", "exit code 7", ""),
        ("hang", "no answer for 0.5 s", ""),
        ("kill", "killed by SIGKILL", ""),
    ],
)
def test_a_dead_worker_is_reported_and_replaced(fault: str, cause: str, traceback: str) -> None:
    if fault == "hang":
        # On a stalled machine the other worker may give no answer, too.
        wait_until(lambda: one_dies(fault, cause, traceback))
    else:
        assert one_dies(fault, cause, traceback)


def one_dies(fault: str, cause: str, traceback: str) -> bool:
    """Tells whether all others step."""
    with closing(with_fault(fault, step_timeout=0.5 if fault == "hang" else None)) as env:
        obs, rewards, terminations, truncations = arrays(env)
        actions = np.array([1, 1, 1, 1])
        try:
            env.reset_into(obs, seed=[1, 2, 3, 4])  # the second worker has 3 and 4
            env.step_into(actions, obs, rewards, terminations, truncations)
        except RuntimeError:
            return False
        if fault == "kill":
            os.kill(env.pids[1], signal.SIGKILL)
        with pytest.raises(RuntimeError, match=cause) as error:
            env.step_into(actions, obs, rewards, terminations, truncations)
        death, *others = error.value.deaths  # type: ignore[attr-defined]
        if others:
            return False
        assert (death.worker, death.envs, death.cause) == (1, range(2, 4), cause)
        assert traceback in death.traceback and ("Traceback" in death.traceback) == bool(traceback)
        # The other environments have stepped.
        assert obs.tolist() == [[3, 2], [4, 2], [4, 1], [5, 1]]
        with pytest.raises(RuntimeError, match=cause):
            env.step_into(actions, obs, rewards, terminations, truncations)
        env.step_timeout = None
        env.restart()
        with pytest.raises(ResetNeeded, match="environment 2 has to be reset"):
            env.step(actions)
        env.reset_into(obs, seed=[9] * 4, reset_mask=np.array([False, False, True, True]))
        env.step_into(actions, obs, rewards, terminations, truncations)
        assert obs.tolist() == [[4, 3], [5, 3], [10, 1], [10, 1]]
        return True


def test_an_interrupted_step_is_finished_before_the_next_call(tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    with closing(ProcessVectorEnv(Sleepy, 1, path=str(steps), start_method="forkserver")) as env:
        env.reset()
        before = signal.signal(signal.SIGALRM, interrupt)
        main = threading.get_ident()

        def interrupt_it() -> None:
            wait_until(steps.exists)
            signal.pthread_kill(main, signal.SIGALRM)

        thread = threading.Thread(target=interrupt_it)

        def step_until_interrupted() -> None:
            thread.start()
            env.step(np.array([1]))
            thread.join()

        try:
            with pytest.raises(InterruptedError):
                step_until_interrupted()
        finally:
            signal.signal(signal.SIGALRM, before)
            steps.with_suffix(".end").touch()
        obs, *_ = env.step(np.array([0]))
        assert obs.tolist() == [[1, 2]]


def interrupt(*_: Any) -> None:
    raise InterruptedError


class Sleepy(Walk):
    """A walk whose steps with another action than 0 create a file, and last until there is another file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def step(self, action: Any) -> Any:
        if action:
            self.path.touch()
            wait_until(self.path.with_suffix(".end").exists)
        return super().step(action)


@pytest.mark.parametrize(
    ("env", "options", "expected"),
    [
        (lambda: Walk(), {}, "does not pickle"),
        (Walk(), {}, "got an environment"),
        (Walk, {"num_envs": 0}, "num_envs: expected at least 1, got 0"),
        (Walk, {"num_workers": -1}, "num_workers: expected at least 1, got -1"),
        (Walk, {"num_workers": 3}, "at most one an environment, 2, got 3"),
        (Walk, {"num_workers": 1.5}, "num_workers: expected an integer"),
        (Walk, {"start_method": "fork"}, "'spawn' or 'forkserver', got 'fork'"),
        (Walk, {"step_timeout": 0}, "step_timeout: expected more than 0"),
        (Walk, {"autoreset_mode": "never"}, "autoreset_mode"),
        (Various, {"kind": "dict"}, "FlattenObservation"),
        (Various, {"kind": "differ"}, "environment 1 are Box"),
        (broken, {}, r"worker 0 .environment 0 to 1.: RuntimeError: nobody can build this\n\nTraceback"),
        (Walk, {"nothing": 1}, "unexpected keyword argument 'nothing'"),
        ("Cartpole-v1", {}, "did you mean CartPole-v1"),
    ],
)
def test_mistakes_raise_clear_errors(env: Any, options: dict[str, Any], expected: str) -> None:
    if "num_envs" not in options:
        options = {"num_envs": 2, "num_workers": 1, **options}
    with pytest.raises((TypeError, ValueError, RuntimeError), match=expected):
        ProcessVectorEnv(env, **{"start_method": "forkserver", **options})


def test_misuse_is_refused_and_changes_nothing(walks: ProcessVectorEnv) -> None:
    obs, rewards, terminations, truncations = arrays(walks)
    walks.reset_into(obs, seed=1)
    step = (obs, rewards, terminations, truncations)
    for wrong, error, text in (
        (np.zeros(4, np.int64), ValueError, "actions: expected shape"),
        (np.zeros(5), TypeError, "actions: expected int64, got float64"),
    ):
        with pytest.raises(error, match=text):
            walks.step_into(wrong, *step)
    with pytest.raises(ValueError, match="obs: expected shape"):
        walks.step_into(np.zeros(5, np.int64), obs[:4], *step[1:])
    with pytest.raises(TypeError, match="mask: expected an array of bool"):
        walks.step_into(np.zeros(5, np.int64), *step, mask=[True] * 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed: expected 0 to"):
        walks.reset(seed=[-2] * 5)
    walks.step_into(np.ones(5, np.int64), *step)
    assert obs[:, 1].tolist() == [1] * 5
    env = ProcessVectorEnv(Walk, 1, start_method="forkserver")
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.reset()


PARENT = """
import sys, time
import numpy as np
from fastrl.envs import ProcessVectorEnv, process_vector
from test_process_vector import Walk

if __name__ == "__main__":
    env = ProcessVectorEnv(Walk, 4, 2, start_method=sys.argv[1])
    env.reset(seed=0)
    print(env._pool._barrier.name, *env.pids, flush=True)
    while sys.argv[2] == "kill":
        env.step(np.ones(4, np.int64))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "end"), [("spawn", "kill"), ("forkserver", "kill"), ("spawn", "forget")])
def test_workers_and_memory_of_a_killed_or_careless_parent_are_removed(
    method: str, end: str, tmp_path: Path
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    arguments = [sys.executable, str(script), method, end]
    parent = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": import_path(__file__)},
    )
    try:
        assert parent.stdout is not None and parent.stderr is not None
        name, *pids = parent.stdout.readline().split()
        memory = Path(SHARED_MEMORY + name)
        if end == "kill":
            assert memory.exists() and all(is_running(int(pid)) for pid in pids)
            time.sleep(0.1)
            parent.kill()
        assert parent.wait(TIMEOUT) == (-signal.SIGKILL if end == "kill" else 0)
        wait_until(lambda: not any(is_running(int(pid)) for pid in pids), "workers are still running")
        wait_until(lambda: not memory.exists(), "shared memory is left")
        assert parent.stderr.read() == ""
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.slow
def test_ctrl_c_ends_the_parent_and_workers_print_no_traceback(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    arguments = [sys.executable, str(script), "spawn", "kill"]
    parent = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": import_path(__file__)},
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None and parent.stderr is not None
        name, *pids = parent.stdout.readline().split()
        os.killpg(parent.pid, signal.SIGINT)
        parent.wait(TIMEOUT)
        output = parent.stderr.read()
        assert output.count("Traceback") == 1 and output.rstrip().endswith("KeyboardInterrupt")
        wait_until(lambda: not any(is_running(int(pid)) for pid in pids), "workers are still running")
        assert not Path(SHARED_MEMORY + name).exists()
    finally:
        parent.kill()
        parent.wait()
