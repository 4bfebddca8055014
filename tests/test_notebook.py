"""Training in a notebook: a real kernel of Jupyter, whose cells are run, interrupted and run again; and the example
notebooks, with small budgets."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import TIMEOUT

pytest.importorskip("ipykernel", reason="pip install '.[test-all]'")
pytest.importorskip("jupyter_client", reason="pip install '.[test-all]'")
pytestmark = pytest.mark.slow
# Seconds in which a cell should have ended.
PATIENCE = TIMEOUT

Run = Callable[..., str]
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a cell of a notebook and returns what it shows; interrupts it when a text is shown."""
    from jupyter_client.manager import KernelManager

    manager: Any = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()

    def run(code: str, interrupt_at: str = "") -> str:
        sent, shown, until = client.execute(code), "", time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < until, f"no end within {PATIENCE:g} s, shown so far: {shown}"
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown += content["text"]
            elif kind in ("display_data", "update_display_data", "execute_result"):
                shown += content["data"].get("text/plain", "")
            elif kind == "error":
                shown += f"{content['ename']}: {content['evalue']}\n"
            elif kind == "status" and content["execution_state"] == "idle":
                return shown
            if interrupt_at and interrupt_at in shown:
                interrupt_at = ""
                manager.interrupt_kernel()

    try:
        client.wait_for_ready(timeout=PATIENCE)
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_notebook_shows_progress_is_interrupted_and_goes_on(run: Run) -> None:
    run("""
import gymnasium, fastrl
from fastrl.callbacks import Callback
class Say(Callback):
    def on_update(self, run):
        if run.iterations == 3: print("under way", flush=True)
small = dict(num_envs=4, num_steps=32, minibatch_size=64, hidden=[8], row_seconds=0)
model = fastrl.PPO("CartPole-v1", collector="sequential", **small)
""")
    shown = run("model.learn(512); print(len(model.metrics), model.steps)")
    assert "[" + 30 * "█" + "] 100%  512/512 steps" in shown and "approx_kl" in shown and "4 512\n" in shown
    assert "(" in run("print(model.evaluate(2))")
    shown = run(
        "model = fastrl.PPO('CartPole-v1', collector='sequential', **small)\nmodel.learn(10**8, callbacks=[Say()])",
        "under way",
    )
    assert "KeyboardInterrupt" in shown
    steps = int(run("print(model.steps)"))
    assert 3 * 128 <= steps < 10**8
    assert run("model.learn(128, progress=False); print(model.steps)").split()[-1] == str(steps + 128)
    assert "(" in run("print(model.evaluate(2))")


def test_workers_of_a_notebook(run: Run) -> None:
    run("""
import gymnasium, fastrl
from gymnasium.envs.classic_control import CartPoleEnv
class Mine(CartPoleEnv):
    pass
small = dict(num_envs=2, num_steps=16, minibatch_size=16, hidden=[8], n_workers=2)
def learn(env, collector):
    return fastrl.PPO(env, collector=collector, **small).learn(64, progress=False).summary.collector
""")
    assert run("print(learn('CartPole-v1', 'sync'), learn('CartPole-v1', 'executor'))") == "sync executor\n"
    # A class of the notebook is in its process alone.
    assert run("print(learn(Mine, 'auto'))") == "sequential\n"
    shown = run("learn(Mine, 'sync')").splitlines()[-1]
    assert "put the function that makes it into a module" in shown
    # So is a network.
    run("""
import torch
class Net(torch.nn.Module):
    def __init__(self, obs_space, action_space):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
    def forward(self, obs):
        found = self.layer(obs)
        return found[:, :2], found[:, 2]
small = dict(num_envs=2, num_steps=16, minibatch_size=16, n_workers=2, network=Net)
""")
    assert run("print(learn('CartPole-v1', 'auto'))") == "sequential\n"
    shown = run("learn('CartPole-v1', 'executor')").splitlines()[-1]
    assert "Net is defined in a notebook or a shell" in shown and "collect with 'sequential'" in shown


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_notebook_runs(notebook: Path, run: Run, tmp_path: Path) -> None:
    run(f"""
import os, sys
os.chdir({str(tmp_path)!r})
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
os.environ["MPLBACKEND"] = "agg"
import pages, pytest
pages.with_small_budgets(pytest.MonkeyPatch())
""")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            shown = run("".join(cell["source"]))
            assert "Error" not in shown, shown
