"""The module that runs in workers in place of the program that started them; see `fastrl.utils.main_module`."""

from fastrl.utils.main_module import main_attribute as __getattr__  # noqa: F401 - Python calls it
from fastrl.utils.main_module import wait_with_main

wait_with_main(globals())
