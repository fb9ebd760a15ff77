"""The command line: parsing here and in one file a command, work elsewhere."""

from __future__ import annotations

import io
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import typer

from sicl import __version__
from sicl.cli import bench, data, demo, doctor, paper, predict, report, results, train, watch
from sicl.errors import SetupError, SiclError

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


for command in (
    demo.demo,
    predict.predict,
    watch.watch,
    doctor.doctor,
    bench.bench,
    report.report,
    train.train,
):
    app.command()(command)
for name, group in {"data": data.app, "paper": paper.app, "results": results.app}.items():
    app.add_typer(group, name=name)


class Stopped(BaseException):
    """Ctrl-C, or a signal that ends a run; no KeyboardInterrupt, to which the parser would say "Aborted!"."""


def main() -> None:
    """Run the command line; what goes wrong is one sentence on stderr and an exit status that says whose fault it is.

    0 all done, 1 cells failed or data are wrong, 2 a wrong option, plan or file, 3 the machine or its folders,
    130 stopped by Ctrl-C, SIGTERM or SIGHUP.
    """
    _listen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # A file name that is no UTF-8 can still be told.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except SetupError as error:
        _end(str(error), 3)
    except SiclError as error:
        _end(str(error), 2)
    except OSError as error:
        where = f"`{error.filename}`: " if error.filename else ""
        _end(f"{where}{error.strerror or error}.", 3)
    except (Stopped, KeyboardInterrupt):
        _end("stopped; nothing was left half-written, and the same command goes on where it stopped.", 130)


def _listen() -> None:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does; one that is ignored (nohup) stays ignored."""

    def stop(*_: object) -> None:
        raise Stopped

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)


def _end(message: str, status: int) -> NoReturn:
    with suppress(OSError):  # The terminal may be what went away.
        typer.echo(f"sicl: {message}", err=True)
    sys.exit(status)
