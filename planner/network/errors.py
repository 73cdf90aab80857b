"""What is no network."""


class NetworkError(ValueError):
    """A network that can't be: one line that says what is wrong, where, and what would be possible."""
