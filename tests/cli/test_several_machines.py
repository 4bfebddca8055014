"""Runs on several machines, as far as one machine can show them: two agents of torchrun, two nodes of Ray."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from paths import import_path
from waiting import TIMEOUT

from fastrl.cli.main import main

OPTIONS = [
    "CartPole-v1",
    "--num-envs=4",
    "--ppo.num-steps=16",
    "--ppo.hidden=8",
    "--run.shards=2",
    "--run.eval-episodes=0",
    "--run.row-seconds=0",
    "--run.checkpoint-seconds=0",
    "--device=cpu",
]
# Ray would give the workers of a cluster a low priority, so that beside other tests they would hardly start.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}


def train_command(run: Path, *options: str) -> list[str]:
    return ["train", *OPTIONS, f"--run-dir={run}", *options]


def agents(port: int, run: Path, *options: str) -> list[subprocess.Popen[str]]:
    """Two agents of torchrun, each with one rank."""
    return [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes=2",
                "--nproc-per-node=1",
                f"--node-rank={node}",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                *("-m", "fastrl", *train_command(run, "--collector=sequential", *options)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        for node in range(2)
    ]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def kill(*groups: "subprocess.Popen[str]") -> None:
    for each in groups:
        for child in children(each.pid):
            os.kill(child, signal.SIGKILL)
        each.kill()
        each.communicate()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def newest(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint."""
    return safetensors.torch.load_file(max((run / "checkpoints").glob("step-*.safetensors")))


