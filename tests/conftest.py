"""What every test gets."""

import pytest


@pytest.fixture(autouse=True)
def _no_litter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3 makes a folder for its logs in the system's temporary one, unless it is told of another."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path_factory.getbasetemp() / "sb3"))
