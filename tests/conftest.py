"""What every test gets."""

import pytest
from hypothesis import HealthCheck, settings

# Examples are the same in each run, so that what passed fails only after a change. Others are sought with
# `pytest --hypothesis-profile=search`. Neither minds a machine that is busy.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", PATIENT, derandomize=True, database=None)
settings.register_profile("search", PATIENT, derandomize=False, max_examples=2000, print_blob=True)
settings.load_profile("repeat")


@pytest.fixture(autouse=True)
def _no_litter(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3 makes a folder for its logs in the system's temporary one, unless it is told of another."""
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path_factory.getbasetemp() / "sb3"))
