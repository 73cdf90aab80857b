"""`holdfast dashboards`: Grafana, Prometheus and Alertmanager, provisioned."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.address import parse_address
from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs
from holdfast.cli.common.options import Json
from holdfast.cli.common.usage import example

app = typer.Typer(no_args_is_help=True, help="Dashboards, rules and routing for Grafana, Prometheus and Alertmanager.")


@app.callback()
def _group() -> None:
    """Keeps `export` a subcommand while it is the only one."""


@app.command(epilog=example("holdfast dashboards export monitoring --controller gpu0:7080"))
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output folder; created if missing.")],
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The controller's HTTP address, for Prometheus.")
    ] = "host.docker.internal:7080",
    alertmanager: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The Alertmanager's address, for Prometheus.")
    ] = "alertmanager:9093",
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Prometheus's URL, for Grafana.")
    ] = "http://prometheus:9090",
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Receiver of the Alertmanager's alerts.")
    ] = "http://host.docker.internal:9099/",
    docs_url: Annotated[str, typer.Option(metavar="URL", help="Location of docs/, for links to the runbook.")] = "docs",
    as_json: Json = False,
) -> int:
    """Write six dashboards, rules, routing, provisioning, a compose file and Kubernetes manifests."""
    for address in (controller, alertmanager):
        parse_address(address)
    for flag, url in (("--prometheus", prometheus), ("--webhook", webhook)):
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{flag} must be a URL that begins with http:// or https://, not {url!r}")
    with needs("dashboards"):
        from holdfast.dashboards.export import Places, write
    try:
        written = [str(path) for path in write(folder, Places(controller, alertmanager, prometheus, webhook, docs_url))]
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name a folder that can be written to") from None
    if as_json:
        output.print_json({"files": written})
    else:
        for path in written:
            output.say(path)
    return 0
