import json
import re
from typing import Any

import pytest

import compare_transports
from compare_transports import SETTINGS, Flow, command
from fastrl.cli.main import run_command
from fastrl.utils.progress import Progress


def run(*arguments: str) -> int:
    return run_command(command, "compare_transports.py", list(arguments))


def test_the_help_lists_the_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []

    def compare(settings: Any, seconds: float, rounds: int, progress: Progress) -> dict[str, list[Flow]]:
        measured.append(settings)
        raise ValueError("enough")

    monkeypatch.setattr(compare_transports, "compare", compare)
    with pytest.raises(SystemExit):
        run("--help")
    listed = capsys.readouterr().out.partition("except for")[2]
    settings = re.findall(r"--[\w.-]+=\S+|--no-[\w.-]+", listed)
    assert len(settings) == sum(map(len, SETTINGS.values()))
    assert run() == run(*settings) == 2
    assert measured[0] == measured[1]
    assert measured[0].env.id == SETTINGS["env"]["id"]


@pytest.mark.slow
def test_the_command_compares_four_transports(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seconds=0.2", "--rounds=1", "--json", "--n-workers=1", "--num-envs=1"]
    assert run(*options, "--replay.learning-starts=100") == 0
    flows = json.loads(capsys.readouterr().out)
    assert [flow["transport"] for flow in flows] == [
        "fastrl.queue",
        "multiprocessing.Queue",
        "lock and buffer",
        "nothing",
    ]
    for flow in flows:
        assert flow["experience"] > 0 and flow["batches"] > 0
        assert flow["dropped"] == 0
        assert 0 <= flow["wait_share"] <= 1 and 0 <= flow["transport_share"] <= 1
