"""Bad input is named in the errors, and everything else goes on."""

import errno
import json
import os
import resource
import tarfile

import pytest

from tests.corpus import content, encoded, faults, fill, keys, made, picture, write_tar
from texturevlm.corpus import pools
from texturevlm.corpus.build import build
from texturevlm.corpus.choose import Chooser
from texturevlm.corpus.store import Store

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra corpus")


@pytest.mark.parametrize("where", ["inside a member", "between members"])
def test_a_tar_cut_in_half_keeps_what_is_whole(tmp_path, where):
    (tmp_path / "in").mkdir()
    shard = write_tar(tmp_path / "in" / "a.tar", [(str(index), {"png": encoded(picture(index))}) for index in range(6)])
    write_tar(tmp_path / "in" / "b.tar", [("0", {"png": encoded(picture(9))})])
    with tarfile.open(shard) as tar:
        third = tar.getmembers()[3]
    os.truncate(shard, third.offset if where == "between members" else third.offset_data + 20)
    found = made(tmp_path / "in", tmp_path / "out")
    assert keys(tmp_path / "out") == ["a.tar/0", "a.tar/1", "a.tar/2", "b.tar/0"]
    assert found.errors == 1 and "the shard breaks off" in faults(tmp_path / "out")["a.tar"]


