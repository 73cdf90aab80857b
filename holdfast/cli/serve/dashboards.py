"""`holdfast dashboards`: Grafana, Prometheus and Alertmanager, provisioned."""

import re
from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.address import is_loopback, parse_address
from holdfast.base.errors import UsageError
from holdfast.cli.common import output
from holdfast.cli.common.extras import needs
from holdfast.cli.common.options import Json
from holdfast.cli.common.usage import example

_LONGEST_URL = 2000

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
    page_url: Annotated[str, typer.Option(metavar="URL", help="Holdfast's own page, for links from dashboards.")] = "",
    tls_ca: Annotated[
        str,
        typer.Option(metavar="ABSPATH", help="The controller's authority (PEM) on Prometheus' machine; means HTTPS."),
    ] = "",
    api_token_file: Annotated[
        str,
        typer.Option(metavar="ABSPATH", help="File with an API token on Prometheus' machine; a reader's will do."),
    ] = "",
    insecure: Annotated[
        bool, typer.Option(help="Allow the API token over plain HTTP beyond loopback, where others can read it.")
    ] = False,
    scrape_job: Annotated[
        str, typer.Option(metavar="NAME", help="Prometheus' job name of the controller.")
    ] = "holdfast",
    job: Annotated[str, typer.Option(metavar="NAME", help="The training job that dashboards show first.")] = "",
    checkpoint_minutes: Annotated[
        int, typer.Option(metavar="MIN", help="Work without a checkpoint, in minutes, that alerts.")
    ] = 60,
    as_json: Json = False,
) -> int:
    """Write dashboards, rules, routing, provisioning, a compose file and Kubernetes manifests."""
    for address in (controller, alertmanager):
        parse_address(address)
    for flag, url in (("--prometheus", prometheus), ("--webhook", webhook), ("--page-url", page_url or "http://")):
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{flag} must be a URL that begins with http:// or https://, not {url!r}")
    for flag, url in (("--docs-url", docs_url), ("--page-url", page_url)):
        if len(url) > _LONGEST_URL:  # written into each of many alerts and panels
            raise UsageError(f"{flag} must have {_LONGEST_URL} characters at most, not {len(url)}")
    for flag, file in (("--tls-ca", tls_ca), ("--api-token-file", api_token_file)):
        if file and not re.fullmatch(r"(/[\w.@+-]+)+", file):
            raise UsageError(f"{flag} must be an absolute path on Prometheus' machine, without spaces, not {file!r}")
    if api_token_file and not (tls_ca or insecure or is_loopback(parse_address(controller)[0])):
        raise UsageError("--api-token-file needs --tls-ca, or --insecure to send the token where others can read it")
    if not re.fullmatch(r"[A-Za-z_][\w-]{0,62}", scrape_job, re.ASCII):
        raise UsageError(f"--scrape-job must be letters, digits, - and _, not {scrape_job!r}")
    if not 1 <= checkpoint_minutes <= 10080:
        raise UsageError(f"--checkpoint-minutes must be between 1 and 10080 (a week), not {checkpoint_minutes}")
    with needs("dashboards"):
        from holdfast.dashboards.export import Places, write
        from holdfast.dashboards.prometheus import Scrape
    scrape = Scrape(scrape_job, tls_ca, api_token_file)
    places = Places(controller, alertmanager, prometheus, webhook, docs_url, page_url, scrape, job, checkpoint_minutes)
    try:
        written = [str(path) for path in write(folder, places)]
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; name a folder that can be written to") from None
    if as_json:
        output.print_json({"files": written})
    else:
        for path in written:
            output.say(path)
    return 0
