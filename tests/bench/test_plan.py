"""Plans: expansion, identity, and problems that are all reported before anything runs."""

from __future__ import annotations

import datetime
import json
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import own_parts
import pytest
from own_parts import TINY

import sicl
from sicl.adapt import METHODS
from sicl.bench.plan import registry
from sicl.bench.plan.cost import cell_images, estimate, shape
from sicl.bench.plan.plan import load_plan
from sicl.bench.plan.registry import accepts
from sicl.bench.run.run import make_cell_stream, resolve
from sicl.calibrate import CALIBRATORS
from sicl.corruptions import CORRUPTIONS
from sicl.errors import DataError, OptionError
from sicl.streams import STREAMS

DEMO: dict[str, Any] = {"datasets": ["demo"], "models": ["demo"]}


def problems_of(**changes: Any) -> str:
    with pytest.raises(OptionError) as caught:
        load_plan({**DEMO, **changes})
    return str(caught.value)


def test_a_plan_is_the_product_of_its_parts() -> None:
    """Two methods, two corruptions at two severities and two seeds are sixteen different cells."""
    stream = {"name": "benign", "corruptions": ["fog", "snow"], "severity": [1, 5]}
    plan = load_plan({**DEMO, "methods": ["source", "tent"], "streams": [stream], "seeds": [0, 1]})
    assert len(plan) == 16
    assert len({cell.id for cell in plan.cells}) == 16
    assert len({tuple(cell.identity.values()) for cell in plan.cells}) == 16


def test_a_plan_file_gives_the_same_cells_as_its_table(tmp_path: Path) -> None:
    """TOML is only another way to write the table down."""
    path = tmp_path / "p.toml"
    path.write_text('datasets = ["demo"]\nmodels = ["demo"]\n[[methods]]\nname = "tent"\nlr = 0.002\n')
    from_table = load_plan({**DEMO, "methods": [{"name": "tent", "lr": 0.002}]})
    assert [cell.id for cell in load_plan(path).cells] == [cell.id for cell in from_table.cells]
    assert len(from_table) == 15


