"""`sicl predict`: a model on a folder of pictures, without labels and with them."""

from __future__ import annotations

import csv
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from sicl.cli import app
from sicl.data import load_dataset
from sicl.errors import DataError, OptionError
from sicl.models.preprocess import Preprocess
from sicl.predict import FolderJob, Outcome, Row, predict_page, run_job
from sicl.predict import job as job_module
from sicl.predict.job import write_outcome
from sicl.predict.page import warnings_of
from sicl.predict.pictures import CIFAR10, find_pictures, open_picture, preprocess_of, true_classes

N = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make class folders of a few pictures, two of other sizes and kinds, one broken."""
    root: Path = tmp_path_factory.mktemp("pictures")
    data = load_dataset("demo")
    for i, pixels in enumerate(data.images[np.arange(N)]):
        place = root / data.classes[data.labels[i]]
        place.mkdir(exist_ok=True)
        picture = Image.fromarray(pixels)
        if i == 0:
            picture = picture.resize((90, 50))
        picture.convert("L" if i == 1 else "RGB").save(place / f"{i:03d}.png")
    (root / "cat" / "broken.png").write_bytes(b"not a picture")
    (root / "notes.txt").write_text("no picture")
    return root


def job(folder: Path, out: Path, **changes: object) -> FolderJob:
    """Return a quick job on the embedded model."""
    options = {"calibrator": "softmax", "batch": 8, **changes}
    return FolderJob(model="demo", images=folder, out=out, **options)  # type: ignore[arg-type]


def test_every_picture_gets_a_row_and_a_broken_one_a_reason(folder: Path, tmp_path: Path) -> None:
    """Any size, any mode; what cannot be read is listed, never fatal."""
    outcome = run_job(job(folder, tmp_path))
    assert len(outcome.rows) == N + 1
    assert [row.file for row in outcome.unread] == ["cat/broken.png"]
    assert "cannot be read" in outcome.unread[0].note
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.6
    table, page = write_outcome(outcome, job(folder, tmp_path), predict_page(outcome, folder, "A folder"))
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["file"] for row in rows} == {row.file for row in outcome.rows}
    assert {"label", "name", "confidence", "accepted"} <= rows[0].keys()
    text = page.read_text()
    for words in (
        "Estimated accuracy",
        "Look at these first",
        "Most trusted",
        "Against the truth",
        "broken.png",
    ):
        assert words in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_a_finished_folder_is_not_predicted_again_but_takes_another_risk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the table and the page are made anew; another method in the same folder is refused."""
    first = job(folder, tmp_path)
    outcome = run_job(first)
    write_outcome(outcome, first, "page")
    monkeypatch.setattr(job_module, "_Run", None)
    again = run_job(replace(first, risk=0.4))
    assert len(again.accepted) >= len(outcome.accepted)
    assert [row.label for row in again.rows] == [row.label for row in outcome.rows]
    with pytest.raises(OptionError, match="another method"):
        run_job(replace(first, method="tent"))


@pytest.mark.parametrize("method", ["source", "tent"])
def test_a_stopped_run_goes_on_where_it_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Killed after the second batch, it reads only the rest, and ends as an unbroken run does."""
    whole = run_job(job(folder, tmp_path / "whole", method=method))
    monkeypatch.setattr(job_module, "SAVE_EVERY", 0.0)
    read: list[int] = []

    def stop(done: int, total: int) -> None:
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(job(folder, tmp_path / "part", method=method), stop)
    part = run_job(job(folder, tmp_path / "part", method=method), lambda done, total: read.append(done))
    assert min(read) == 16
    assert [row.label for row in part.rows] == [row.label for row in whole.rows]
    assert np.allclose([r.confidence for r in part.rows], [r.confidence for r in whole.rows], atol=1e-5)


def test_a_damaged_resume_file_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    """It names the file and what to do."""
    (tmp_path / "resume.pt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="delete it"):
        run_job(job(folder, tmp_path))


def test_labels_come_from_a_table_or_from_folders(tmp_path: Path) -> None:
    """Named folders, numbered ones, as many as classes, or a CSV file; else there are none."""
    names = ("cat", "dog")
    assert true_classes(["cat/1.png", "dog/2.png"], names, None)[0] == {"cat/1.png": 0, "dog/2.png": 1}
    assert true_classes(["1/1.png"], names, None)[0] == {"1/1.png": 1}
    assert true_classes(["a/1.png", "b/1.png"], names, None)[0] == {"a/1.png": 0, "b/1.png": 1}
    assert true_classes(["a/1.png", "b/1.png", "c/1.png"], names, None) == ({}, "")
    table = tmp_path / "labels.csv"
    table.write_text("file,label\nx.png,dog\nother.png,0\n")
    assert true_classes(["x.png", "y.png"], names, table)[0] == {"x.png": 1}
    table.write_text("file,label\nx.png,dgo\n")
    with pytest.raises(DataError, match="dog"):
        true_classes(["x.png"], names, table)


def test_pictures_are_turned_as_their_camera_noted(tmp_path: Path) -> None:
    """An EXIF orientation of 6 makes a wide picture tall."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "turned.jpg", exif=exif)
    assert open_picture(tmp_path / "turned.jpg").size == (10, 20)


