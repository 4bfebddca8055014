"""Checkpoints that name a network which their settings do not: nothing is imported for them."""

import sys
from pathlib import Path

import pytest
from small_runs import trainer_of

from fastrl.runs.checkpoint import CheckpointError, save_checkpoint
from fastrl.tasks import find
from fastrl.training.evaluation_options import EvaluationOptions
from fastrl.training.run import evaluate_run

EVIL = {"kind": "own", "architecture": {"path": "never_imported:Net", "options": {}}, "weights": {}}


@pytest.mark.parametrize("network", [None, "own_networks:Net"])
def test_evaluation_imports_what_the_settings_name_alone(tmp_path: Path, network: str | None) -> None:
    options = () if network is None else ("--ppo.network", network)
    trainer = trainer_of(
        "gym", "--env", "CartPole-v1", "--preset", "smoke", "--collector", "sequential", *options
    )
    state = trainer.state_dict()
    state["policy"] |= EVIL
    file = tmp_path / "step-000000000001.safetensors"
    save_checkpoint(file, state)
    with pytest.raises(CheckpointError, match="the saved policy has the network never_imported:Net"):
        evaluate_run(find("gym"), file, EvaluationOptions(1), trust=network is not None)
    assert "never_imported" not in sys.modules
