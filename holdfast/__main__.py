"""`python -m holdfast`: the command line, also where no `holdfast` script is installed."""

from holdfast.cli.main import entry

if __name__ == "__main__":
    entry()