def test_the_models_own_preprocessing_is_used() -> None:
    """`model.preprocess` wins; a size of one's own replaces it; without either, a sentence."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(OptionError, match="`size`"):
        preprocess_of(model)
    assert preprocess_of(model, 16)(Image.new("RGB", (40, 20))).shape == (3, 16, 16)
    model.preprocess = lambda picture: torch.zeros(3, 5, 5)  # type: ignore[assignment]
    assert preprocess_of(model)(Image.new("RGB", (40, 20))).shape == (3, 5, 5)


def test_a_picture_of_the_models_size_is_taken_as_it_is() -> None:
    """It was cropped for such a model; enlarging it to crop again would lose its edge."""
    model, pixels = torch.nn.Identity(), np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    model.preprocess = Preprocess(size=8, resize=10)  # type: ignore[assignment]
    taken = preprocess_of(model)(Image.fromarray(pixels))
    assert torch.equal((255 * taken).round().byte(), torch.from_numpy(pixels).permute(2, 0, 1))


def test_an_alarm_accepts_nothing_and_is_said() -> None:
    """Pictures of an alarmed stretch are never accepted, however sure the model is."""
    rows = [Row(f"{i}.png", i % 2, "ab"[i % 2], 0.99, alarm="strange." if i > 4 else "") for i in range(10)]
    outcome = Outcome.of(rows, 0.05, delta=None)
    assert [row.accepted for row in outcome.rows] == [True] * 5 + [False] * 5
    assert outcome.estimate.low == 0.0
    assert any("strange." in note for note in warnings_of(outcome))


def test_delta_promises_the_risk_of_this_folder_and_not_of_the_mean_one() -> None:
    """Fewer are accepted, and the page says with which probability the promise holds."""
    rows = [Row(f"{i:04}.png", i % 2, "ab"[i % 2], 1 - i / 8000) for i in range(1000)]
    mean, sure = Outcome.of(rows, 0.05, delta=None), Outcome.of(rows, 0.05)
    assert 0 < len(sure.accepted) < len(mean.accepted)
    assert (mean.promise, sure.promise) == ("5 % risk, in the mean", "5 % risk, with probability 90 %")
    assert "with probability 90 %" in predict_page(sure, Path(), "x")
    assert any("sure enough" in note for note in warnings_of(Outcome.of(rows[:10], 0.05)))


def test_labels_of_some_pictures_bound_the_risk_of_all() -> None:
    """With `delta` they count, whatever the confidence is worth; labels of all pictures only check."""
    rows = [Row(f"{i:04}.png", 0, "a", 0.6 + i / 2500, truth="a" if i % 2 else "") for i in range(1000)]
    bounded = Outcome.of(rows, 0.05, delta=0.1)
    assert bounded.bounded_by_labels
    assert (
        len(bounded.accepted) == 999
    )  # all above the least labelled: every label is right, though the confidence doubts it
    assert not Outcome.of(rows, 0.05, delta=None).bounded_by_labels
    assert len(Outcome.of([row for row in rows if row.truth], 0.05, delta=0.1).accepted) < 300


def test_a_folder_of_nothing_readable_still_gets_its_page(tmp_path: Path) -> None:
    """The table lists the files, the page says so."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(b"")
    outcome = run_job(job(tmp_path / "in", tmp_path / "out"))
    assert "No picture could be read." in predict_page(outcome, tmp_path / "in", "Empty")


def test_source_pictures_tell_a_strange_folder(folder: Path, tmp_path: Path) -> None:
    """Noise, where the network knows photographs: an alarm, and nothing is accepted from then on."""
    known, strange = tmp_path / "known", tmp_path / "strange"
    known.mkdir()
    strange.mkdir()
    data = load_dataset("demo")
    for i, pixels in enumerate(data.images[np.arange(96)]):
        Image.fromarray(pixels).save(known / f"{i}.png")
        flat = np.full((32, 32, 3), 120 + (i % 3), np.uint8)
        Image.fromarray(flat).save(strange / f"{i}.png")
    outcome = run_job(job(strange, tmp_path / "out", source=known, batch=16))
    assert outcome.alarm
    assert not outcome.rows[-1].accepted or any(row.alarm for row in outcome.rows)


