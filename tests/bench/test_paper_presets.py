"""The paper's tables and figures: plans that are complete, and numbers that come out of their records."""

from __future__ import annotations

import io
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from own_parts import TINY
from paper_records import full_records
from report_records import cell
from rich.console import Console

from sicl.bench.executors import Settings
from sicl.bench.paper import CORRUPTIONS
from sicl.bench.paper.drawings import drawing
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import ALIASES, MEMBERS, METHODS, PRESETS, Choice, presets_of
from sicl.bench.paper.show import _print, show_preset
from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.run.runner import run_plan
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import main_table
from sicl.bench.tables.names import CALIBRATOR_COLOURS, CALIBRATOR_NAMES, method_name, short_domain
from sicl.bench.tables.plots import HALF, bars, plot
from sicl.bench.tables.printed import paper_value
from sicl.bench.tables.sheets import Sheet, number, pivot
from sicl.bench.tables.svg import colour_of
from sicl.calibrate import SICL
from sicl.errors import OptionError


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Return a folder with (empty) source models under the names that `sicl train` gives them."""
    for dataset in ("cifar10", "cifar100"):
        for arch in ("resnet18", "resnet50", "resnet101", "vit_small"):
            for seed in (0, 1, 2):
                (tmp_path / f"{dataset}-{arch}-seed{seed}.safetensors").touch()
    return tmp_path


def tiny_plan(name: str) -> BenchPlan:
    """Return a preset's quick plan on a network and data that take no time."""
    choice = Choice(quick=True, n=40, batch_size=20, corruptions=("gaussian_noise", "contrast"))
    table = PRESETS[name].table(name, choice)
    for method in table["methods"]:
        del method["preset"]
    return load_plan({**table, "datasets": TINY["datasets"], "models": TINY["models"]})


def test_the_main_table_is_the_papers(weights: Path) -> None:
    """Three data sets, twelve pairs of network and method, 15 + 1 streams, three seeds: 1,728 cells."""
    plan = PRESETS["table2"].plan("table2", Choice(weights=weights))
    assert len(plan) == 3 * 12 * 16 * 3
    pairs = {(c.identity["model"], c.identity["method"]) for c in plan.cells}
    assert {method for model, method in pairs if model == "vit"} == {"tent", "sar"}
    assert len(pairs) == 12
    assert {c.spec["method"]["options"]["predict"] for c in plan.cells} == {"after"}
    assert set(plan.cells[0].spec["calibrators"]) == set(CALIBRATOR_NAMES)
    eata = {c.spec["method"]["options"]["lr"] for c in plan.cells if c.identity["method"] == "eata"}
    assert eata == {0.005, 0.00025}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_plan_in_full_and_quick(name: str, weights: Path) -> None:
    """The full plan uses the weights; the quick one needs nothing."""
    full = PRESETS[name].plan(name, Choice(weights=weights))
    quick = PRESETS[name].plan(name, Choice(quick=True))
    assert len(full) >= len(quick) >= (1 if name == "figure9" else 3)
    assert {c.identity["dataset"] for c in quick.cells} == {"demo"}


def test_the_ablation_leaves_out_each_question_of_the_default() -> None:
    """Figure 6 takes apart the default that there is, not an earlier one."""
    assert SICL().members == MEMBERS
    labels = {cal["label"]: cal["members"] for cal in PRESETS["figure6"].calibrators if "members" in cal}
    assert {name.removeprefix("sicl, no "): set(MEMBERS) - set(kept) for name, kept in labels.items()} == {
        name: {name} for name in MEMBERS
    }


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
    plan = PRESETS["table2"].plan("table2", choice)
    assert [c.identity["stream"] for c in plan.cells] == ["benign", "dynamic"]
    assert plan.cells[0].spec["model"]["load"].endswith("cifar100-resnet18-seed1.safetensors")
    assert plan.cells[0].spec["stream"]["options"]["n"] == 100


def test_one_file_may_serve_all_seeds(tmp_path: Path) -> None:
    """Without a file a seed, the plain one is used."""
    (tmp_path / "cifar10-resnet18.safetensors").touch()
    plan = PRESETS["table3"].plan("table3", Choice(weights=tmp_path))
    assert {Path(c.spec["model"]["load"]).name for c in plan.cells} == {"cifar10-resnet18.safetensors"}


