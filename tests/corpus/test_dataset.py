"""Reading back: all rows, each once, whatever the format, the ranks and the workers."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import texturevlm as tv
from tests.corpus import content, fill, made
from texturevlm import corpus
from texturevlm.corpus import formats
from texturevlm.corpus.formats import Row

pytest.importorskip("pyarrow", reason="needs the extra corpus")
FORMATS = ("parquet", "webdataset", "safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("source") / "in", 11)


@pytest.fixture(scope="module")
def opened(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "out"
    made(source, out, unit=3)
    return corpus.open(out)


def first_of(batch):
    return batch[0]


@pytest.mark.parametrize("format", FORMATS[1:])
def test_formats_hold_the_same_rows_and_the_same_bytes_every_time(source, opened, tmp_path, format):
    for name in "ab":
        made(source, tmp_path / name, unit=3, format=format)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    other = corpus.open(tmp_path / "a")
    assert len(other) == len(opened) == 11
    for number in (0, 10, 4, 3):
        mine, theirs = opened.row(number), other.row(number)
        assert (mine.key, mine.digest, mine.size, mine.more) == (theirs.key, theirs.digest, theirs.size, theirs.more)
        assert (mine.footprints == theirs.footprints).all() and (mine.payload == theirs.payload).all()


def test_a_sample_has_patches_and_their_allocation(opened, source):
    sample = opened[4]
    assert sample["size"] == tv.Texture.open(source / sample["key"]).size
    assert isinstance(sample["patches"], tv.Patches) and sample["patches"].allocation.size == sample["size"]
    assert sample["patches"].pixels.shape[2:] == (3, 8, 8) and float(sample["patches"].pixels.max()) <= 1
    assert opened[-1]["key"] == opened[10]["key"]
    with pytest.raises(IndexError, match="below 11, got 11"):
        _ = opened[11]


def test_a_loader_with_workers_reads_every_row_once(opened):
    loader = DataLoader(opened, batch_size=1, shuffle=True, num_workers=2, collate_fn=first_of)
    wanted = sorted(opened.row(number).key for number in range(11))
    opened[0]  # an open file, whose place forked workers must not share
    assert sorted(sample["key"] for sample in loader) == wanted
    streamed = DataLoader(opened.stream(seed=3), batch_size=1, num_workers=2, collate_fn=first_of)
    assert sorted(sample["key"] for sample in streamed) == wanted
    assert len(pickle.loads(pickle.dumps(opened))) == 11


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_all_rows_evenly(opened, world):
    found = [[sample["key"] for sample in opened.stream(rank=rank, world=world)] for rank in range(world)]
    assert {len(one) for one in found} == {11 // world} == {len(opened.stream(rank=0, world=world))}
    together = [key for one in found for key in one]
    assert len(set(together)) == len(together)


def test_a_stream_is_shuffled_by_shard_and_every_epoch_anew(opened):
    stream = opened.stream(seed=1)
    first, second = ([sample["key"] for sample in stream] for _ in range(2))
    assert sorted(first) == sorted(second) and first != second
    assert [sample["key"] for sample in opened.stream(seed=1)] == first != [s["key"] for s in opened.stream(seed=2)]
    shards = [{opened.row(number).key for number in range(start, min(11, start + 3))} for start in (0, 3, 6, 9)]
    at, seen = 0, []
    while at < 11:  # each shard stands together
        (own,) = [shard for shard in shards if first[at] in shard]
        assert set(first[at : at + len(own)]) == own
        at += len(own)
        seen.append(sorted(own))
    assert len(seen) == 4
    plain = [sample["key"] for sample in opened.stream(seed=None)]
    assert plain == [opened.row(number).key for number in range(11)]


def test_a_stream_goes_on_where_it_was(opened):
    whole = [sample["key"] for sample in opened.stream(seed=5)]
    for place in (0, 4, 10):
        stream = opened.stream(seed=5)
        running = iter(stream)
        before = [next(running)["key"] for _ in range(place)]
        state = pickle.loads(pickle.dumps(stream.state_dict()))
        other = opened.stream(seed=5)
        other.load_state_dict(state)
        assert before + [sample["key"] for sample in other] == whole
    stream.set_epoch(1)
    assert [sample["key"] for sample in stream] != whole


def test_mistakes(opened, tmp_path):
    with pytest.raises(FileNotFoundError, match="without a plan"):
        corpus.open(tmp_path)
    with pytest.raises(ValueError, match="rank and world must be given together"):
        opened.stream(rank=1)
    with pytest.raises(ValueError, match="rank must be between 0 and 1, got 2"):
        opened.stream(rank=2, world=2)


def test_lance(opened, tmp_path):
    lance = pytest.importorskip("lance", reason="needs the extra lance")
    from texturevlm.corpus.dataset import export_lance

    assert export_lance(opened, tmp_path / "a.lance") == 11
    found = lance.dataset(str(tmp_path / "a.lance"))
    assert found.count_rows() == 11
    (row,) = found.take([7]).to_pylist()
    assert row["key"] == opened.row(7).key and row["payload"] == opened.row(7).payload.tobytes()
    with pytest.raises(FileExistsError, match="must be a new folder"):
        export_lance(opened, tmp_path / "a.lance")


def test_chosen_patches_take_the_place_of_an_image_in_a_processor(source, tmp_path):
    """The inputs of the model are those of the image, but for what 8 bits per sample cost."""
    from tests.ask import models

    network, processor = models.built("qwen3_vl")
    chosen = tv.attach(network, processor, budget=6, relevance="none")
    side = chosen.adapter.side
    made(source, tmp_path / "out", patch=side, budget=6)
    sample = corpus.open(tmp_path / "out")[3]
    text = f"{chosen.image_token} what"
    own, image = (
        chosen(images=[[one]], text=[text], question=[""], return_tensors="pt")
        for one in (sample["patches"], str(source / sample["key"]))
    )
    assert torch.equal(own["input_ids"], image["input_ids"])
    assert own["pixel_values"].shape == image["pixel_values"].shape
    assert float((own["pixel_values"] - image["pixel_values"]).abs().max()) < 0.05
    with pytest.raises(TypeError, match="must all be Patches if one is, got str"):
        chosen(images=[[sample["patches"], "a.png"]], text=[f"{text} {chosen.image_token}"], return_tensors="pt")
    chosen.detach()


def test_patches_of_another_side_are_refused(opened):
    from tests.ask import models

    network, processor = models.built("qwen3_vl")
    chosen = tv.attach(network, processor, budget=6, relevance="none")
    with pytest.raises(ValueError, match=r"processor: allocation must have patches of 32 for this model, got 8"):
        chosen(images=[[opened[0]["patches"]]], text=[f"{chosen.image_token} what"], return_tensors="pt")
    chosen.detach()


def test_a_row_of_parquet_is_read_without_many_others(tmp_path, monkeypatch):
    """A group holds 16 rows, or fewer if they are large; rows are the same whatever they were added with."""
    monkeypatch.setattr(formats, "GROUP_BYTES", 1000)
    sizes = [400, 400, 400, *[10] * 20, 2000, 5]
    rows = [
        Row(str(at), "", (8, 8), "", np.zeros((1, 7), np.float32), np.full(size, at, np.uint8), {})
        for at, size in enumerate(sizes)
    ]
    for name, step in (("one.parquet", 1), ("many.parquet", 7)):
        writer = formats.ParquetWriter(tmp_path / name, {}, "uint8")
        for first in range(0, len(rows), step):
            writer.add(rows[first : first + step])
        writer.close()
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "many.parquet").read_bytes()
    with (tmp_path / "one.parquet").open("rb") as file:
        reader = formats.ParquetReader(file)
        groups = [reader.file.metadata.row_group(group).num_rows for group in range(reader.file.num_row_groups)]
        assert groups == [3, 16, 5, 1]
        for number in reversed(range(len(rows))):
            assert reader[number].key == str(number) and (reader[number].payload == rows[number].payload).all()