def test_what_is_no_tar_at_all(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar").write_bytes(b"not a tar, but long enough to be taken for one" * 30)
    assert made(tmp_path / "in", tmp_path / "out").rows == 0
    assert "a.tar" in faults(tmp_path / "out")


def test_parquet_with_nulls_and_without_images(tmp_path):
    from pyarrow import parquet

    (tmp_path / "in").mkdir()
    images = [{"bytes": encoded(picture(0))}, None, {"bytes": None}, {"bytes": b"junk"}, {"bytes": encoded(picture(1))}]
    parquet.write_table(pyarrow.table({"image": images}), tmp_path / "in" / "a.parquet")
    parquet.write_table(pyarrow.table({"text": ["no image"]}), tmp_path / "in" / "b.parquet")
    parquet.write_table(pyarrow.table({"images": [[images[0]], [images[0], images[4]]]}), tmp_path / "in" / "d.parquet")
    (tmp_path / "in" / "c.parquet").write_bytes(b"PAR1 cut")
    made(tmp_path / "in", tmp_path / "out")
    assert keys(tmp_path / "out") == ["a.parquet/0", "a.parquet/4", "d.parquet/0"]
    said = faults(tmp_path / "out")
    assert list(said) == ["a.parquet/1", "a.parquet/2", "a.parquet/3", "b.parquet", "c.parquet", "d.parquet/1"]
    assert said["d.parquet/1"] == "images must hold one image, got 2"
    assert "got null" in said["a.parquet/1"] and "a column must be one of image" in said["b.parquet"]


@pytest.mark.parametrize("unit", [2, 8])
def test_two_images_with_one_key(tmp_path, unit):
    """In one unit or in two: the first has a row, the other an error."""
    fill(tmp_path / "in", 4)
    names = ["in/part0/000.jpg", "in/part1/001.png", "in/part0/002.png", "in/part0/000.jpg"]
    (tmp_path / "a.txt").write_text("\n".join(names))
    assert made(tmp_path / "a.txt", tmp_path / "out", unit=unit).rows == 3
    assert keys(tmp_path / "out") == names[:3]
    assert "another image of the list has the same key" in faults(tmp_path / "out")[names[0]]


def test_two_samples_of_a_shard_with_one_key(tmp_path):
    samples = [
        ("a", {"png": encoded(picture(0))}),
        ("b", {"png": encoded(picture(1))}),
        ("a", {"png": encoded(picture(2))}),
    ]
    write_tar(tmp_path / "a.tar", samples)
    assert made(tmp_path / "a.tar", tmp_path / "out").rows == 2
    assert "has the same key" in faults(tmp_path / "out")["a.tar/a"]


def test_images_that_cannot_be_decoded(tmp_path):
    source = fill(tmp_path / "in", 3)
    whole = encoded(picture(5), "JPEG")
    (source / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (source / "empty.png").write_bytes(b"")
    (source / "text.png").write_text("no image")
    made(source, tmp_path / "out")
    assert len(keys(tmp_path / "out")) == 3
    assert set(faults(tmp_path / "out")) == {"cut.jpg", "empty.png", "text.png"}


def test_an_image_that_changed_since_it_was_planned(tmp_path, monkeypatch):
    source = fill(tmp_path / "in", 3)
    monkeypatch.setattr(pools.InProcessPool, "submit", stop)
    with pytest.raises(KeyboardInterrupt):
        made(source, tmp_path / "out")
    monkeypatch.undo()
    with (source / "part0" / "000.jpg").open("ab") as file:
        file.write(b"more")
    assert made(source, tmp_path / "out").rows == 2
    assert "when the corpus was planned" in faults(tmp_path / "out")["part0/000.jpg"]


def stop(*_):
    raise KeyboardInterrupt


def test_a_permission_that_vanishes(tmp_path, monkeypatch):
    """Root may read anything, so the file system is made to refuse."""
    source, read = fill(tmp_path / "in", 4), Store.read

    def refuse(store, name, *given):
        if store.url.endswith("002.png"):
            raise PermissionError(errno.EACCES, "Permission denied", store.url)
        return read(store, name, *given)

    monkeypatch.setattr(Store, "read", refuse)
    assert made(source, tmp_path / "out").rows == 3
    assert "Permission denied" in faults(tmp_path / "out")["part0/002.png"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_fills_up_stops_the_run_and_loses_nothing(tmp_path, monkeypatch, code):
    source = fill(tmp_path / "in")
    made(source, tmp_path / "whole")
    write, wanted = Store.write, os.strerror(code)

    def full(store, name, data):
        if name.startswith("done/") and name.endswith("1.json"):
            raise OSError(code, wanted)
        return write(store, name, data)

    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match=rf"stopped at unit 1: .*{wanted}; 1 of 3 units are done"):
        made(source, tmp_path / "out")
    monkeypatch.undo()
    assert not list((tmp_path / "out").rglob("*.part"))
    assert made(source, tmp_path / "out").rows == 10
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_real_disk_that_is_full(tmp_path):
    """A limit on the size of files stands for a full disk: what the operating system refuses is not half-written."""
    source = fill(tmp_path / "in", 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))  # Python ignores the signal that comes with the refusal
    try:
        with pytest.raises(OSError) as failed:
            made(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(failed.value) and "0 of 1 units are done" in str(failed.value)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "data" in str(path)]
    assert made(source, tmp_path / "out").rows == 4


def test_an_image_on_which_choosing_fails_costs_one_row(tmp_path, monkeypatch):
    source, call = fill(tmp_path / "in"), Chooser.__call__

    def fail(chooser, bucket, images):
        if any(image.key.endswith("005.png") for image in images):
            raise ValueError("cannot be chosen")
        return call(chooser, bucket, images)

    monkeypatch.setattr(Chooser, "__call__", fail)
    assert made(source, tmp_path / "out").rows == 9
    assert faults(tmp_path / "out") == {"part1/005.png": "ValueError: cannot be chosen"}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ('{"key": "a"}', "must be JSON with key and question"),
        ("nonsense", "q.jsonl:1 must be JSON"),
        ("", "at least one"),
    ],
)
def test_bad_questions_are_refused_first(tmp_path, line, wanted):
    fill(tmp_path / "in", 1)
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(ValueError, match=wanted):
        made(tmp_path / "in", tmp_path / "out", questions=tmp_path / "q.jsonl")
    assert not (tmp_path / "out").exists()


def test_bad_lines_of_a_list_are_refused_with_their_number(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a.png"}) + "\n" + json.dumps({"picture": "b.png"}) + "\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:2 must have image"):
        build(tmp_path / "a.jsonl", tmp_path / "out", workers=0)
