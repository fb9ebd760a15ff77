"""The command line: parsing here and in one file a command, work elsewhere."""

from __future__ import annotations

import sys

import typer

from sicl import __version__
from sicl.cli import bench, data, demo, doctor, paper, predict, report, train, watch
from sicl.errors import SiclError

app = typer.Typer(
    name="sicl",
    help="Trustworthy confidence for classifiers that adapt while they are used.\n\n"
    "New here? Run [bold]sicl demo[/bold]: two minutes, no downloads.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sicl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and leave.", is_eager=True, callback=_show_version
    ),
) -> None:
    pass


@app.command()
def version() -> None:
    """Print the version."""
    _show_version(True)


app.command()(demo.demo)
app.command()(predict.predict)
app.command()(watch.watch)
app.command()(doctor.doctor)
app.command()(bench.bench)
app.command()(report.report)
app.command()(train.train)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")


def main() -> None:
    """Run the command line: a user's mistake is one sentence on stderr and exit status 2, Ctrl-C is 130."""
    try:
        app()
    except SiclError as error:
        typer.echo(f"sicl: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("sicl: stopped; nothing was left half-written.", err=True)
        sys.exit(130)