def test_classes_are_those_of_the_embedded_model() -> None:
    """The names the page shows for `demo` are the data set's own."""
    assert load_dataset("demo").classes == CIFAR10


def test_the_command_prints_where_things_are_and_says_mistakes_in_a_sentence(
    folder: Path, tmp_path: Path
) -> None:
    """The whole way through the command line, once right and then wrong."""
    base = ["predict", "--model", "demo", "--calibrator", "softmax", "--device", "cpu"]
    runner = CliRunner()
    good = runner.invoke(
        app,
        [*base, "--images", str(folder), "--out", str(tmp_path / "out"), "--risk", "0.2", "--delta", "0.3"],
    )
    assert good.exit_code == 0, good.output
    assert "Estimated accuracy" in good.output
    assert "20 % risk, with probability 70 %" in good.output
    assert (tmp_path / "out" / "predictions.csv").exists()
    bad = runner.invoke(app, [*base, "--images", str(tmp_path / "none"), "--out", str(tmp_path / "out2")])
    assert isinstance(bad.exception, DataError)
    wrong = runner.invoke(app, [*base, "--images", str(folder), "--risk", "5"])
    assert isinstance(wrong.exception, OptionError)
    unknown = [*base, "--model", "nosuch", "--images", str(folder), "--out", str(tmp_path / "out3")]
    assert isinstance(runner.invoke(app, unknown).exception, OptionError)
    assert not (tmp_path / "out3").exists()
    with pytest.raises(DataError, match="no pictures"):
        find_pictures(tmp_path / "out")


def test_a_picture_of_sixteen_bits_looks_as_one_of_eight(tmp_path: Path) -> None:
    """Pillow would cut its values off at 255, and leave a white picture."""
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(grey).save(tmp_path / "eight.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    eight, sixteen = (np.asarray(open_picture(tmp_path / f"{n}.png")) for n in ("eight", "sixteen"))
    assert np.array_equal(eight, sixteen)


def test_folders_may_be_numbered_with_leading_zeros(tmp_path: Path) -> None:
    """007 is class 7; a number beyond the classes is no class."""
    names = tuple(map(str, range(10)))
    assert true_classes(["007/a.png", "3/b.png"], names, None)[0] == {"007/a.png": 7, "3/b.png": 3}
    assert true_classes(["011/a.png"], names, None) == ({}, "")


def test_a_link_to_nothing_is_listed(tmp_path: Path) -> None:
    """What looks like a picture and is none gets its row."""
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    assert find_pictures(tmp_path) == ["gone.png"]
    with pytest.raises(DataError, match=r"gone\.png cannot be read"):
        open_picture(tmp_path / "gone.png")


def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may not grow beyond 20 kB: the table fits, the page does not; with room the page is made from the table."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.warns(UserWarning, match=r"resume.pt cannot be written .*; the run goes on unsaved"):
            outcome = run_job(job(folder, tmp_path))
        with pytest.raises(DataError, match=r"index.html cannot be written .*; make room"):
            write_outcome(outcome, job(folder, tmp_path), predict_page(outcome, folder, "A folder"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(job_module, "_Run", None)  # Nothing is predicted again.
    again = run_job(job(folder, tmp_path))
    assert [(row.file, row.label) for row in again.rows] == [(row.file, row.label) for row in outcome.rows]


def test_a_picture_that_changed_is_predicted_again(tmp_path: Path) -> None:
    """The folder's finished run is believed only while its pictures are the same."""
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    data = load_dataset("demo")
    for i in range(4):
        Image.fromarray(data.images[np.array([i])][0]).save(images / f"{i}.png")
    first = run_job(job(images, out))
    write_outcome(first, job(images, out), "")
    Image.new("RGB", (40, 40)).save(images / "2.png")
    second = run_job(job(images, out))
    assert [a == b for a, b in zip(first.rows, second.rows)] != [True] * 4


def test_a_model_file_is_called_by_its_name_and_numbered_classes_say_so(tmp_path: Path) -> None:
    """No folders in the title; where names are missing, the page says how to give them."""
    (tmp_path / "net.safetensors").write_bytes(b"")
    made = FolderJob(model=str(tmp_path / "net.safetensors"), images=tmp_path, out=tmp_path / "out")
    assert made.called == "net"
    assert FolderJob(model="timm:resnet50", images=tmp_path, out=tmp_path).called == "timm:resnet50"
    page = predict_page(Outcome.of([Row("a.png", 3, "3", 0.9)], 0.05), tmp_path, "net on x")
    assert "--classes FILE" in page
    assert "--classes FILE" not in predict_page(
        Outcome.of([Row("a.png", 3, "cat", 0.9)], 0.05), tmp_path, "x"
    )
