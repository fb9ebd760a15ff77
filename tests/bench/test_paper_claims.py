"""Claims: answered from records only, and the page that shows them is what the records say."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from report_records import cell
from typer.testing import CliRunner

from sicl.bench.paper.answers import QUICK_RUNS, RUNS, claims_table, drawings, filled, write_page
from sicl.bench.paper.claims import CLAIMS
from sicl.bench.paper.evidence import Evidence, growth
from sicl.bench.run.schema import Record
from sicl.cli.paper import app
from sicl.errors import DataError, OptionError

ROOT = Path(__file__).parents[2]


def write(folder: Path, *records: Record) -> None:
    folder.mkdir(parents=True)
    for i, record in enumerate(records):
        (folder / f"{i}.json").write_text(record.to_json())


def answers(root: Path) -> dict[str, tuple[str, str]]:
    evidence = Evidence(root)
    return {
        claim.text: (answer.ours, answer.verdict) for claim in CLAIMS if (answer := claim.measure(evidence))
    }


def test_the_page_is_what_the_records_say() -> None:
    """docs/reproduction.md and its figures are those that the command writes from results/."""
    evidence = Evidence(ROOT / "results")
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert filled(page, evidence) == page, "run `sicl paper claims results --write docs/reproduction.md`"
    for name, panel in drawings(evidence).items():
        assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == panel.svg()
        assert f"images/{name}.svg" in page
    assert len(page.splitlines()) <= 250
    assert all(len(line) <= 110 for line in page.splitlines() if not line.startswith("|"))


def test_every_claim_names_where_it_stands_and_what_answers_it() -> None:
    """At least 25 claims, each with a place in the paper and runs that have a command."""
    assert len(CLAIMS) >= 25
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert claim.where
        assert bool(claim.runs) != bool(claim.source)
        assert set(claim.runs) <= set(RUNS)


def test_commands_beside_the_claims_are_plans_that_exist() -> None:
    """Every `sicl paper run` of the page, with its options, is a plan once the weights are there."""
    for name, command in QUICK_RUNS.items():
        result = CliRunner().invoke(app, [*command.split()[2:], "--dry-run"])
        assert result.exit_code == 0, (command, result.output)
        assert name in command
    for command in RUNS.values():
        if command.startswith("sicl bench"):
            assert (ROOT / command.split()[2]).is_file()
        else:
            result = CliRunner().invoke(app, [*command.split()[2:], "--dry-run"])
            assert isinstance(result.exception, OptionError), command
            assert "safetensors" in str(result.exception)


def test_the_embedded_models_answer_stands_beside_the_full_ones(tmp_path: Path) -> None:
    """Quick runs have a column of their own; where only they answer, the verdict is in brackets."""
    parts = [
        replace(cell("fog"), method=method, stream="noisy, mnist", accuracy=accuracy)
        for method, accuracy in (("sotta", 0.70), ("sotta+sicl", 0.78))
    ]
    write(tmp_path / "quick" / "figure8b", *parts)
    assert "| (confirmed) |  | 70.0 to 78.0 % |" in claims_table(Evidence(tmp_path))
    write(tmp_path / "figure8b", *(replace(part, accuracy=0.5) for part in parts))
    assert "| refuted | 50.0 to 50.0 % | 70.0 to 78.0 % |" in claims_table(Evidence(tmp_path))


def test_a_claim_without_records_is_not_measured_yet(tmp_path: Path) -> None:
    """An empty folder answers only what needs no records, and makes nothing up."""
    found = answers(tmp_path)
    measured = {text for text, (_, verdict) in found.items() if verdict != "not measured yet"}
    assert measured == {claim.text for claim in CLAIMS if not claim.runs}
    assert "not measured yet" in claims_table(Evidence(tmp_path))
    assert drawings(Evidence(tmp_path)) == {}


def test_answers_follow_the_records(tmp_path: Path) -> None:
    """Other numbers make another verdict."""
    right = cell("gaussian_noise")
    for name, accuracies in (("up", (0.70, 0.78)), ("down", (0.78, 0.70))):
        parts = [
            replace(right, method=method, stream="noisy, mnist", accuracy=accuracy)
            for method, accuracy in zip(("sotta", "sotta+sicl"), accuracies)
        ]
        write(tmp_path / name / "figure8b", *parts)
    text = "SoTTA with SICL's filter: 75.4 to 76.4 %"
    assert answers(tmp_path / "up")[text] == ("70.0 to 78.0 %", "confirmed")
    assert answers(tmp_path / "down")[text] == ("78.0 to 70.0 %", "refuted")


def test_growth_compares_the_first_quarter_with_the_last() -> None:
    """By hand: eight windows, two in a quarter; too few windows say nothing."""
    record = cell("fog")
    line = {"end": list(range(8)), "ece": [0.1, 0.2, 0.0, 0.0, 0.0, 0.0, 0.3, 0.5]}
    softmax = {**record.calibrators["softmax"], "over_time": line}
    assert growth(replace(record, calibrators={"softmax": softmax})) == pytest.approx((15.0, 40.0))
    short = {**softmax, "over_time": {"end": [1], "ece": [0.1]}}
    assert growth(replace(record, calibrators={"softmax": short})) is None


def test_a_page_keeps_its_own_text(tmp_path: Path) -> None:
    """Only what stands between the marks is made anew; an unknown part is an error."""
    write(tmp_path / "results" / "figure8b", cell("fog"))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin claims -->\nstale\n<!-- end claims -->\nafter\n")
    write_page(page, tmp_path / "results")
    text = page.read_text()
    assert text.startswith("before\n<!-- begin claims -->\n| the paper says |")
    assert text.endswith("<!-- end claims -->\nafter\n")
    assert "stale" not in text
    with pytest.raises(DataError, match="known are"):
        filled("<!-- begin x -->\n<!-- end x -->", Evidence(tmp_path))


def test_the_command_prints_the_table_or_says_what_is_wrong(tmp_path: Path) -> None:
    """Without `--write` the table goes to the terminal; a missing folder is one sentence."""
    result = CliRunner().invoke(app, ["claims", str(tmp_path)])
    assert result.exit_code == 0
    assert "| the paper says |" in result.output
    failed = CliRunner().invoke(app, ["claims", str(tmp_path / "none")])
    assert isinstance(failed.exception, DataError)


def test_the_recording_script_covers_every_run_of_the_claims(tmp_path: Path) -> None:
    """With a stand-in for the command each run has its step, and missing weights are named."""
    folders = {name: tmp_path / name.lower() for name in ("DATA", "WEIGHTS", "OUT")}
    for folder in folders.values():
        folder.mkdir()
    (folders["WEIGHTS"] / "cifar10-resnet50.safetensors").touch()
    values = {**os.environ, **{name: str(path) for name, path in folders.items()}, "SICL": "true"}
    done = subprocess.run(
        ["sh", str(ROOT / "benchmarks" / "record_paper.sh")],
        env=values,
        capture_output=True,
        text=True,
        check=True,
    )
    older = {"resnet50-cifar10-c", "vit-cifar10-c", "imagenet-resnet50"}
    assert all(f"{run}" in done.stdout for run in set(RUNS) - older)
    assert "table2/resnet50-cifar10-c, seeds 0: status 0" in done.stdout
    assert "no cifar100-vit_tiny128.safetensors: skipped" in done.stdout
    assert done.stderr == ""
