"""Every kind of source gives the same rows as choosing the tokens of its images one by one."""

import http.server
import json
import os
import threading
from functools import partial

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.corpus import BUDGET, PATCH, encoded, faults, fill, keys, made, picture, write_tar
from texturevlm import corpus

parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra corpus")


def check_row(row, source):
    """A row holds what `choose_tokens` and `sample` give for the image by itself."""
    texture = tv.Texture.open(source).mipmapped()
    allocation = tv.choose_tokens(texture, budget=BUDGET, patch=PATCH, relevance="none")
    used = allocation.valid[0]
    assert row.size == texture.size and len(row.footprints) == int(used.sum()) > 0
    wanted = torch.cat([allocation.centre[0], allocation.ddx[0], allocation.ddy[0], allocation.score[0, :, None]], 1)
    assert np.allclose(row.footprints, wanted[used].numpy(), rtol=1e-5, atol=1e-5)
    pixels = tv.sample(texture, allocation).pixels[0][used].mul(255).round().byte().numpy()
    assert np.abs(row.payload.astype(int) - pixels.astype(int)).max() <= 1  # sums of a batch may round otherwise


def rows(out):
    opened = corpus.open(out)
    return [opened.row(number) for number in range(len(opened))]


def test_a_folder(tmp_path):
    source = fill(tmp_path / "in")
    assert made(source, tmp_path / "out").rows == 10
    found = rows(tmp_path / "out")
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.*"))
    assert [row.key for row in found] == names
    for row in found:
        check_row(row, source / row.key)
    assert len({row.digest for row in found}) == 10


def test_links_and_other_things_in_a_folder(tmp_path):
    """A link to an image is an image, one to nothing an error; links to folders, which may lead back, are passed by."""
    source = tmp_path / "in"
    (source / "sub").mkdir(parents=True)
    picture(0).save(source / "sub" / "a.png")
    (source / "b.png").symlink_to(source / "sub" / "a.png")
    (source / "c.png").symlink_to(source / "gone.png")
    (source / "sub" / "loop").symlink_to(source)
    os.mkfifo(source / "d.png")
    assert made(source, tmp_path / "out").rows == 2
    assert keys(tmp_path / "out") == ["b.png", "sub/a.png"] and list(faults(tmp_path / "out")) == ["c.png"]


def test_a_list_of_paths_and_urls(tmp_path):
    fill(tmp_path / "in", 4)
    pytest.importorskip("aiohttp", reason="needs the extra corpus")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent.of(tmp_path / "in")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/part1/001.png"
        lines = ["in/part0/000.jpg", str(tmp_path / "in/part0/002.png"), url, "in/gone.png", f"{url}.gone"]
        lines.append(json.dumps({"image": "in/part1/003.jpg", "key": "third", "question": "what?", "answer": "blue"}))
        (tmp_path / "list.txt").write_text("\n".join(lines))
        assert made(tmp_path / "list.txt", tmp_path / "out").errors == 2
        server.shutdown()
    found = rows(tmp_path / "out")
    assert [row.key for row in found] == [*lines[:3], "third"]
    assert found[3].question == "what?" and found[3].more == {"answer": "blue"}
    check_row(found[2], tmp_path / "in/part1/001.png")
    assert set(faults(tmp_path / "out")) == {"in/gone.png", f"{url}.gone"}


class Silent(http.server.SimpleHTTPRequestHandler):
    @classmethod
    def of(cls, folder):
        return partial(cls, directory=folder)

    def log_message(self, *_):
        pass


def test_webdataset_tars(tmp_path):
    for shard in range(2):
        samples = [
            (
                f"a/{index}",
                {"png": encoded(picture(10 * shard + index)), "json": json.dumps({"question": f"q{index}"}).encode()},
            )
            for index in range(3)
        ]
        write_tar(tmp_path / f"s{shard}.tar", samples)
    assert made(f"{tmp_path}/s*.tar", tmp_path / "out").units == 2
    found = rows(tmp_path / "out")
    assert [row.key for row in found] == [f"s{shard}.tar/a/{index}" for shard in range(2) for index in range(3)]
    assert [row.question for row in found] == ["q0", "q1", "q2"] * 2