def test_everything_wrong_is_reported_at_once_with_the_nearest_name() -> None:
    """A wrong key, method, option, type, value, corruption, severity, data set and model."""
    message = problems_of(
        datasets=["demoo"],
        models=["resnet"],
        methods=[
            "tnt",
            {"name": "tent", "lrr": 1},
            {"name": "sar", "lr": "fast"},
            {"name": "eata", "lr": -1.0},
        ],
        streams=[{"name": "benign", "corruptions": ["fogg"], "severity": 7}],
        seed=[0],
    )
    assert message.startswith("the plan 'plan' has 10 problems:")
    for part in ("'demo'?", "'tent'?", "'lr'?", "'fog'", "'seeds'?", "[1, 5], got 7", "float, got 'fast'"):
        assert part in message
    assert "`lr` must be > 0, got -1.0." in message
    assert "unknown model 'resnet'" in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"models": [{"name": "vit", "load": "timm:vit_tiny"}], "methods": ["batchnorm"]}, "batch norms"),
        ({"datasets": ["mnist"], "calibrators": ["transcal"]}, "no source validation data"),
        ({"models": ["gone.safetensors"]}, "are missing"),
        ({"methods": ["tent", "tent"]}, "another `label`"),
        ({"methods": [{"name": "tent", "models": ["other"]}]}, "unknown key 'other'"),
        ({"methods": [{"name": "tent", "preset": "papre"}]}, "'paper'"),
        ({"methods": [{"name": "sotta", "confidence": "sicll"}]}, "'sicl'"),
        ({"methods": ["own_partz:Shift"]}, "cannot be imported"),
        ({"methods": ["own_parts:Shft"]}, "'Shift'"),
        ({"methods": ["own_parts:Flat"]}, "must be a sicl method"),
        ({"methods": [{"name": "own_parts:Shift", "by": "much"}]}, "must be float"),
        ({"predict": "during"}, '"before" or "after"'),
        ({"seeds": [-1]}, "from 0 to"),
        ({"seeds": [1, 1]}, "each seed once"),
        ({"streams": [{"name": "dynamic", "gamma": 0.0}]}, "`gamma` must be > 0"),
        ({"streams": [{"name": "noisy", "share": 1.0}]}, "[0, 1)"),
        ({"streams": [{"name": "noisy", "ood": "mnits"}]}, "'mnist'"),
        ({"streams": [{"name": "noisy", "gama": 1}]}, "unknown key 'gama'"),
        ({"streams": ["benign", "benign"]}, "twice"),
        ({"datasets": []}, "at least one dataset"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(changes: dict[str, Any], expected: str) -> None:
    """Each impossible plan has a sentence that says why."""
    assert expected in problems_of(**changes)


def test_a_missing_or_damaged_plan_file_is_named(tmp_path: Path) -> None:
    """The message has the path."""
    with pytest.raises(DataError, match=r"gone\.toml"):
        load_plan(tmp_path / "gone.toml")
    (tmp_path / "bad.toml").write_text("datasets = [")
    with pytest.raises(DataError, match="no TOML"):
        load_plan(tmp_path / "bad.toml")


def test_limits_keep_parts_apart() -> None:
    """A method limited to one model meets only that one."""
    models = [{"name": "demo"}, {"name": "other", "load": "demo"}]
    plan = load_plan(
        {
            **DEMO,
            "models": models,
            "methods": ["source", {"name": "tent", "models": ["other"]}],
            "streams": ["mixed"],
        }
    )
    pairs = [(cell.identity["model"], cell.identity["method"]) for cell in plan.cells]
    assert pairs == [("demo", "source"), ("other", "source"), ("other", "tent")]


def test_an_id_names_the_complete_spec() -> None:
    """Spelling a default out changes nothing; any other value makes another cell."""

    def ids(**options: Any) -> list[str]:
        return [cell.id for cell in load_plan({**DEMO, "methods": [{"name": "tent", **options}]}).cells]

    assert ids() == ids(lr=1e-3, steps=1, predict="before")
    assert not set(ids()) & set(ids(lr=2e-3))
    assert not set(ids()) & set(ids(predict="after"))


def test_an_id_follows_what_a_calibrators_preset_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the printed formula written down otherwise, its old results would not be taken for new ones."""
    before = load_plan({**DEMO, "calibrators": ["sicl_paper"]}).cells[0].id
    registry.preset_basis.cache_clear()
    monkeypatch.setattr(sicl.SICL, "paper", classmethod(lambda cls, **options: cls(**options)))
    assert load_plan({**DEMO, "calibrators": ["sicl_paper"]}).cells[0].id != before
    registry.preset_basis.cache_clear()


def test_cells_of_earlier_runs_keep_their_ids() -> None:
    """A folder that an earlier version wrote is resumed, whatever has moved inside the package since."""
    earlier = json.loads((Path(__file__).parent / "earlier_ids.json").read_text())
    for name, plan in earlier.items():
        assert [cell.id for cell in load_plan(plan["table"]).cells] == plan["ids"], name


def test_a_cell_carries_its_seed_into_every_part() -> None:
    """Stream, method and calibrators all take the cell's seed, unless the plan gives one."""
    plan = load_plan(
        {**DEMO, "calibrators": ["sicl", {"name": "sicl", "label": "fixed", "seed": 7}], "seeds": [3]}
    )
    spec = plan.cells[0].spec
    assert spec["method"]["options"]["seed"] == spec["stream"]["options"]["seed"] == 3
    assert spec["calibrators"]["sicl"]["options"]["seed"] == 3
    assert spec["calibrators"]["fixed"]["options"]["seed"] == 7


def test_a_methods_preset_depends_on_data_set_and_architecture() -> None:
    """The options in the cell are those of `for_dataset`."""
    table = {
        "datasets": ["cifar100-c"],
        "models": [{"name": "a_vit", "load": "timm:vit_tiny"}],
        "methods": [{"name": "sar", "preset": "paper"}, {"name": "sotta", "preset": "official", "lr": 0.5}],
        "streams": ["mixed"],
    }
    first, second = (resolve(cell.spec)[0] for cell in load_plan(table).cells)
    assert first == sicl.Sar.for_dataset("cifar100", preset="paper", architecture="vit")
    assert second == sicl.Sotta.for_dataset("cifar100", preset="official", architecture="vit", lr=0.5)


def test_load_may_depend_on_data_set_and_seed(tmp_path: Path) -> None:
    """Templates and tables name one file for each; a missing one is reported."""
    for seed in (0, 1):
        (tmp_path / f"cifar10-{seed}.safetensors").touch()
    load = {"cifar10": f"{tmp_path}/{{dataset}}-{{seed}}.safetensors", "demo": "demo"}
    table = {"datasets": ["demo", "cifar10-c"], "models": [{"name": "m", "load": load}], "streams": ["mixed"]}
    loads = [cell.spec["model"]["load"] for cell in load_plan({**table, "seeds": [0, 1]}).cells]
    assert [Path(path).name for path in loads] == [
        "demo",
        "cifar10-0.safetensors",
        "demo",
        "cifar10-1.safetensors",
    ]
    with pytest.raises(OptionError, match=r"cifar10-2\.safetensors"):
        load_plan({**table, "seeds": [2]})


def test_every_stream_of_a_plan_can_be_made() -> None:
    """The options in a cell are what `make_stream` takes, for all kinds."""
    streams = [*STREAMS, {"name": "noisy", "label": "long", "base": "dynamic", "gamma": 1.0}]
    plan = load_plan({**DEMO, "streams": streams})
    made = {cell.identity["stream"]: make_cell_stream(cell.spec["stream"]) for cell in plan.cells}
    assert set(made) == {*STREAMS, "long"}
    assert made["long"].base.gamma == 1.0
    assert made["dynamic"].corruptions == CORRUPTIONS


def test_own_kinds_are_read_from_their_fields() -> None:
    """A class of the user's has the options its dataclass has, and so has a built-in one."""
    assert registry.find_kind("method", "own_parts:Shift").options["by"].default == 0.1
    for noun, known in (("method", METHODS), ("calibrator", CALIBRATORS), ("stream", STREAMS)):
        for name, spec in known.items():
            assert list(registry.find_kind(noun, name).options) == [item.name for item in fields(spec)]


@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        (int, [1], [1.5, True, "1"]),
        (float, [1, 0.5], ["x", False]),
        (str, ["x"], [1]),
        (bool, [True], [1]),
        (int | None, [1, None], ["x"]),
        (Literal["a", "b"], ["a"], ["c", 1]),
        (tuple[str, ...], [["a"], ("a",)], ["a", 1, [1]]),
        (Path, [object()], []),
    ],
)
def test_types_are_checked_by_annotation(declared: Any, good: list[object], bad: list[object]) -> None:
    """What TOML can give is accepted where it fits; unknown types accept anything."""
    assert all(accepts(declared, value) for value in good)
    assert not any(accepts(declared, value) for value in bad)


