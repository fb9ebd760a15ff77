"""The paper's tables are complete, can be looked up, and their slips are known."""

from __future__ import annotations

from itertools import product

import pytest

from sicl import corruptions
from sicl.bench.paper import CORRUPTIONS, inconsistencies, paper_value, paper_wins
from sicl.bench.tables.printed import BESIDE
from sicl.errors import OptionError

METHODS = ("tent", "eata", "sar", "rotta", "sotta")


def test_every_cell_of_the_main_table_has_a_value() -> None:
    """2 streams x 3 data sets x 12 (model, method) columns x 5 calibrators and the accuracy."""
    columns = [*product(("resnet50", "resnet101"), METHODS), ("vit", "tent"), ("vit", "sar")]
    datasets = ("cifar10-c", "cifar100-c", "imagenet-c")
    for stream, dataset, (model, method) in product(("benign", "dynamic"), datasets, columns):
        for calibrator in (*BESIDE, "accuracy"):
            value = paper_value(
                stream=stream, dataset=dataset, model=model, method=method, calibrator=calibrator
            )
            assert value is not None
            assert 0 < value < 100


def test_every_cell_of_the_corruption_tables_has_a_value() -> None:
    """2 data sets x 5 methods x 5 calibrators x 15 corruptions."""
    for dataset, method, calibrator, corruption in product(
        ("cifar10-c", "cifar100-c"), METHODS, BESIDE, CORRUPTIONS
    ):
        assert paper_value(
            dataset=dataset, model="resnet18", method=method, calibrator=calibrator, corruption=corruption
        )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"dataset": "cifar10-c", "model": "resnet50", "method": "tent", "calibrator": "sicl"}, 6.4),
        ({"dataset": "CIFAR100", "model": "ViT-S", "method": "sar", "calibrator": "mc_dropout"}, 18.2),
        (
            {
                "dataset": "imagenet-c",
                "model": "resnet101",
                "method": "rotta",
                "calibrator": "accuracy",
                "stream": "dynamic",
            },
            31.6,
        ),
        (
            {
                "dataset": "cifar10",
                "model": "resnet18",
                "method": "sotta",
                "calibrator": "transcal",
                "corruption": "contrast",
            },
            34.06,
        ),
        ({"dataset": "cifar10-c", "model": "resnet18", "method": "tent", "calibrator": "sicl"}, 2.89),
        ({"dataset": "cifar10-c", "model": "resnet18", "method": "source", "calibrator": "sicl"}, None),
        (
            {
                "dataset": "cifar10-c",
                "model": "resnet18",
                "method": "tent",
                "calibrator": "sicl",
                "table": "main",
            },
            None,
        ),
    ],
)
def test_values_read_off_the_page(query: dict[str, str], expected: float | None) -> None:
    """Numbers compared by eye with the printed tables; what is not printed is None."""
    assert paper_value(**query) == expected  # type: ignore[arg-type]


def test_an_unknown_table_is_refused() -> None:
    """Only the two kinds of table exist."""
    with pytest.raises(OptionError, match="main, corruptions"):
        paper_value(dataset="x", model="y", method="z", calibrator="c", table="third")  # type: ignore[arg-type]


def test_printed_averages_that_are_not_averages_are_listed() -> None:
    """TENT's "SICL 2.89" is the mean of its row; RoTTA's "4.68" is not: its row's mean is 3.87."""
    slips = {
        (slip.dataset, slip.method, slip.calibrator): slip
        for slip in inconsistencies()
        if slip.table == "corruptions"
    }
    assert ("cifar10-c", "tent", "sicl") not in slips
    slip = slips["cifar10-c", "rotta", "sicl"]
    assert (slip.printed, round(slip.mean, 2)) == (4.68, 3.87)
    row = [
        paper_value(dataset="cifar10-c", model="resnet18", method="rotta", calibrator="sicl", corruption=name)
        for name in CORRUPTIONS
    ]
    assert sum(value or 0 for value in row) / 15 == pytest.approx(slip.mean)
    assert (len(slips), len(inconsistencies())) == (22, 35)


def test_the_main_table_counts_62_wins_of_72() -> None:
    """The text says 63 of 72; counting the printed numbers, ties included, gives 62."""
    assert paper_wins("sicl") == (62, 72)


def test_the_printed_tables_name_the_corruptions_of_the_package() -> None:
    """The order of the columns is that of `sicl.corruptions`, where they are defined."""
    assert CORRUPTIONS == corruptions.CORRUPTIONS
