"""Absurd arguments of the native classes end in Python's errors."""

import subprocess
import sys
from pathlib import Path

import pytest
from paths import SUPPORT

from fastrl._native import _rust


@pytest.mark.slow
def test_no_panic_passes_the_binding(tmp_path: Path) -> None:
    log = tmp_path / "last"
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "native_fuzz.py"), "0", str(log)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = log.read_text() if log.exists() else ""
    assert done.returncode == 0 and "panicked" not in done.stderr, f"{last}\n{done.stderr}"
    assert int(done.stdout) > 10_000


def test_a_sequence_is_as_long_as_its_items() -> None:
    class Lying(list[float]):
        length = 2**62

        def __len__(self) -> int:
            return self.length

    lying = Lying([0.0, 20.0])
    assert _rust.IdmPlatoon(lying, lying).positions.tolist() == [0.0, 20.0]
    lying.length = 1
    with pytest.raises(ValueError, match="more items than its length 1"):
        _rust.IdmPlatoon(lying, lying)
