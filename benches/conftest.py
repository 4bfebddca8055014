"""Settings of the benches."""


def pytest_xdist_auto_num_workers() -> int:
    """None: what is measured has the machine to itself."""
    return 0
