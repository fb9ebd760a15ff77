"""`sicl data`: list, get, make and check data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

app = typer.Typer(no_args_is_help=True, help="List, get, make and check data sets.")

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Where data sets live. Default: $SICL_DATA or ~/.cache/sicl."),
]


@app.command("list")
def list_datasets(data: DataOption = None) -> None:
    """List the known data sets and where they are."""
    from rich.table import Table

    from sicl.bench.run.live import make_console
    from sicl.data.check import CHECKED, locate
    from sicl.data.files import data_root
    from sicl.data.load import DATASETS

    root = data_root(data)
    table = Table(title=f"Data sets under {root}", title_justify="left")
    for column in ("name", "where", "what"):
        table.add_column(column, overflow="fold")
    for name, what in DATASETS.items():
        place = locate(name, root) if name in CHECKED else None
        table.add_row(name, str(place) if place else "-", what)
    make_console().print(table)


@app.command()
def get(
    name: Annotated[
        str, typer.Argument(help="cifar10, cifar100, cifar10-c, cifar100-c, imagenet-c, mnist or svhn.")
    ],
    data: DataOption = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="Only this part, e.g. blur of imagenet-c; may be repeated."),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option("--mirror", metavar="URL", help="Another server with files of the same names."),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="A local copy of the archive to use instead."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the archive after unpacking.")] = False,
) -> None:
    """Download a data set's official archives, verify and unpack them; goes on where it was stopped."""
    from sicl.data.get import get_dataset

    with _progress("binary") as bar:
        paths = get_dataset(
            name, data, parts=part or (), mirror=mirror, archive=archive, keep=keep, progress=_follower(bar)
        )
    for path in paths:
        typer.echo(f"{path} is there.")


@app.command()
def make(
    dataset: Annotated[
        str, typer.Option("--dataset", help="cifar10, cifar100, imagenet[:5k], demo or folder:PATH.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where to write, e.g. the data folder itself.")
    ],
    data: DataOption = None,
    severity: Annotated[str, typer.Option("--severity", help="Which severities: 1-5, 5 or 1,3,5.")] = "1-5",
    corruption: Annotated[
        list[str] | None, typer.Option("--corruption", help="Only this corruption; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random corruptions.")] = 0,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 1,
) -> None:
    """Make the -C version of clean images in the official layout; goes on where it was stopped."""
    from sicl.data.make import Recipe, make_corrupted

    recipe = Recipe(corruptions=tuple(corruption or ()), severities=parse_severities(severity), seed=seed)
    with _progress("count") as bar:
        task = bar.add_task(f"{dataset}-c", total=None)

        def follow(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        folder = make_corrupted(dataset, out, root=data, recipe=recipe, workers=workers, progress=follow)
    typer.echo(f"{folder} is complete.")


@app.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets to check, or folder:PATH; none means all that are there."),
    ] = None,
    data: DataOption = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every image file.")] = False,
) -> None:
    """Validate what is there; names each damaged, truncated or mislabelled file."""
    from sicl.data.check import CHECKED, check_dataset
    from sicl.data.files import data_root
    from sicl.errors import DataError

    wrong = 0
    for name in names or CHECKED:
        findings = check_dataset(name, data, deep=deep)
        if names and not findings:
            raise DataError(
                f"{name} was not found under `{data_root(data)}`; get it with `sicl data get {name}`."
            )
        for finding in findings:
            typer.echo(
                f"{'ok' if finding.ok else 'WRONG'}  {finding.dataset} {finding.what}: {finding.message}"
            )
            wrong += not finding.ok
    if wrong:
        raise typer.Exit(1)


def parse_severities(text: str) -> tuple[int, ...]:
    """Read "1-5", "5" or "1,3,5"."""
    from sicl.errors import OptionError

    try:
        severities: list[int] = []
        for piece in text.split(","):
            first, _, last = piece.partition("-")
            severities += range(int(first), int(last or first) + 1)
    except ValueError:
        raise OptionError(f"`severity` must look like 1-5, 5 or 1,3,5; got {text!r}.") from None
    return tuple(sorted(set(severities)))


def _progress(unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(), TransferSpeedColumn()) if unit == "binary" else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *amount, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def _follower(bar: Progress) -> Callable[[str], Callable[[int, int | None], None]]:
    def start(filename: str) -> Callable[[int, int | None], None]:
        task = bar.add_task(filename, total=None)
        return lambda done, total: bar.update(task, completed=done, total=total)

    return start
