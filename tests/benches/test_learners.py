"""Contenders that learn in processes of their own: they answer with speeds, and their failures say why."""

import pytest

import learners


@pytest.mark.slow
def test_a_contender_measures_rounds_and_peers_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(learners.PEERS, "sbx", ("no-such-package", "numpy"))
    contenders = learners.gradient_steps("dqn", {"fastrl": {"update_backend": "compiled"}})
    del contenders["Stable-Baselines3"]
    rates, left_out = learners.measured(contenders, 2)
    assert left_out == {"sbx": "not installed: pip install no-such-package numpy"}
    assert list(rates) == ["fastrl"] and len(rates["fastrl"]) == 2 and min(rates["fastrl"]) > 0


@pytest.mark.slow
def test_a_contender_that_fails_says_why() -> None:
    options = {"algorithm": "dqn", "update_backend": "none"}
    with (
        learners.contender("our gradient steps", **options) as measure,
        pytest.raises(RuntimeError, match=r"our gradient steps .* has failed: (.|\n)*update_backend"),
    ):
        measure()
