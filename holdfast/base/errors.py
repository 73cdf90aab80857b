"""The exceptions that cross module boundaries.

HoldfastError
+-- UsageError        the caller's input is wrong: one line, exit code 2
|   +-- NotFound      it names what does not exist
|   +-- Refused       the nodes can tell that it never works: the job ends, exit code 2
|   +-- Conflict      it is well-formed, but not possible in the present state: exit code 1
+-- ProtocolError     the peer uses a protocol that we do not support
+-- Unavailable       a server, file system or device did not answer in time: may work later
"""


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises on purpose; its text is one line fit for a user."""


class UsageError(HoldfastError):
    """Bad input: says what is wrong, where, and what would be right. Exit code 2."""


class NotFound(UsageError):
    """The input names something that does not exist. HTTP 404, exit code 2."""


class Refused(UsageError):
    """A node can tell that what a job asks for never works there: no restart attempt helps. Exit code 2."""


class Conflict(UsageError):
    """A request that is not possible in the present state; in another state it is. HTTP 409, exit code 1."""


class ProtocolError(HoldfastError):
    """The other end sent what this version does not support."""


class Unavailable(HoldfastError):
    """Something outside did not answer; trying again later may work."""


def exit_code(error: HoldfastError) -> int:
    """Of a command that ends with it: 2 for bad input, else 1."""
    return 2 if isinstance(error, UsageError) and not isinstance(error, Conflict) else 1
