"""`holdfast dashboards`: Grafana, Prometheus and Alertmanager, provisioned."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.address import parse_address
from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs

app = typer.Typer(no_args_is_help=True, help="Dashboards, rules and routing for Grafana, Prometheus and Alertmanager.")


@app.callback()
def _group() -> None:
    """Keeps `export` a command of its own while it is the only one."""


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go; made if it is not there.")],
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds the controller's HTTP.")
    ] = "host.docker.internal:7080",
    alertmanager: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds the Alertmanager.")
    ] = "alertmanager:9093",
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Where Grafana finds Prometheus.")
    ] = "http://prometheus:9090",
    webhook: Annotated[
        str, typer.Option(metavar="URL", help="Where the Alertmanager sends alerts.")
    ] = "http://host.docker.internal:9099/",
    docs_url: Annotated[
        str, typer.Option(metavar="URL", help="Where people read docs/, for the links to the runbook.")
    ] = "docs",
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
        for path in write(folder, Places(controller, alertmanager, prometheus, webhook, docs_url)):
            output.say(str(path))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name a folder that can be written to") from None
    return 0
