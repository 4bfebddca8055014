"""The base of all errors that a user can put right."""


class UserError(Exception):
    """A mistake that a user can put right. The message is one line: where, what was expected, what came."""
