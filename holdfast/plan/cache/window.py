"""How many batches a look-ahead holds: a number that is given, or as many as fit a cache (Bagpipe, SOSP 2023). Pure.

More batches are fewer fetches and more rows. How many rows a number of batches needs changes with the data, so the
number follows it as TCP's window follows a network: one more whenever all fit, half when the next batch does not.
"""

FIRST = 10
"""Batches that a fitted window begins with, where they fit."""
MOST = 1000
"""Batches of a fitted window: each is held with its samples, too."""


class Window:
    """A number of batches that stays. ValueError without room for the batch that is worked on."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a window of {size} batches: 1 or more, the one that is worked on among them")
        self.size = self.least = self.most = size
        """Batches that the queue may hold now; the fewest and the most so far."""
        self.halvings = 0

    def admits(self, held: int) -> bool:
        """Whether a batch may come into the queue with which `held` rows would be held, those among them that the
        batch before the present one leaves. Called for each batch but one that is needed at once."""
        return True

    def filled(self, queued: int) -> None:
        """The present batch has `queued` batches in the queue, itself among them: no more may or can come in."""


class FittedWindow(Window):
    """As many batches as need at most `rows` rows. One batch always comes in: its rows and those of the batch before
    are the least that a cache has to hold."""

    def __init__(self, rows: int, first: int = FIRST, most: int = MOST) -> None:
        super().__init__(first)
        self.rows, self._limit = rows, most
        self._is_refused = False

    def admits(self, held: int) -> bool:
        if held <= self.rows:
            return True
        self._is_refused = True
        return False

    def filled(self, queued: int) -> None:
        # A queue that is longer than the window, after a halving, or shorter, at the data's end, proves nothing.
        if self._is_refused:
            self.size = max(1, self.size // 2)
            self.halvings += 1
        elif queued == self.size:
            self.size = min(self.size + 1, max(self._limit, self.size))
        self._is_refused = False
        self.least, self.most = min(self.least, self.size), max(self.most, self.size)