def test_a_thousand_cells_are_planned_at_once() -> None:
    """15 corruptions x 5 severities x 7 methods x 2 seeds, in less than a second once torch is there."""
    streams = [{"name": "benign", "severity": [1, 2, 3, 4, 5]}]
    begun = time.perf_counter()
    plan = load_plan({**DEMO, "seeds": [0, 1], "methods": list(METHODS)[:7], "streams": streams})
    assert len(plan) == 1050
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "../../evil"}, "name: must be a word"),
        ({"name": "a/b"}, "name: must be a word"),
        ({"name": "x" * 300}, "name: must be a word"),
        ({"name": "nul\0"}, "name: must be a word"),
        ({"name": 7}, "name: must be a word"),
        ({"methods": [{"name": "tent", "lr": float("inf")}]}, "finite numbers"),
        ({"methods": [{"name": "tent", "lr": datetime.date(2026, 1, 1)}]}, "finite numbers"),
        ({"methods": [{"name": "tent", "label": "a\nb"}]}, "control characters"),
        ({"methods": [{"name": "tent", "models": 5}]}, "`models` must be a label"),
        ({"methods": ["os:system"]}, "standard library"),
        ({"models": [{"name": "m", "load": "shutil:rmtree"}]}, "standard library"),
        ({"datasets": ["shutil:rmtree"]}, "standard library"),
        ({"methods": ["own_parts:deadly_plan"]}, "must be a sicl method, got function"),
        ({"models": [{"name": "m", "load": "own_parts:TINY"}]}, "function or class"),
        ({"methods": ["sicl.adapt:Method"]}, "lacks what a method does"),
        ({"calibrators": ["sicl.calibrate:Calibrator"]}, "lacks what a calibrator does"),
        ({"datasets": [{"name": "demo", "source_n": -1}]}, "`source_n` must be > 0"),
        ({"datasets": [{"name": "demo", "split": "tset"}]}, "'test'"),
        ({"models": [{"name": "m", "load": 3}]}, "`load` must be a text"),
        ({"streams": [{"name": "benign", "severity": []}]}, "at least one"),
        ({"seeds": [2**64]}, "seeds: must be"),
    ],
)
def test_what_a_plan_must_not_say_is_one_sentence(changes: dict[str, Any], expected: str) -> None:
    """Names that leave the folder, values no record can hold, objects that are no parts of a benchmark."""
    assert expected in problems_of(**changes)


