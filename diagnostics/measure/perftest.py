"""The command lines of perftest's `ib_write_bw`, and what it prints. Pure."""

import math

_SIZE = 8 << 20
ITERATIONS = {False: 1000, True: 20_000}
PROGRAM = "ib_write_bw"
SHARE_OF_RATE = 0.9
"""Of the port's rate that a good path must reach: 375 of 400 Gb/s are usual."""


def command(device: str, port: int, peer: str = "", gid: int | None = None, is_full: bool = False) -> list[str]:
    """The server's command line, or with `peer` the client's. `gid`: index of the RoCE v2 address on Ethernet."""
    words = [PROGRAM, "-d", device, "-p", str(port), "-F", "-s", str(_SIZE), f"--iters={ITERATIONS[is_full]}"]
    words += [] if gid is None else ["-x", str(gid)]
    return [*words, "--report_gbits", *([peer] if peer else [])]


def parse(output: str) -> float:
    """Average bandwidth, bytes per second; NaN when there is no line of results.

    The line has five columns: bytes, iterations, peak, average (Gb/s), million messages per second.
    """
    for line in reversed(output.splitlines()):
        words = line.split()
        if len(words) >= 5 and words[0].isdigit() and words[1].isdigit():
            try:
                return float(words[3]) * 1e9 / 8
            except ValueError:
                continue
    return math.nan


def rate(text: str) -> float:
    """A port's `rate` file ("400 Gb/sec (4X NDR)") in bytes per second; NaN when it is something else."""
    words = text.split()
    try:
        return float(words[0]) * 1e9 / 8 if words[1] == "Gb/sec" else math.nan
    except (IndexError, ValueError):
        return math.nan


def roce_gid(types: dict[int, str], gids: dict[int, str]) -> int | None:
    """The index of the RoCE v2 address with an IPv4 address in it, else of any RoCE v2 address; None on InfiniBand.

    `types`, `gids`: the files of `ports/N/gid_attrs/types` and `ports/N/gids`, by index.
    """
    usable = [
        index for index, kind in sorted(types.items())
        if kind.strip() == "RoCE v2" and gids.get(index, "").replace(":", "").strip("0")
    ]  # fmt: skip
    mapped = [index for index in usable if ":ffff:" in gids[index]]
    return next(iter(mapped or usable), None)
