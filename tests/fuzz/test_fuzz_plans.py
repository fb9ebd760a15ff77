"""Random plans: each is cells, or one sentence; none is a traceback, and no cell is one that cannot be stored."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.plan.registry import names
from sicl.errors import SiclError

pytestmark = pytest.mark.slow

BASE: dict[str, Any] = {
    "name": "base",
    "seeds": [0, 1],
    "predict": "after",
    "datasets": ["demo", {"name": "cifar10-c", "split": "test", "source": "cifar10", "source_n": 10}],
    "models": [
        {"name": "demo"},
        {"name": "m", "load": {"demo": "demo", "cifar10": "timm:x"}, "mean": [0.1, 0.2, 0.3]},
    ],
    "methods": [
        "source",
        {"name": "tent", "label": "fast", "lr": 0.01, "steps": 2, "models": ["demo"]},
        {"name": "sotta", "preset": "paper", "confidence": {"name": "sicl", "variants": 4}},
    ],
    "calibrators": ["softmax", "sicl_paper", {"name": "sicl", "label": "hard", "votes": "hard"}, "transcal"],
    "streams": [
        {"name": "benign", "corruptions": ["fog", "snow"], "severity": [1, 5], "n": 10, "batch_size": 4},
        {"name": "noisy", "base": "dynamic", "gamma": 0.5, "ood": "noise", "share": 0.25, "datasets": "demo"},
        {"name": "continual", "corruptions": "all", "per_corruption": 4, "order": "label"},
    ],
}
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.0, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), float("-inf"), "", " ", ".", "..", "../../x", "/etc/passwd", "a\0b", "a\nb", "\ud800", "x" * 5000,
    "[/x]", "{dataset}", "{nope}", "${HOME}", "=1+1", "тест", "folder:", "folder:\0", "imagenet:5k", "os:system",
    "a:b", "a.b.c:d", ":", "sicl:SICL", "sicl.adapt:Tent", "sicl.calibrate:SICL", "sicl.bench:x", "json:dumps",
    "this:d", "sicl.types:Batch", "timm:", "hf:x", "x.pt", "\0.pt", "~/x.safetensors", [], {}, [[]], [{}],
    {"name": "tent"},
    {"name": []}, {"": 1}, ["fog"], ["fog", "fog"], ["fog", 1], [1, "a", None], ["all"], "all", "clean", b"bytes",
    {1: 2}, object, 1j, (1, 2), {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": 1}}}}}}}},
]  # fmt: skip
KEYS = ["name", "label", "load", "lr", "seed", "severity", "corruptions", "corruption", "n", "preset", "confidence",
        "datasets", "models", "methods", "base", "share", "ood", "members", "layer", "variants", "max_batch",
        "é", ""]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to everything inside a table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in places(item, (*path, key)))]


def mutate(table: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Change a table in one place: another value, another key, a missing or doubled part."""
    path = draw.choice(places(table)[1:])
    parent: Any = table
    for key in path[:-1]:
        parent = parent[key]
    known = [
        *ODD,
        *names("method"),
        *names("calibrator"),
        *names("stream"),
        draw.randint(-9, 99),
        draw.uniform(-2, 2),
    ]
    action = draw.randrange(5)
    if action == 0:
        del parent[path[-1]]
    elif action == 1 and isinstance(parent, dict):
        parent[draw.choice(KEYS)] = copy.deepcopy(draw.choice(known))
    elif action == 2 and isinstance(parent, list):
        parent.append(copy.deepcopy(draw.choice([*known, *parent])))
    elif action == 3:
        parent[path[-1]] = [copy.deepcopy(parent[path[-1]])]
    else:
        parent[path[-1]] = copy.deepcopy(draw.choice(known))
    return table


def check(source: Any) -> BenchPlan | None:
    """Load a plan; every refusal must be our own, and every cell one that can be stored."""
    try:
        plan = load_plan(source)
    except SiclError as error:
        return _sentence(str(error))
    for cell in plan.cells[:50]:
        json.dumps(cell.spec, allow_nan=False).encode()
        assert len(cell.id) < 150
        assert "/" not in cell.id
    return plan


def _sentence(message: str) -> None:
    assert message
    assert len(message) < 100_000


@pytest.mark.parametrize("seed", range(20))
def test_mutated_plans_are_cells_or_one_sentence(seed: int) -> None:
    """Five thousand tables, one to four changes away from a good one."""
    draw, good = random.Random(seed), 0
    assert check(BASE) is not None
    for _ in range(250):
        table = copy.deepcopy(BASE)
        for _ in range(draw.randint(1, 4)):
            mutate(table, draw)
        good += check(table) is not None
    assert good > 5


@pytest.mark.parametrize("seed", range(10))
def test_mutated_files_are_cells_or_one_sentence(seed: int, tmp_path: Path) -> None:
    """Two thousand files with bytes changed, cut, doubled or exchanged."""
    draw, path = random.Random(seed), tmp_path / "p.toml"
    text = (
        b'name = "p"\nseeds = [0, 1]\ndatasets = ["demo"]\nmodels = ["demo"]\n[[methods]]\nname = "tent"\nlr = 1e-3\n'
        b'[[calibrators]]\nname = "sicl"\nvariants = 4\n[[streams]]\nname = "benign"\nseverity = [1, 5]\nn = 10\n'
    )
    for _ in range(200):
        content = bytearray(text)
        for _ in range(draw.randint(1, 6)):
            start = draw.randrange(len(content))
            piece = bytes(
                draw.choice(
                    [
                        b"",
                        b"\xff",
                        b"\0",
                        b'"',
                        b"[",
                        b"inf",
                        b"nan",
                        b"9" * 30,
                        b"=",
                        text[start : start + 9],
                    ]
                )
            )
            content[start : start + draw.randint(0, 3)] = piece
        path.write_bytes(content)
        check(path)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(names("method")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=2500, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    table=st.dictionaries(
        st.sampled_from(
            ["name", "seeds", "predict", "datasets", "models", "methods", "calibrators", "streams", "x"]
        ),
        PLAIN,
        max_size=8,
    ),
    keep=st.booleans(),
)
def test_invented_plans_are_cells_or_one_sentence(table: dict[str, Any], keep: bool) -> None:
    """Tables of any shape, half of them with the parts that a plan needs."""
    check({"datasets": ["demo"], "models": ["demo"], **table} if keep else table)
