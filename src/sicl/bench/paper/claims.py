"""What the paper claims, one sentence each, and which measure answers it."""

from __future__ import annotations

from dataclasses import dataclass

from sicl.bench.paper import measures
from sicl.bench.paper.evidence import MAIN, RESNET18
from sicl.bench.paper.measures import Measure


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of the paper.

    Args:
        text: what it says, with its number.
        where: in which section, table or figure.
        measure: what our records say.
        runs: the names of those runs; none where the answer needs no records.
        source: the command, where it is not that of the runs.
    """

    text: str
    where: str
    measure: Measure
    runs: tuple[str, ...] = ()
    source: str = ""


_TESTS = "`pytest tests/calibrate`"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        text="SICL's ECE is 13.0 points lower than the others' mean",
        where="abstract, 7.2",
        measure=measures.points_lower(None, 13.0),
        runs=MAIN,
    ),
    Claim(
        text="15.6 points lower on dynamic streams",
        where="7.2",
        measure=measures.points_lower("dynamic", 15.6),
        runs=MAIN,
    ),
    Claim(
        text="10.4 points lower on benign streams",
        where="7.2",
        measure=measures.points_lower("benign", 10.4),
        runs=MAIN,
    ),
    Claim(text="lowest in 63 of 72 settings", where="7.2, table 2", measure=measures.wins, runs=MAIN),
    Claim(
        text="the count of 63 follows from the table",
        where="7.2",
        measure=measures.printed_wins,
        source="`sicl paper claims`",
    ),
    Claim(
        text="printed averages are the means of their rows",
        where="tables 2 to 4",
        measure=measures.printed_means,
        source="`sicl paper claims`",
    ),
    Claim(
        text="ResNet-18, CIFAR-10-C: SICL (our default)",
        where="table 3",
        measure=measures.table("table3", "sicl", 0.5),
        runs=("table3",),
    ),
    Claim(
        text="ResNet-18, CIFAR-100-C: SICL (our default)",
        where="table 4",
        measure=measures.table("table4", "sicl", 0.5),
        runs=("table4",),
    ),
    Claim(
        text="the printed formula gives table 3",
        where="6.1, table 3",
        measure=measures.table("table3", "sicl_paper", 1.0),
        runs=("table3",),
    ),
    Claim(
        text="the printed formula gives table 4",
        where="6.1, table 4",
        measure=measures.table("table4", "sicl_paper", 1.0),
        runs=("table4",),
    ),
    *(
        Claim(
            text=f"{name} has the printed ECE",
            where="tables 3, 4",
            measure=measures.reproduces(key),
            runs=RESNET18,
        )
        for key, name in (
            ("mc_dropout", "MC Dropout"),
            ("pseudocal", "PseudoCal"),
            ("temperature_scaling", "Vanilla TS"),
            ("transcal", "TransCal"),
        )
    ),
    Claim(
        text="a fixed model: first and last samples differ at a similar ECE of 20 %",
        where="4.1, figure 2a",
        measure=measures.first_last,
        runs=("figure2",),
    ),
    Claim(
        text="its ECE fluctuates substantially as corruptions change",
        where="4.1, figure 2b",
        measure=measures.swings,
        runs=("figure2",),
    ),
    Claim(
        text="TENT on static Gaussian noise: ECE grows threefold",
        where="4.2, figure 2c",
        measure=measures.threefold,
        runs=("table3",),
    ),
    Claim(
        text="entropy minimisation makes ECE grow with time (static CIFAR-10-C)",
        where="4.2, figure 2d",
        measure=measures.grows("table3", "benign"),
        runs=("table3",),
    ),
    Claim(
        text="the same on static CIFAR-100-C",
        where="4.2",
        measure=measures.grows("table4", "benign"),
        runs=("table4",),
    ),
    Claim(
        text="the same on dynamic streams",
        where="2, 4.2",
        measure=measures.grows("resnet18-dynamic", "dynamic"),
        runs=("resnet18-dynamic",),
    ),
    Claim(
        text="calibration is harder on dynamic streams",
        where="1, 2",
        measure=measures.harder,
        runs=(*RESNET18, "resnet18-dynamic"),
    ),
    Claim(
        text="content noise has more than 4 x the ECE of style noise",
        where="5.1, figure 3a",
        measure=measures.content_noise,
        runs=("figure3",),
    ),
    Claim(
        text="MixStyle's ContentVariance is below dropout's, all corruptions",
        where="5.2, figure 3b",
        measure=measures.variance_below("figure3", "content_variance", "mixstyle", ("dropout",)),
        runs=("figure3",),
    ),
    Claim(
        text="style noise's ContentVariance is below MixStyle's",
        where="7.3, figure 5a",
        measure=measures.variance_below("figure3", "content_variance", "style", ("mixstyle",)),
        runs=("figure3",),
    ),
    Claim(
        text="its StyleVariance is above MixStyle's and dropout's",
        where="7.3, figure 5b",
        measure=measures.style_wins,
        runs=("figure3",),
    ),
    Claim(
        text="both statistics together beat mean, deviation and MixStyle",
        where="7.4, figure 6a",
        measure=measures.lowest_for_methods("figure6", "style votes", ("mean only", "std only", "mixstyle")),
        runs=("figure6",),
    ),
    Claim(
        text="the mean matters more than the deviation",
        where="7.4, figure 6a",
        measure=measures.lowest_for_methods("figure6", "mean only", ("std only",)),
        runs=("figure6",),
    ),
    Claim(
        text="relaxation lowers the ECE of every method",
        where="7.4, figure 6b",
        measure=measures.lowest_for_methods("figure6", "sicl_paper", ("style votes",)),
        runs=("figure6",),
    ),
    Claim(
        text="it lowers it least for SAR and SoTTA",
        where="7.4, figure 6b",
        measure=measures.gain_by_method,
        runs=("figure6",),
    ),
    Claim(
        text="relaxation helps in collapse (our guard)",
        where="6.3",
        measure=measures.collapse_eased("sicl", "sicl, no guard"),
        runs=("resnet18-collapse",),
    ),
    Claim(
        text="ECE below 10 % with N = 5",
        where="7.4, figure 6c",
        measure=measures.few_variants,
        runs=("figure6",),
    ),
    Claim(
        text="ECE falls steadily as N grows",
        where="7.4, figure 6c",
        measure=measures.more_variants,
        runs=("figure6",),
    ),
    Claim(
        text="ECE of right predictions rises with severity",
        where="A, figure 7a",
        measure=measures.severity_rises("ece_right"),
        runs=("figure7ab",),
    ),
    Claim(
        text="ECE of wrong predictions rises with severity",
        where="A, figure 7b",
        measure=measures.severity_rises("ece_wrong"),
        runs=("figure7ab",),
    ),
    Claim(
        text="layers 1 to 3 are alike, layer 4 is far worse",
        where="A, figure 7c",
        measure=measures.layers,
        runs=("figure7c",),
    ),
    Claim(
        text="highest OOD AUROC in every category",
        where="B.2, figure 8a",
        measure=measures.ood,
        runs=("figure8a",),
    ),
    Claim(
        text="SoTTA with SICL's filter: 75.4 to 76.4 %",
        where="B.2, figure 8b",
        measure=measures.sotta_gains,
        runs=("figure8b",),
    ),
    Claim(
        text="ImageNet-C: lowest for most methods",
        where="table 2",
        measure=measures.imagenet,
        runs=("imagenet-resnet50",),
    ),
    Claim(text="accuracy is left as it is", where="B.1", measure=measures.same_labels, runs=MAIN),
    Claim(
        text="instance-wise, where a temperature keeps the softmax's ranking",
        where="table 1",
        measure=measures.ranks,
        runs=MAIN,
    ),
    Claim(text="independent of the architecture", where="table 2", measure=measures.architectures, runs=MAIN),
    Claim(
        text="no source data, no labels",
        where="table 1",
        measure=measures.said("needs neither", "confirmed"),
        source=_TESTS,
    ),
    Claim(
        text="forward passes only, no training",
        where="abstract, table 1",
        measure=measures.said("no gradient is computed", "confirmed"),
        source=_TESTS,
    ),
    Claim(
        text="no hyper-parameter but N",
        where="7.4",
        measure=measures.said("appendix: also a sensitivity n = 3, not defined", "refuted"),
        source="the paper's appendix",
    ),
)
"""Every claim of the text, the tables and the figures, in the order of the paper's importance."""
