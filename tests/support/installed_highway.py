"""The installed highway-env: importing this module skips the tests of a module that need the reference's version."""

from importlib.metadata import PackageNotFoundError, version

import pytest

try:
    found = version("highway-env")
except PackageNotFoundError:
    pytest.skip("highway-env is not installed: pip install 'fastrl[test]'", allow_module_level=True)
if found != "1.12.1":
    pytest.skip(f"highway-env 1.12.1 is the reference, {found} is installed", allow_module_level=True)
