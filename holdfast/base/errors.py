"""The exceptions that cross module boundaries.

HoldfastError
+-- UsageError        the caller's input is wrong: one line, exit code 2
+-- ProtocolError     the peer uses a protocol that we do not support
+-- Unavailable       a server, file system or device did not answer in time: may work later
"""


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises on purpose; its text is one line fit for a user."""


class UsageError(HoldfastError):
    """Bad input: says what is wrong, where, and what would be right. Exit code 2."""


class ProtocolError(HoldfastError):
    """The other end sent what this version does not support."""


class Unavailable(HoldfastError):
    """Something outside did not answer; trying again later may work."""
