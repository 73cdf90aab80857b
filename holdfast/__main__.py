"""`python -m holdfast`: the command line, also where no `holdfast` script is installed."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while we are still being imported is no traceback

from holdfast.cli.main import entry

if __name__ == "__main__":
    entry()
