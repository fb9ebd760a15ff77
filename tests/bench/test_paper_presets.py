"""The paper's tables and figures: plans that are complete, and numbers that come out of their records."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from own_parts import TINY
from report_records import cell
from rich.console import Console

from sicl.bench.executors import Settings
from sicl.bench.paper import CORRUPTIONS
from sicl.bench.paper.charts import chart
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import CALIBRATORS, PRESETS, Choice
from sicl.bench.paper.show import _print, show_preset
from sicl.bench.plan.plan import Plan, load_plan
from sicl.bench.run.runner import run_plan
from sicl.bench.run.schema import Record
from sicl.bench.tables.printed import paper_value
from sicl.bench.tables.sheets import Sheet, number, pivot
from sicl.errors import OptionError


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a folder with (empty) source models under the names that `sicl train` gives them."""
    for dataset in ("cifar10", "cifar100"):
        for arch in ("resnet18", "resnet50", "resnet101", "vit_small"):
            for seed in (0, 1, 2):
                (tmp_path / f"{dataset}-{arch}-seed{seed}.safetensors").touch()
    return tmp_path


def tiny_plan(name: str) -> Plan:
    """Return a preset's quick plan on a network and data that take no time."""
    choice = Choice(quick=True, n=40, batch_size=20, corruptions=("gaussian_noise", "contrast"))
    table = PRESETS[name].table(name, choice)
    for method in table["methods"]:
        del method["preset"]
    return load_plan({**table, "datasets": TINY["datasets"], "models": TINY["models"]})


def test_the_main_table_is_the_papers(weights: Path) -> None:
    """Three data sets, twelve pairs of network and method, 15 + 1 streams, three seeds: 1,728 cells."""
    plan = PRESETS["table1"].plan("table1", Choice(weights=weights))
    assert len(plan) == 3 * 12 * 16 * 3
    pairs = {(c.identity["model"], c.identity["method"]) for c in plan.cells}
    assert {method for model, method in pairs if model == "vit"} == {"tent", "sar"}
    assert len(pairs) == 12
    assert {c.spec["method"]["options"]["predict"] for c in plan.cells} == {"after"}
    assert set(plan.cells[0].spec["calibrators"]) == set(CALIBRATORS)
    eata = {c.spec["method"]["options"]["lr"] for c in plan.cells if c.identity["method"] == "eata"}
    assert eata == {0.005, 0.00025}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_plan_in_full_and_quick(name: str, weights: Path) -> None:
    """The full plan uses the weights; the quick one needs nothing."""
    full = PRESETS[name].plan(name, Choice(weights=weights))
    quick = PRESETS[name].plan(name, Choice(quick=True))
    assert len(full) >= len(quick) >= 3
    assert {c.identity["dataset"] for c in quick.cells} == {"demo"}


def test_a_preset_can_be_narrowed(weights: Path) -> None:
    """Data sets, networks, methods, corruptions, seeds and size are the user's."""
    choice = Choice(
        weights=weights,
        datasets=("cifar100-c",),
        models=("resnet18",),
        methods=("sar",),
        corruptions=("fog",),
        seeds=(1,),
        n=100,
    )
    plan = PRESETS["table1"].plan("table1", choice)
    assert [c.identity["stream"] for c in plan.cells] == ["benign", "dynamic"]
    assert plan.cells[0].spec["model"]["load"].endswith("cifar100-resnet18-seed1.safetensors")
    assert plan.cells[0].spec["stream"]["options"]["n"] == 100


def test_one_file_may_serve_all_seeds(tmp_path: Path) -> None:
    """Without a file a seed, the plain one is used."""
    (tmp_path / "cifar10-resnet18.safetensors").touch()
    plan = PRESETS["table5"].plan("table5", Choice(weights=tmp_path))
    assert {Path(c.spec["model"]["load"]).name for c in plan.cells} == {"cifar10-resnet18.safetensors"}


def test_missing_weights_are_all_named(tmp_path: Path) -> None:
    """The user sees every file that is wanted, or how to do without."""
    with pytest.raises(OptionError, match="9 problems"):
        PRESETS["table1"].plan("table1", Choice(weights=tmp_path, datasets=("cifar10-c",)))
    with pytest.raises(OptionError, match="--quick"):
        PRESETS["table5"].plan("table5", Choice())
    with pytest.raises(OptionError, match="'tent'"):
        PRESETS["table5"].plan("table5", Choice(quick=True, methods=("tnt",)))


@pytest.mark.parametrize("name", ["figure2", "figure3", "sotta"])
def test_figures_are_computed_from_a_run(name: str, tmp_path: Path) -> None:
    """From the plan to files: each cell runs, each sheet has numbers."""
    plan = tiny_plan(name)
    result = run_plan(plan, tmp_path, settings=Settings(predictions=PRESETS[name].predictions))
    assert not result.failed, result.failed[0].error
    console = Console(file=io.StringIO(), width=200)
    text = show_preset(name, result.records, tmp_path, console).read_text()
    assert PRESETS[name].title in text
    made = sheets(name, result.records, tmp_path)
    assert all(
        value is not None for sheet in made if sheet.name == "ece" for _, row in sheet.rows for value in row
    )
    assert len(list((tmp_path / name).glob("*.csv"))) == len({sheet.name for sheet in made})
    if name == "figure2":
        first = next(sheet for sheet in made if sheet.name == "tent-benign-first")
        assert sum(row[2] or 0 for _, row in first.rows) == 20
    if name == "figure3":
        content = next(sheet for sheet in made if sheet.name == "content_variance")
        assert content.columns == ("content", "style", "mixstyle", "dropout")
        assert content.rows[0][1][0] is None
        assert all(value is not None and value > 0 for value in content.rows[0][1][1:])