def test_missing_weights_are_all_named(tmp_path: Path) -> None:
    """The user sees every file that is wanted, or how to do without."""
    with pytest.raises(OptionError, match="9 problems"):
        PRESETS["table2"].plan("table2", Choice(weights=tmp_path, datasets=("cifar10-c",)))
    with pytest.raises(OptionError, match="--quick"):
        PRESETS["table3"].plan("table3", Choice())
    with pytest.raises(OptionError, match="'tent'"):
        PRESETS["table3"].plan("table3", Choice(quick=True, methods=("tnt",)))


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure8b"])
def test_figures_are_computed_from_a_run(name: str, tmp_path: Path) -> None:
    """From the plan to files: each cell runs, each sheet has numbers."""
    plan = tiny_plan(name)
    result = run_plan(plan, tmp_path, settings=Settings(predictions=PRESETS[name].predictions))
    assert not result.failed, result.failed[0].error
    console = Console(file=io.StringIO(), width=200)
    text = show_preset(name, result.records, tmp_path, console).path.read_text()
    assert PRESETS[name].title in text
    made = sheets(name, result.records, tmp_path)
    assert all(
        value is not None for sheet in made if sheet.name == "ece" for _, row in sheet.rows for value in row
    )
    assert len(list((tmp_path / name).glob("*.csv"))) == len({sheet.name for sheet in made})
    assert fromstring((tmp_path / f"{name}.svg").read_text()).tag.endswith("svg")
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
    by_name = {sheet.name: sheet for sheet in sheets("table3", records(), tmp_path)}
    rows = dict(by_name["paper"].rows)
    ours, paper, difference = next(values for name, values in rows.items() if name.endswith("/ SICL"))
    assert paper == pytest.approx(2.89, abs=0.01)
    assert ours is not None
    assert difference == pytest.approx(ours - paper)
    assert dict(by_name["difference"].rows).popitem()[1][-1] == pytest.approx(difference)
    table = by_name["ece-tent"]
    assert table.columns == (*(short_domain(name) for name in CORRUPTIONS), "Avg.")
    fog = dict(by_name["difference-tent"].rows)["fog"]
    mine = dict(zip(table.columns, dict(table.rows)["SICL"]))["Fog"]
    printed = paper_value(
        dataset="cifar10-c", model="resnet18", method="tent", calibrator="sicl", corruption="fog"
    )
    assert dict(zip(by_name["difference-tent"].columns, fog))["sicl"] == pytest.approx(mine - printed)
    main = {sheet.name: sheet for sheet in sheets("table2", records(model="resnet50"), tmp_path)}
    assert [row[1][1] for row in main["paper"].rows if row[0].endswith("/ SICL")] == [6.4]


def test_categories_severities_and_ablations_are_pivots(tmp_path: Path) -> None:
    """Rows and columns are what the figure has on its axes."""
    ood = sheets("figure8a", records(), tmp_path)[0]
    assert [name for name, _ in ood.rows] == ["noise", "blur", "weather", "digital"]
    severity = sheets("figure7ab", [*records(severity=1), *records(severity=5)], tmp_path)
    assert [name for name, _ in severity[0].rows] == ["1", "5"]
    assert [sheet.name for sheet in severity] == ["ece_right", "ece_wrong", "cumulative_ece"]
    cells = records(calibrators={f"style votes, layer{i}": {"cumulative_ece": 0.01 * i} for i in (4, 1, 2)})
    layer = sheets("figure7c", [*cells, *(replace(one, method="sar") for one in cells)], tmp_path)[0]
    assert [name for name, _ in layer.rows] == ["tent", "sar"]
    assert layer.columns == tuple(f"style votes, layer{i}" for i in (1, 2, 4))


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
    lines = plot(Sheet("s", "By severity", "severity", ("a", "b"), (("1", (1.0, 2.0)), ("5", (3.0, None)))))
    assert lines.count("<polyline") == 2
    bars = plot(Sheet("s", "A & B", "method", ("a", "b"), (("tent", (1.0, -2.0)), ("<sar>", (3.0, None)))))
    assert bars.count("<title>") == 3
    rows = tuple((f"<{name}>", (1.0, None, -3.0)) for name in CORRUPTIONS)
    dots = plot(Sheet("s", "Many", "corruption", ("a", "b", "c"), rows))
    assert dots.count("<circle") == 30
    for drawn in (lines, bars, dots):
        assert fromstring(drawn).tag.endswith("svg")


def test_severities_are_ticks_and_names_do_not_touch() -> None:
    """An axis of whole numbers has a tick at each; crowded names are slanted."""
    rows = tuple((str(i), (float(i),)) for i in range(1, 6))
    drawn = plot(Sheet("s", "S", "severity", ("sicl",), rows))
    assert [f">{i}</text>" in drawn for i in (1, 2, 3, 4, 5)] == [True] * 5
    assert ">1.5</text>" not in drawn
    crowded = bars("", Sheet("s", "S", "c", ("a",), tuple((name, (1.0,)) for name in CORRUPTIONS)), width=380)
    assert crowded.marks.count("rotate(-40") == 15


