"""The tables of a report as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from sicl.bench.run.schema import IDENTITY, Record
from sicl.bench.tables.names import (
    METRICS,
    MISSING,
    Metric,
    calibrator_name,
    csv_text,
    markdown_text,
    pipe_table,
    tex_text,
)
from sicl.bench.tables.printed import printed_value
from sicl.bench.tables.summary import (
    Group,
    Mean,
    calibrators_of,
    compare_with_paper,
    group_records,
    mean_accuracy,
    mean_metric,
)

MAIN = ("ece", "cumulative_ece", "brier", "nll", "auroc", "aurc")


def markdown(records: Sequence[Record], title: str, *, note: str = "") -> str:
    """Return the result tables, the comparison with the paper and the failed cells as Markdown."""
    groups, names = group_records(records), calibrators_of(records)
    parts = [f"# {markdown_text(title)}", *([f"**{note}**"] if note else []), _sentence(records, names)]
    for key in MAIN:
        metric = METRICS[key]
        unit = ", %" if metric.percent else ""
        parts += [f"## {metric.title}{unit} {metric.arrow}", _markdown_table(groups, names, metric)]
    if rows := compare_with_paper(groups):
        parts.append("## Beside the paper: cumulative ECE and accuracy, %")
        head = ["Setting", "Calibrator", "Ours", "Paper", "Difference", "Over"]
        lines = [
            [
                markdown_text(row.group.title),
                "Accuracy" if row.calibrator == "accuracy" else _called(row.calibrator),
                f"{row.ours:.1f}",
                f"{row.paper:.1f}",
                f"{row.ours - row.paper:+.1f}",
                row.note,
            ]
            for row in rows
        ]
        parts.append(pipe_table(head, lines, right=(2, 3, 4)))
    failed = [record for record in records if record.status == "failed"]
    if failed:
        parts.append("## Failed cells")
        parts.append("\n".join(f"- {markdown_text(f'{r.label}: {r.error}')}" for r in failed))
    return "\n\n".join(parts) + "\n"


def comma_separated(records: Sequence[Record]) -> str:
    """Return one line a cell and calibrator with every scalar, in shares; a failed cell is one line."""
    buffer = io.StringIO()
    cell_columns = (*IDENTITY, "status", "error", "n", "n_ood")
    number_columns = ("accuracy", *METRICS, "mean_confidence")
    columns = [*cell_columns, "calibrator", *number_columns, "paper_cumulative_ece"]
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        told = {key: getattr(record, key) for key in cell_columns}
        shared = {key: csv_text(value) if isinstance(value, str) else value for key, value in told.items()}
        if not record.calibrators:
            writer.writerow(shared)
        for name, cell in record.calibrators.items():
            numbers = {key: cell.get(key) for key in number_columns}
            own = {"calibrator": csv_text(name), "paper_cumulative_ece": _paper(record, name)}
            writer.writerow({**shared, **numbers, **own})
    return buffer.getvalue()


def latex(records: Sequence[Record], title: str, *, key: str = "ece", note: str = "") -> str:
    """Return a booktabs table of one metric, the best of each row bold."""
    groups, names, metric = group_records(records), calibrators_of(records), METRICS[key]
    head = ["Data set", "Model", "Method", "Stream", "Acc.", *map(calibrator_name, names)]
    lines = [" & ".join(tex_text(text) for text in head) + r" \\", r"\midrule"]
    for group in groups:
        cells = [tex_text(text) for text in group.names]
        cells.append(METRICS["ece"].text(mean_accuracy(group.records).value).replace(MISSING, "--"))
        cells += [_tex_cell(*part, metric) for part in group.means(names, metric).values()]
        lines.append(" & ".join(cells) + r" \\")
    unit = r" (\%)" if metric.percent else ""
    caption = f"{tex_text(title)}: {tex_text(metric.title)}{unit}, {tex_text(_over(records))}."
    caption += f" {tex_text(note)}" if note else ""
    body = "\n".join(lines)
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
        f"\\caption{{{caption}}}\n\\begin{{tabular}}{{llll{'r' * (len(names) + 1)}}}\n\\toprule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n\\end{{table}}\n"
    )


def _sentence(records: Sequence[Record], names: Sequence[str]) -> str:
    means = {name: mean_metric(records, name, "ece") for name in names}
    known = {name: mean for name, mean in means.items() if mean.value is not None}
    if not known:
        return f"No cell finished ({len(records)} failed)."
    order = sorted(known, key=lambda name: known[name].value or 0.0)
    return "\n".join(
        f"- {_called(name)}: mean ECE {METRICS['ece'].text(known[name].value)} % {known[name].over}"
        for name in order
    )


def _markdown_table(groups: Sequence[Group], names: Sequence[str], metric: Metric) -> str:
    head = ["Data set", "Model", "Method", "Stream", "Cells", "Accuracy, %", *map(_called, names)]
    rows = []
    for group in groups:
        row = [*map(markdown_text, group.names), f"{len(group.done)}/{len(group.records)}"]
        row.append(METRICS["ece"].text(mean_accuracy(group.records).value))
        for mean, best in group.means(names, metric).values():
            value = metric.text(mean.value)
            spread = "" if mean.spread is None else f" ±{metric.text(mean.spread)}"
            row.append((f"**{value}**" if best else value) + spread)
        rows.append(row)
    return pipe_table(head, rows, right=range(4, len(head)))


def _called(calibrator: str) -> str:
    return markdown_text(calibrator_name(calibrator))


def _paper(record: Record, calibrator: str) -> float | None:
    printed = printed_value(record, calibrator, record.corruption)
    return None if printed is None else round(printed / 100, 6)


def _tex_cell(mean: Mean, best: bool, metric: Metric) -> str:
    value = metric.text(mean.value).replace(MISSING, "--")
    spread = "" if mean.spread is None else rf"\,$\pm$\,{metric.text(mean.spread)}"
    return (rf"\textbf{{{value}}}" if best else value) + spread


def _over(records: Sequence[Record]) -> str:
    done = sum(record.status == "done" for record in records)
    return Mean(None, done, len(records), len(records) - done).over