def records(**changes: object) -> list[Record]:
    return [replace(cell(name), **changes) for name in CORRUPTIONS]


def test_tables_stand_beside_the_papers_with_the_difference(tmp_path: Path) -> None:
    """ResNet-18 on CIFAR-10-C: TENT with SICL is printed as 2.89."""
    by_name = {sheet.name: sheet for sheet in sheets("table5", records(), tmp_path)}
    rows = dict(by_name["paper"].rows)
    ours, paper, difference = next(values for name, values in rows.items() if name.endswith("/ sicl"))
    assert paper == pytest.approx(2.89, abs=0.01)
    assert ours is not None
    assert difference == pytest.approx(ours - paper)
    assert dict(by_name["difference"].rows).popitem()[1][-1] == pytest.approx(difference)
    assert [name for name, _ in by_name["ece-tent"].rows] == list(CORRUPTIONS)
    fog = dict(by_name["difference-tent"].rows)["fog"]
    mine = dict(zip(by_name["ece-tent"].columns, dict(by_name["ece-tent"].rows)["fog"]))["sicl"]
    printed = paper_value(
        dataset="cifar10-c", model="resnet18", method="tent", calibrator="sicl", corruption="fog"
    )
    assert dict(zip(by_name["difference-tent"].columns, fog))["sicl"] == pytest.approx(mine - printed)
    main = {sheet.name: sheet for sheet in sheets("table1", records(model="resnet50"), tmp_path)}
    assert [row[1][1] for row in main["paper"].rows if row[0].endswith("/ sicl")] == [6.4]


def test_categories_severities_and_ablations_are_pivots(tmp_path: Path) -> None:
    """Rows and columns are what the figure has on its axes."""
    ood = sheets("ood", records(), tmp_path)[0]
    assert [name for name, _ in ood.rows] == ["noise", "blur", "weather", "digital"]
    severity = sheets("severity", [*records(severity=1), *records(severity=5)], tmp_path)
    assert [name for name, _ in severity[0].rows] == ["1", "5"]
    assert [sheet.name for sheet in severity] == ["ece_right", "ece_wrong", "cumulative_ece"]
    layer = sheets("layer", [*records(), *records(method="sar")], tmp_path)[0]
    assert layer.columns == ("tent", "sar")


def test_a_failed_cell_is_named_under_every_mean() -> None:
    """A sheet never averages over silence."""
    broken = Record(
        dataset="d", model="m", method="tent", stream="benign", seed=0, status="failed", error="no"
    )
    sheet = pivot(
        [*records(), broken],
        name="x",
        title="X",
        row=("method", lambda record, *_: record.method),
        column=lambda record, name, row: name,
        value=lambda record, name, row: row["ece"],
    )
    assert sheet.note == "Over 15 of 16 cells (1 failed)."
    assert sheet.note in sheet.to_markdown()


def test_sheets_are_written_with_gaps_where_there_is_nothing() -> None:
    """CSV and Markdown keep the order and show missing numbers as such."""
    sheet = Sheet("s", "S", "row", ("a", "b"), (("one", (1.0, None)), ("two", (0.012345, 123.456))))
    assert sheet.to_csv() == "row,a,b\none,1.0,\ntwo,0.012345,123.456\n"
    assert "| one | 1.0 | - |" in sheet.to_markdown()
    assert [number(value) for value in (0.0, 0.01234, 12.34, 7)] == ["0.0", "0.0123", "12.3", "7"]
    assert [number(value, 1) for value in (-0.04, 0.01234, None, 7)] == ["0.0", "0.0", "-", "7"]


def test_sheets_are_drawn_as_lines_or_bars() -> None:
    """Rows that are numbers make lines, names make bars; every column has its colour, gaps stay gaps."""
    lines = chart(Sheet("s", "By severity", "severity", ("a", "b"), (("1", (1.0, 2.0)), ("5", (3.0, None)))))
    assert lines.count("<polyline") == 2
    bars = chart(Sheet("s", "A & B", "method", ("a", "b"), (("tent", (1.0, -2.0)), ("<sar>", (3.0, None)))))
    assert bars.count("<title>") == 3
    rows = tuple((f"<{name}>", (1.0, None, -3.0)) for name in CORRUPTIONS)
    dots = chart(Sheet("s", "Many", "corruption", ("a", "b", "c"), rows, drawn=("a", "b")))
    assert dots.count("<circle") == 15
    assert "c, &lt;fog&gt;" not in dots
    for drawing in (lines, bars, dots):
        assert fromstring(drawing).tag.endswith("svg")


def test_long_sheets_are_printed_in_part(tmp_path: Path) -> None:
    """Of a line some points from the first to the last; of a long list only where it is."""
    console = Console(file=io.StringIO(), width=200)
    line = Sheet("line", "Line", "end", ("a",), tuple((str(i), (float(i),)) for i in range(1, 101)))
    names = Sheet("names", "Names", "name", ("a",), tuple((f"n{i}", (0.5,)) for i in range(50)))
    for sheet in (line, names):
        _print(sheet, tmp_path, console)
    shown = console.file.getvalue()
    assert "12 of 100 rows; all are in" in shown
    assert " 1      1.0" in shown
    assert " 100  100.0" in shown
    assert "0 of 50 rows" in shown
    assert "n7" not in shown


def test_settings_without_printed_numbers_are_named(tmp_path: Path) -> None:
    """A table of other data says that the paper has nothing to compare with."""
    console = Console(file=io.StringIO(), width=200)
    show_preset("table5", records(dataset="demo", model="demo"), tmp_path, console)
    assert "The paper prints no numbers for demo / demo." in console.file.getvalue()
