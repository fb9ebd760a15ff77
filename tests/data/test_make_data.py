"""Making a -C data set: the official layout, restartable, the same in any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.data.make import BlockTask, Recipe, make_corrupted
from sicl.errors import DataError, OptionError

Write = Callable[..., Path]
Arrays = dict[str, np.ndarray]
TWO = ("gaussian_noise", "contrast")


def test_the_layout_is_the_published_one(write_cifar: Write, cifar_arrays: Arrays) -> None:
    """Five severities in order, labels repeated five times, nothing else left in the folder."""
    root = write_cifar("npz")
    folder = make_corrupted("cifar10", root, root=root, recipe=Recipe(corruptions=TWO))
    assert sorted(path.name for path in folder.iterdir()) == [
        "contrast.npy",
        "gaussian_noise.npy",
        "labels.npy",
        "made.json",
    ]
    array = np.load(folder / "gaussian_noise.npy")
    assert array.shape == (200, 32, 32, 3)
    third = corrupt(cifar_arrays["x_test"], "gaussian_noise", severity=3, seed=0)
    np.testing.assert_array_equal(array[80:120], third)
    np.testing.assert_array_equal(np.load(folder / "labels.npy"), np.tile(cifar_arrays["y_test"], 5))


def test_what_was_made_is_what_would_be_streamed(write_cifar: Write) -> None:
    """Made files and corruptions made on the fly are the same images."""
    root = write_cifar("npz")
    positions = np.array([5, 39])
    streamed = load_dataset("cifar10-c", root).read(positions, "contrast", severity=2)
    make_corrupted("cifar10", root, root=root, recipe=Recipe(corruptions=TWO))
    made = load_dataset("cifar10-c", root)
    assert made.corrupted is not None
    np.testing.assert_array_equal(made.read(positions, "contrast", severity=2), streamed)


def test_two_processes_make_the_same_as_one(write_cifar: Write, tmp_path: Path) -> None:
    """Pieces are independent of who makes them."""
    root = write_cifar("npz")
    recipe = Recipe(corruptions=TWO[:1], severities=(1, 5))
    one = make_corrupted("cifar10", tmp_path / "one", root=root, recipe=recipe)
    two = make_corrupted("cifar10", tmp_path / "two", root=root, recipe=recipe, workers=2)
    assert (one / "gaussian_noise.npy").read_bytes() == (two / "gaussian_noise.npy").read_bytes()


def test_a_stopped_run_goes_on_where_it_was(
    write_cifar: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that are complete are not made again, and the result is that of an undisturbed run."""
    root = write_cifar("npz")
    recipe = Recipe(corruptions=TWO)
    whole = make_corrupted("cifar10", tmp_path / "whole", root=root, recipe=recipe)
    made: list[str] = []
    original = BlockTask.run

    def stop_at_the_fourth(task: BlockTask) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        original(task)
        made.append(task.target.name)

    monkeypatch.setattr(BlockTask, "run", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        make_corrupted("cifar10", tmp_path / "again", root=root, recipe=recipe)
    first = list(made)
    made.clear()
    made_later: list[str] = []
    monkeypatch.setattr(BlockTask, "run", lambda task: (original(task), made_later.append(task.target.name)))
    again = make_corrupted("cifar10", tmp_path / "again", root=root, recipe=recipe)
    assert len(first) == 3
    assert len(made_later) == 7
    assert set(first).isdisjoint(made_later)
    for name in TWO:
        assert (again / f"{name}.npy").read_bytes() == (whole / f"{name}.npy").read_bytes()


def test_a_complete_folder_is_not_made_again(
    write_cifar: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run makes no piece."""
    root = write_cifar("npz")
    recipe = Recipe(corruptions=TWO, severities=(5,))
    make_corrupted("cifar10", tmp_path, root=root, recipe=recipe)
    monkeypatch.setattr(BlockTask, "run", lambda task: pytest.fail("made again"))
    make_corrupted("cifar10", tmp_path, root=root, recipe=recipe)


def test_severities_that_were_not_made_are_not_read(write_cifar: Write) -> None:
    """An empty block is refused instead of streamed as black images."""
    root = write_cifar("npz")
    make_corrupted("cifar10", root, root=root, recipe=Recipe(corruptions=TWO, severities=(5,)))
    dataset = load_dataset("cifar10-c", root)
    assert dataset.read(np.array([0]), "contrast", severity=5).any()
    with pytest.raises(DataError, match="was made with severities 5 only, not 3"):
        dataset.read(np.array([0]), "contrast", severity=3)


def test_another_seed_does_not_mix_with_the_first(write_cifar: Write, tmp_path: Path) -> None:
    """A folder is made in one way; another way is refused."""
    root = write_cifar("npz")
    make_corrupted("cifar10", tmp_path, root=root, recipe=Recipe(corruptions=TWO, severities=(5,)))
    with pytest.raises(DataError, match=r"made from other data or options .*choose another `--out`"):
        make_corrupted(
            "cifar10", tmp_path, root=root, recipe=Recipe(corruptions=TWO, severities=(5,), seed=1)
        )


def test_the_published_data_set_is_never_written_into(write_cifar: Write, write_cifar_c: Write) -> None:
    """A folder with foreign files stays as it is."""
    write_cifar("npz")
    root = write_cifar_c("fog")
    with pytest.raises(DataError, match="holds files that `sicl data make` did not write"):
        make_corrupted("cifar10", root, root=root, recipe=Recipe(corruptions=TWO))


def test_folders_become_jpegs_in_the_imagenet_c_layout(write_imagenet: Write, tmp_path: Path) -> None:
    """`<corruption>/<severity>/<class>/<file>.JPEG`, readable as ImageNet-C; lost files are made again."""
    root = write_imagenet(2)
    recipe = Recipe(corruptions=("contrast",), severities=(5,))
    folder = make_corrupted("imagenet", tmp_path / "out", root=root, recipe=recipe)
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.JPEG"))
    assert len(written) == 6
    assert written[0] == "contrast/5/n01/val_n01_000.JPEG"
    dataset = load_dataset("imagenet-c", tmp_path / "out")
    assert dataset.read(np.arange(6), "contrast").shape == (6, 224, 224, 3)
    lost = folder / written[3]
    before = lost.read_bytes()
    lost.unlink()
    make_corrupted("imagenet", tmp_path / "out", root=root, recipe=recipe)
    assert lost.read_bytes() == before


def test_progress_counts_the_pieces(write_cifar: Write, tmp_path: Path) -> None:
    """One report a piece, the last says all."""
    reports: list[tuple[int, int]] = []
    recipe = Recipe(corruptions=TWO, severities=(1, 2))
    make_corrupted(
        "cifar10", tmp_path, root=write_cifar("npz"), recipe=recipe, progress=lambda *r: reports.append(r)
    )
    assert reports == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severities": (0, 5)}, "`severities` must be some of 1 to 5"),
        ({"corruptions": ("fogg",)}, r"`corruption` must be one of .*Did you mean 'fog'"),
    ],
)
def test_a_wrong_recipe_is_refused(options: dict[str, tuple[object, ...]], message: str) -> None:
    """Before anything is written."""
    with pytest.raises(OptionError, match=message):
        Recipe(**options)  # type: ignore[arg-type]
