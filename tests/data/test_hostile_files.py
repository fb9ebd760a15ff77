"""Files of strangers: bombs are refused before they unpack, damage is a sentence, nothing leaves its folder."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.data.corrupted import ArrayFolder
from sicl.data.digits import read_mat
from sicl.data.download import unpack
from sicl.data.files import MOST_BYTES
from sicl.errors import DataError, OptionError
from sicl.pictures import MOST_PIXELS, read_rgb

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float64])
def test_our_reader_agrees_with_scipy(tmp_path: Path, compressed: bool, kind: type) -> None:
    """Arrays of several types, packed or not, beside things that are no arrays."""
    arrays = {"X": IMAGES.astype(kind), "y": np.arange(4, dtype=kind)[:, None], "name": "text", "s": {"a": 1}}
    savemat(tmp_path / "a.mat", arrays, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")
    np.testing.assert_array_equal(found["X"], arrays["X"])
    np.testing.assert_array_equal(found["y"], arrays["y"])
    assert "name" not in found


def test_a_damaged_mat_file_never_ends_the_interpreter(tmp_path: Path) -> None:
    """Every byte of the header and tags, set to 255 and to 0, in a process of its own."""
    savemat(tmp_path / "test_32x32.mat", {"X": IMAGES, "y": np.ones((4, 1))})
    code = """
import sys, pathlib
from sicl.data import load_dataset
from sicl.errors import SiclError
path = pathlib.Path(sys.argv[1]); whole = path.read_bytes()
for place in [*range(124, 300), *range(len(whole) - 40, len(whole))]:
    for byte in (0, 1, 255):
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1:])
        try:
            load_dataset("svhn", path.parent)
        except SiclError:
            pass
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "test_32x32.mat")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_gzip_that_unpacks_to_gigabytes_is_refused_by_its_promise(tmp_path: Path) -> None:
    """Three gigabytes are promised in a few bytes; none of them is unpacked."""
    header = struct.pack(">4I", 2051, 3 * 2**20, 32, 32)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(1000)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 0))
    with pytest.raises(DataError, match="unpacks to more than 1,073,741,824 bytes"):
        load_dataset("mnist", tmp_path)


def test_a_mat_file_that_unpacks_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packed array is longer than the limit (lowered here); it is not unpacked further."""
    packed = zlib.compress(bytes(10**7), 9)
    (tmp_path / "a.mat").write_bytes(bytes(126) + b"IM" + struct.pack("<II", 15, len(packed)) + packed)
    for module in ("digits", "files"):
        monkeypatch.setattr(f"sicl.data.{module}.MOST_BYTES", 10**6)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_mat(tmp_path / "a.mat")


def test_an_npz_member_of_gigabytes_is_refused(tmp_path: Path) -> None:
    """The directory of the archive tells the size."""
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar10.npz"
    np.savez_compressed(path, x_test=np.zeros((1, 32, 32, 3), np.uint8), y_test=np.zeros(1, np.int64))
    raw = bytearray(path.read_bytes())
    entry = raw.index(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = struct.pack("<I", MOST_BYTES + 1)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"cifar10.npz` unpacks to more than"):
        load_dataset("cifar10", tmp_path)


def test_a_tar_that_unpacks_to_a_hundred_times_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 MB of gzip would become three gigabytes (here: 20 MB, with a lowered limit)."""
    monkeypatch.setattr("sicl.data.download.MOST_BYTES", 10**7)

    class Zeros(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            return bytes(max(size, 0))

    member = tarfile.TarInfo("zeros")
    member.size = 20 * 2**20
    with tarfile.open(tmp_path / "bomb.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.addfile(tarfile.TarInfo("small"))
        tar.addfile(member, Zeros())
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        unpack(tmp_path / "bomb.tar.gz", tmp_path / "out")


def test_a_picture_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """A header of 60,000 x 60,000 pixels is enough to say no; so is one just above the limit."""
    for name, side in (("bomb", 60_000), ("large", int(MOST_PIXELS**0.5) + 10)):
        chunk = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        (tmp_path / f"{name}.png").write_bytes(png + struct.pack(">I", 0) + b"IDAT" + bytes(4))
        with pytest.raises(DataError, match=rf"{name}.png` is damaged"):
            read_rgb(tmp_path / f"{name}.png")
        with pytest.raises(DataError, match=rf"{name}.png` is damaged"):
            load_dataset(f"folder:{tmp_path}").read(np.array([0]))
        (tmp_path / f"{name}.png").unlink()


def test_a_picture_of_another_format_is_not_opened(tmp_path: Path) -> None:
    """Pillow has readers that start programs (PostScript); a suffix does not let them in."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.tiff")
    (tmp_path / "a.tiff").rename(tmp_path / "a.png")
    with pytest.raises(DataError, match="is damaged, truncated or no picture"):
        read_rgb(tmp_path / "a.png")


def test_a_long_thin_picture_is_not_blown_up(tmp_path: Path) -> None:
    """One row of 200,000 pixels would become gigabytes when its short side is scaled to 256."""
    for part in ("val/a", "val/b"):
        (tmp_path / "imagenet" / part).mkdir(parents=True)
        Image.new("RGB", (60_000, 1)).save(tmp_path / "imagenet" / part / "thin.png")
    with pytest.raises(DataError, match="too long to be resized"):
        load_dataset("imagenet", tmp_path).read(np.array([0]))


def test_a_corruption_cannot_leave_its_folder(tmp_path: Path) -> None:
    """A name with `../` names no corruption, even where such a file exists."""
    (tmp_path / "c").mkdir()
    np.save(tmp_path / "secret.npy", np.zeros((5, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="is missing"):
        ArrayFolder(tmp_path / "c", 1).read("../secret", 1, np.array([0]))


@pytest.mark.parametrize(
    "content", [b'{"severities": "x"}', b"[1]", b"[" * 100_000, b"\xff", b'{"severities": [9]}']
)
def test_a_damaged_manifest_is_named(tmp_path: Path, content: bytes) -> None:
    """Wrong types, wrong numbers, endless nesting and bytes that are no text."""
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.zeros(5, np.uint8))
    (tmp_path / "CIFAR-10-C" / "made.json").write_bytes(content)
    with pytest.raises(DataError, match=r"made\.json"):
        load_dataset("cifar10-c", tmp_path)


@pytest.mark.parametrize("label", [2**70, True, 1.5, None])
def test_labels_that_are_no_integers_are_named(tmp_path: Path, label: object) -> None:
    """A label of seventy bits is damage, not an overflow."""
    (tmp_path / "cifar10").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / "test.png")
    (tmp_path / "cifar10" / "labels.json").write_text(json.dumps({"test_labels": [label]}))
    with pytest.raises(DataError, match="no list of integer labels"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("root", ["", "a\0b", "x" * 300, 3])
def test_a_root_that_is_no_path_is_refused(root: object) -> None:
    """NUL and endless names never reach the file system."""
    with pytest.raises(OptionError, match="`root` must be a path"):
        load_dataset("cifar10", root)  # type: ignore[arg-type]


def test_a_damaged_frost_picture_is_named(tmp_path: Path) -> None:
    """A frost folder is data as well."""
    (tmp_path / "frost.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    with pytest.raises(DataError, match=r"frost.png` is damaged"):
        corrupt(np.zeros((1, 32, 32, 3), np.uint8), "frost", frost_folder=tmp_path)
