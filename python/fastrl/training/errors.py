"""Errors of runs."""

from fastrl.utils.errors import UserError


class TrainError(UserError, RuntimeError):
    """A run that cannot start or resume, for a reason that its user can act on; one line."""