def wait_for_checkpoint(run: Path, *processes: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + TIMEOUT
    while not list(run.glob("checkpoints/step-*")):
        assert all(each.poll() is None for each in processes) and time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
def test_two_agents_of_torchrun_learn_what_one_process_learns(tmp_path: Path) -> None:
    both = agents(free_port(), tmp_path / "two", "--total-timesteps=256")
    try:
        for each in both:
            _, errors = each.communicate(timeout=TIMEOUT)
            assert each.returncode == 0, errors
    finally:
        kill(*both)
    assert main(train_command(tmp_path / "one", "--collector=sequential", "--total-timesteps=256")) == 0
    one, two = newest(tmp_path / "one"), newest(tmp_path / "two")
    weights = [name for name in one if name.endswith((".weight", ".bias"))]
    assert len(weights) > 3 and one.keys() == two.keys()
    for name in weights:
        assert torch.equal(one[name], two[name]), name


@pytest.mark.slow
def test_the_loss_of_an_agents_rank_ends_both(tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = agents(free_port(), run, "--total-timesteps=100000000", "--run.rank-timeout=5")
    try:
        wait_for_checkpoint(run, *both)
        [hung] = children(both[1].pid)
        os.kill(hung, signal.SIGSTOP)
        # Its own agent sees the other one fail.
        _, errors = both[0].communicate(timeout=TIMEOUT)
        assert both[0].returncode == 1
        assert (
            "fastrl train: error: rank 1 of 2 has not answered for 5 s (run.rank_timeout), so all end"
            in errors
        )
    finally:
        kill(*both)
    assert newest(run)


# `fastrl` that waits 25 s in place of 120 for a processor of the Ray cluster.
IMPATIENT = """
import sys
from fastrl.collectors import ray_collector

ray_collector.START_TIMEOUT_S = 25.0
from fastrl.cli.main import main

sys.exit(main(sys.argv[1:]))
"""

# Each node has one processor, so that one of two workers is on the second node.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

memory = {"object_store_memory": 80 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
nodes = []
print(cluster.address, flush=True)
for line in sys.stdin:
    if line == "add\\n":
        nodes.append(cluster.add_node(num_cpus=1, **memory))
    else:
        cluster.remove_node(nodes.pop(0), allow_graceful=False)
    print(line, end="", flush=True)
cluster.shutdown()
"""


class RayCluster:
    """A Ray cluster in a process of its own: a head, and nodes that are added and removed, the oldest first."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        self.address = self._read()

    def ask(self, word: str) -> None:
        """Adds ("add") or kills ("remove") a node."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._read() == word

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts a command of ``fastrl`` that uses the cluster, with these variables beside its environment."""
        return subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, *command, f"--ray-address={self.address}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**ENVIRONMENT, **environment},
        )

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="pip install '.[test-all]'")
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_the_loss_of_nodes_of_ray(cluster: RayCluster, tmp_path: Path) -> None:
    """A worker moves to a free processor of another node; where there is none the run ends with a line."""
    run = tmp_path / "run"
    cluster.ask("add")
    options = ["--collector=ray", "--n-workers=2", "--total-timesteps=100000000"]
    training = cluster.start(*train_command(run, *options))
    try:
        wait_for_checkpoint(run, training)
        cluster.ask("add")
        cluster.ask("remove")
        until = time.monotonic() + TIMEOUT
        while not newest_row(run)[0]:
            assert training.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        steps = newest_row(run)[1]
        while newest_row(run)[1] < steps + 640:
            assert training.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        cluster.ask("remove")
        out, _ = training.communicate(timeout=TIMEOUT)
    finally:
        kill(training)
    assert training.returncode == 1
    assert out.splitlines()[-1].startswith("fastrl train: error: worker ")
    assert out.splitlines()[-1].endswith("the Ray cluster should have a free processor for each worker")
    assert newest(run)


# CartPole that waits in each step until there is a file, so that no member ends before.
HELD_CARTPOLE = """
import time
from pathlib import Path

import gymnasium

GO_ON = Path(__file__).parent / "go_on"


class Held(gymnasium.Wrapper):
    def step(self, action):
        if not GO_ON.exists():
            time.sleep(0.03)
        return self.env.step(action)


def make_env():
    return Held(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.slow
def test_a_population_outlives_a_node_of_ray(cluster: RayCluster, tmp_path: Path) -> None:
    """Its member goes on from its checkpoint on the other node, which then trains all alone."""
    directory = tmp_path / "search"
    (tmp_path / "held_cartpole.py").write_text(HELD_CARTPOLE)
    options = [
        "--env=held_cartpole:make_env",
        *("--method=pbt", "--trials=3", "--generations=2", "--n-workers=2", "--total-timesteps=6000"),
        *("--confirm=1", "--confirm-seeds=2", "--report-episodes=2"),
        *("--run.eval-episodes=2", "--run.checkpoint-seconds=1"),
        *("--ppo.hidden=8", "--num-envs=4", "--collector=sequential", "--ppo.num-steps=16"),
    ]
    cluster.ask("add")
    search = cluster.start("tune", *options, f"--dir={directory}", PYTHONPATH=import_path(tmp_path))
    try:
        until = time.monotonic() + TIMEOUT
        while len(list(directory.glob("trials/member-*/metrics.jsonl"))) < 2:
            assert search.poll() is None, search.stdout.read()
            assert time.monotonic() < until
            time.sleep(0.1)
        cluster.ask("remove")
        (tmp_path / "go_on").touch()
        out, _ = search.communicate(timeout=TIMEOUT)
        assert search.returncode == 0, out
    finally:
        kill(search)
    events = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    counts = Counter((each["event"], each["trial"]) for each in events)
    names = {name for _, name in counts}
    assert {name for name in names if name.startswith("member")} == {
        f"member-{generation:03d}-{member:03d}" for generation in range(2) for member in range(3)
    }
    assert len(names) == 6 + 2 + 2
    assert all(counts["started", name] == counts["ended", name] == 1 for name in names)
    assert sum(count for (event, _), count in counts.items() if event == "killed") == 1


def newest_row(run: Path) -> tuple[int, int]:
    """Restarts of workers, and environment steps."""
    rows = (run / "metrics.jsonl").read_text().splitlines()
    row = json.loads(rows[-1]) if rows else {}
    return int(row.get("collect/restarts", 0)), int(row.get("time/total_timesteps", 0))