def test_parquet_as_hugging_face_writes_it(tmp_path):
    import pyarrow

    images = [{"bytes": encoded(picture(index)), "path": f"{index}.png"} for index in range(5)]
    table = pyarrow.table({"image": images, "answer": [str(index) for index in range(5)]})
    (tmp_path / "in").mkdir()
    parquet.write_table(table, tmp_path / "in" / "train-0.parquet", row_group_size=2)
    assert made(tmp_path / "in", tmp_path / "out").rows == 5
    found = rows(tmp_path / "out")
    assert [row.key for row in found] == [f"train-0.parquet/{index}" for index in range(5)]
    assert [row.more["answer"] for row in found] == list("01234")
    check_row(found[4], images[4]["bytes"])


def test_large_parquet_files_are_cut_into_units_of_whole_row_groups(tmp_path, monkeypatch):
    import pyarrow

    monkeypatch.setattr("texturevlm.corpus.sources.UNIT", 3)
    images = [{"bytes": encoded(picture(index)), "path": ""} for index in range(7)]
    parquet.write_table(pyarrow.table({"image": images}), tmp_path / "a.parquet", row_group_size=2)
    assert made(tmp_path / "a.parquet", tmp_path / "out").units == 2
    assert keys(tmp_path / "out") == [f"a.parquet/{index}" for index in range(7)]


def test_a_folder_of_pdfs(tmp_path):
    pytest.importorskip("pypdfium2", reason="needs the extra pdf")
    (tmp_path / "in").mkdir()
    pages = [picture(index, 80, 64) for index in range(3)]
    pages[0].save(tmp_path / "in" / "a.pdf", save_all=True, append_images=pages[1:])
    (tmp_path / "in" / "b.pdf").write_bytes(b"%PDF-1.4 nothing")
    assert made(tmp_path / "in", tmp_path / "out").rows == 3
    found = rows(tmp_path / "out")
    assert [row.key for row in found] == ["a.pdf#1", "a.pdf#2", "a.pdf#3"]
    assert [row.more["page"] for row in found] == [1, 2, 3]
    assert list(faults(tmp_path / "out")) == ["b.pdf"]


def test_an_object_store(tmp_path):
    """Source and corpus in fsspec's memory, which only this process has."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for index in range(3):
        memory.pipe(f"/in/{index}.png", encoded(picture(index)))
    found = corpus.build("memory://in", "memory://out", workers=0, budget=4, patch=8, relevance="none", device="cpu")
    assert found.rows == 3 and found.errors == 0
    opened = corpus.open("memory://out")
    assert [opened[index]["key"] for index in range(3)] == ["0.png", "1.png", "2.png"]
    again = corpus.build("memory://in", "memory://out", workers=0, budget=4, patch=8, relevance="none", device="cpu")
    assert again.made == 0 and again.rows == 3
    memory.rm("/in", recursive=True)
    memory.rm("/out", recursive=True)


def test_questions_give_a_row_each(tmp_path):
    fill(tmp_path / "in", 2)
    lines = [("part0/000.jpg", "red?", "yes"), ("part0/000.jpg", "blue?", "no"), ("part1/001.png", "where?", "left")]
    text = "\n".join(json.dumps({"key": key, "question": asked, "answer": answer}) for key, asked, answer in lines)
    (tmp_path / "q.jsonl").write_text(text)
    made(tmp_path / "in", tmp_path / "out", questions=tmp_path / "q.jsonl")
    found = rows(tmp_path / "out")
    assert [row.key for row in found] == ["part0/000.jpg?0", "part0/000.jpg?1", "part1/001.png"]
    assert [(row.question, row.more["answer"]) for row in found] == [line[1:] for line in lines]


def test_names_that_are_patterns_or_no_text(tmp_path):
    source = tmp_path / "a[1]*"
    source.mkdir()
    picture(0).save(source / "b?.png")
    (source / os.fsdecode(b"\xff.png")).write_bytes(encoded(picture(1)))
    assert made(source, tmp_path / "out").errors == 0
    assert keys(tmp_path / "out") == ["b?.png", "?.png"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("gone", "no such file"), ("empty", "must hold images"), ("mixed", "kind must be one of images, pdf")],
)
def test_what_is_no_source_is_refused_before_anything_is_written(tmp_path, name, wanted):
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "mixed", 1)
    (tmp_path / "mixed" / "a.pdf").write_bytes(b"%PDF-1.4")
    with pytest.raises((ValueError, FileNotFoundError), match=wanted):
        made(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if name == "mixed":
        with pytest.raises(ValueError, match="at least one entry of kind parquet, got none"):
            made(tmp_path / name, tmp_path / "out", kind="parquet")
        assert made(tmp_path / name, tmp_path / "out", kind="images").rows == 1