def test_nothing_is_called_before_it_is_known_to_be_the_right_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that stands where a method should is not called to find out."""
    called: list[object] = []
    monkeypatch.setattr(own_parts, "tiny_model", lambda *given, **options: called.append(given))
    problems_of(methods=["own_parts:tiny_model"], calibrators=["own_parts:tiny_model"])
    assert called == []


def test_the_modules_a_plan_imports_are_known_without_importing_them() -> None:
    """Whoever runs a stranger's plan can look first."""
    table = {
        "datasets": ["theirs.data:load", "folder:here"],
        "models": [{"name": "m", "load": {"a": "nets:make", "b": "timm:vit_tiny"}}],
        "methods": [{"name": "sotta", "confidence": {"name": "conf:Own"}}, "tent", "sicl.adapt:Tent"],
        "streams": "streamed:Stream",
    }
    assert registry.own_modules(table) == ["theirs.data", "nets", "conf", "streamed"]
    assert "theirs" not in sys.modules


def test_the_cost_counts_images_and_passes() -> None:
    """Fifty images through TENT (4 passes) and the printed SICL (41) are 2,250 passes."""
    stream = {"name": "benign", "corruptions": ["fog"], "n": 50}
    plan = load_plan({**DEMO, "methods": ["tent"], "calibrators": ["sicl_paper"], "streams": [stream]})
    cost = estimate(plan)
    assert (cost.images, cost.passes) == (50, 50 * 45)
    assert cost.seconds("cpu") > cost.seconds("cuda") > 0
    assert shape(plan)["method"] == {"tent": 1}
    mixed = load_plan({**DEMO, "streams": [{"name": "noisy", "base": "mixed", "share": 0.5}]})
    assert cell_images(mixed.cells[0]) == 2 * 15 * 1500


def test_a_dry_run_counts_a_folders_pictures(tmp_path: Path) -> None:
    """What is there, not a guess; an empty folder is said before anything runs."""
    (tmp_path / "cat").mkdir()
    plan = load_plan(
        {**DEMO, "datasets": [f"folder:{tmp_path}"], "streams": [{"name": "benign", "corruptions": ["fog"]}]}
    )
    with pytest.raises(DataError, match="has no images"):
        estimate(plan)
    for index in range(3):
        (tmp_path / "cat" / f"{index}.png").touch()
    assert cell_images(plan.cells[0]) == 3


def test_own_parts_make_a_plan() -> None:
    """The plan that the other tests run has four cells."""
    assert len(load_plan(TINY)) == 4