def test_a_calibrator_has_one_colour_everywhere() -> None:
    """The drawings and the report's style sheet agree; an unknown name keeps its own."""
    css = files("sicl.bench.report").joinpath("assets/report.css").read_text()
    for name, colour in CALIBRATOR_COLOURS.items():
        assert f"--{name}: {colour}" in css
        assert colour_of(name) == colour
    assert colour_of("mine") == colour_of("mine") != colour_of("yours")


def test_the_main_table_prints_as_the_paper_does(tmp_path: Path) -> None:
    """A sheet for each stream and data set, an average, the lowest in bold, and how often SICL is lowest."""
    cells = [
        *records(model="resnet50"),
        *(one for method in METHODS[1:] for one in records(model="resnet50", method=method)),
        *records(model="resnet50", stream="dynamic"),
    ]
    made = {sheet.name: sheet for sheet in sheets("table2", cells, tmp_path)}
    block = made["ece-benign-cifar10-c"]
    assert block.columns == (*(f"ResNet-50 {method_name(name)}" for name in METHODS), "Avg.")
    assert block.rows[-1][0] == "Accuracy"
    marked = [name for (name, _), row in zip(block.rows, block.texts()) if "**" in row[0]]
    assert marked == ["SICL"]
    assert dict(made["wins"].rows)["all"][:2] == (6, 6)
    assert dict(made["wins"].rows)["Benign"][:2] == (5, 5)


def test_a_table_is_turned_where_that_makes_it_fit(tmp_path: Path) -> None:
    """Twelve settings across on a wide terminal, below each other on a narrow one."""
    block = main_table(full_records("table2"))[0]
    narrow, wide = (Console(file=io.StringIO(), width=width) for width in (110, 200))
    for console in (narrow, wide):
        _print(block, tmp_path, console)
    assert wide.file.getvalue().index("SAR") < wide.file.getvalue().index("Softmax")
    assert narrow.file.getvalue().index("Softmax") < narrow.file.getvalue().index("SAR")


def test_names_are_the_papers_and_the_old_ones_still_work() -> None:
    """Whole figures stand for their parts; an unknown name lists the known."""
    assert presets_of("table5") == presets_of("table3") == ("table3",)
    assert presets_of("figure7") == ("figure7ab", "figure7c")
    assert {part for parts in ALIASES.values() for part in parts} <= set(PRESETS)
    with pytest.raises(OptionError, match="figure8a"):
        presets_of("figure8x")


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "figure2"])
def test_every_full_preset_is_drawn_in_the_papers_panels(name: str, tmp_path: Path) -> None:
    """Made-up records of the whole preset: each panel is an SVG that fits a phone, but for the stream."""
    made = full_records(name)
    drawn = drawing(name, PRESETS[name].title, sheets(name, made, tmp_path), made)
    assert drawn is not None
    assert fromstring(drawn.svg()).tag.endswith("svg")
    panels = {"table2": 6, "figure6": 4, "figure7ab": 3, "table3": 1, "table4": 1, "figure9": 1}
    assert len(drawn.panels) == panels.get(name, 2)
    assert all(panel.width <= HALF for panel in drawn.panels) or name == "figure9"
    assert drawn.html().count("<svg") == len(drawn.panels)


def test_the_full_main_table_counts_all_72_settings(tmp_path: Path) -> None:
    """In the report the networks stand above their methods, as in the paper, and every setting is counted."""
    console = Console(file=io.StringIO(), width=200)
    shown = show_preset("table2", full_records("table2"), tmp_path, console)
    page = "".join(shown.parts)
    assert page.count('<th class="over" colspan="5">ResNet-101</th>') == 6
    assert page.count('<th class="over" colspan="2">ViT</th>') == 6
    assert dict(main_table(full_records("table2"))[-1].rows)["all"][1] == 72
    assert console.file.getvalue().index("RoTTA") < console.file.getvalue().index("Softmax")


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
    assert "Names: 50 rows, in" in shown
    assert "n7" not in shown


def test_settings_without_printed_numbers_are_named(tmp_path: Path) -> None:
    """A table of other data says that the paper has nothing to compare with."""
    console = Console(file=io.StringIO(), width=200)
    show_preset("table3", records(dataset="demo", model="demo"), tmp_path, console)
    assert "The paper prints no numbers for demo / demo." in console.file.getvalue()
