"""An unmodified script that pauses honestly at one place, and ends with 0: `dead_rows.py ROW FOLDER`, three ranks.

Each row was once ended by Holdfast, for a reason that was none. The pauses are a bit longer than it took then.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import dead_rows_groups  # noqa: F401  # whose rows are in the table
import dead_rows_held  # noqa: F401
import dead_rows_places  # noqa: F401
import torch.distributed as dist
from dead_rows_loop import FOLDER, RANK, ROW, ROWS


def main() -> None:
    ROWS[ROW]()
    if dist.is_initialized():
        dist.destroy_process_group()
    (FOLDER / f"done-{RANK}").touch()


if __name__ == "__main__":
    main()
