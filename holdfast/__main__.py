"""`python -m holdfast`: the command line, also where no `holdfast` script is installed."""

# What `signal` is made of: to import that itself takes milliseconds, in which Ctrl-C would be a traceback.
import _signal  # type: ignore[import-not-found]

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C while we are still being imported is no traceback

from holdfast.cli.main import entry

if __name__ == "__main__":
    entry()
