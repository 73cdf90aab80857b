"""`holdfast checkpoint`: what lies in a store, and whether it is whole."""

from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.options import Json
from holdfast.errors import HoldfastError, UsageError

app = typer.Typer(help="Look at the checkpoints of a store, or verify them.", no_args_is_help=True)

Url = Annotated[str, typer.Argument(metavar="URL", help="A store, such as file:///data/checkpoints.")]
Step = Annotated[int | None, typer.Option("--step", metavar="N", min=0, help="Only this step (default: the newest).")]


@app.command("list")
def list_(url: Url, as_json: Json = False) -> int:
    """List the committed checkpoints, newest first."""
    from holdfast.checkpoint.inspect import list_checkpoints

    with _clear(url):
        found = list_checkpoints(url)
    if as_json:
        output.print_json([asdict(one) for one in found])
        return 0
    table = output.table(">STEP", "JOB", ">GENERATION", "CREATED", ">SIZE", ">PARTS", "MESH", "FOLDER")
    for one in found:
        mesh = " ".join(f"{axis} {n}" for axis, n in one.mesh.items())
        table.add_row(
            str(one.step),
            output.text(one.job),
            str(one.generation),
            output.clock(one.created),
            output.size(one.num_bytes),
            str(one.num_parts),
            output.text(mesh),
            output.text(one.folder),
        )
    output.out().print(table if found else f"no checkpoints in {output.text(url)}")
    return 0


@app.command()
def verify(url: Url, step: Step = None, as_json: Json = False) -> int:
    """Read every byte of a checkpoint; exit code 1 if anything is wrong with it."""
    from holdfast.checkpoint import inspect

    with _clear(url):
        if step is None:
            found = inspect.list_checkpoints(url)
            if not found:
                raise HoldfastError(f"no checkpoints in {url}")
            step = found[0].step
        problems = inspect.verify(url, step)
    if as_json:
        output.print_json({"step": step, "problems": problems})
    else:
        for problem in problems:
            print(problem)
        print(f"step {step}: {f'{len(problems)} problems' if problems else 'whole'}")
    return 1 if problems else 0


class _clear:
    """Errors of a store as one line."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise HoldfastError(f"{self.url}: {error.strerror or error}") from error
        if isinstance(error, ValueError):
            raise UsageError(f"{self.url}: {error}") from error
