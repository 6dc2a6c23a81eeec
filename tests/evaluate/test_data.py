"""Loaders: the project's own format, each public release in miniature, and what is wrong with a folder."""

import json
import shutil

import pytest
from PIL import Image

from tests.evaluate.folders import write_folder, write_image, write_rows
from texturevlm_lab.evaluate.data import load_data


def row(**changes):
    return {"id": 1, "image": "a.png", "question": "q?", "answers": ["x"], "boxes": [[1, 2, 5, 6]]} | changes


def dump(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_own_format(tmp_path):
    data = load_data(write_folder(tmp_path))
    assert data.format == "own" and data.skipped == ()
    first = data.samples[0]
    assert (first.id, first.question, first.answers) == ("0-alpha0", "Where is alpha0?", ("alpha0", "ALPHA0"))
    assert first.size == (160, 240) and first.image.is_file() and len(first.boxes) == 1 and first.split == "eval"


def test_boxes_are_scaled_to_the_image_that_is_there(tmp_path):
    write_image(tmp_path / "a.png", (20, 30))
    write_rows(tmp_path, [row(size=[40, 60], boxes=[[10, 4, 20, 8]])])
    (sample,) = load_data(tmp_path).samples
    assert sample.size == (20, 30) and sample.boxes == ((5, 2, 10, 4),) and sample.reduced == 2


def test_a_photograph_turned_by_its_camera_is_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif)
    write_rows(tmp_path, [row(image="a.jpg", size=[30, 20])])
    (sample,) = load_data(tmp_path).samples
    assert sample.size == (30, 20) and sample.boxes == ((1, 2, 5, 6),)


def test_split_limit_and_places(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [row(id=n, split="train" if n % 2 else "eval", boxes=[] if n % 4 else [[0, 0, 3, 3]]) for n in range(40)]
    write_rows(tmp_path, rows)
    assert [len(load_data(tmp_path, split=split).samples) for split in ("eval", "train", None)] == [20, 20, 40]
    assert [sample.id for sample in load_data(tmp_path, limit=4).samples] == ["0", "10", "20", "30"]
    assert len(load_data(tmp_path, located=True).samples) == len(load_data(tmp_path, located=None).samples) == 10
    with pytest.raises(ValueError, match="must hold train samples with boxes, got none"):
        load_data(tmp_path, split="train", located=True)
    assert len(load_data(tmp_path, split="train", located=None).samples) == 20
    some = load_data(tmp_path, located=True, limit=3)
    assert some.left_out == "10 of 20 questions have no located answer and are left out." and len(some.samples) == 3
    write_rows(tmp_path, [one for one in rows if one["boxes"]])
    assert load_data(tmp_path, located=True).left_out == "All 10 questions have a located answer."


def test_a_kind_may_be_named(tmp_path):
    write_image(tmp_path / "a.png")
    write_rows(tmp_path, [row(id=1, kind="form"), row(id=2)])
    assert [sample.kind for sample in load_data(tmp_path).samples] == ["form", ""]
    write_rows(tmp_path, [row(kind=3)])
    with pytest.raises(ValueError, match="kind must be text, got 3"):
        load_data(tmp_path)


def test_objects_are_those_of_all_classes_even_with_a_limit(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [{"id": n, "image": "a.png", "cls": n, "name": f"c{n}", "boxes": [[n, 0, n + 2, 4]]} for n in range(3)]
    write_rows(tmp_path, rows)
    (sample,) = load_data(tmp_path, limit=1).samples
    assert sample.name == sample.question == "c0" and sample.boxes == ((0, 0, 2, 4),) and len(sample.objects) == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "must be JSON"),
        ("[1, 2]", "must be an object"),
        (json.dumps(row(boxes=[[5, 2, 1, 6]])), "boxes must be"),
        (json.dumps(row(boxes=[[1, 2, 5]])), "boxes must be"),
        (json.dumps(row(size=[0, 4])), "size must be"),
        (json.dumps(row(answers="x")), "answers must be a list"),
        (json.dumps(row(answers=[3])), "answers must be a list of texts"),
        (json.dumps(row(split="dev")), "split must be one of train, eval"),
        (json.dumps(row(image=7)), "image must be a file name"),
        (json.dumps(row(id=None)), "id must be"),
        (json.dumps({"id": 1, "image": "a.png"}), "must have question, or cls and name"),
        (json.dumps(row(id="first")), "id must be new"),
        (b"\xff\xfe{}".decode("latin-1"), "must be JSON"),
    ],
)
def test_a_broken_line_is_named_and_skipped_only_if_asked_to(tmp_path, line, complaint):
    write_image(tmp_path / "a.png")
    good = json.dumps(row(id="first"))
    (tmp_path / "questions.jsonl").write_text(f"{good}\n\n{line}\n", encoding="latin-1")
    with pytest.raises(ValueError, match=rf"questions.jsonl:3: .*{complaint}"):
        load_data(tmp_path)
    data = load_data(tmp_path, skip_broken=True)
    assert [sample.id for sample in data.samples] == ["first"]
    assert len(data.skipped) == 1 and "questions.jsonl:3" in data.skipped[0]


def test_a_missing_or_damaged_image_is_named(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"nonsense")
    write_rows(tmp_path, [row(), row(id=2, image="gone.png"), row(id=3, image="b.png")])
    with pytest.raises(ValueError, match=r"sample 2: no such image: .*gone\.png"):
        load_data(tmp_path)
    data = load_data(tmp_path, skip_broken=True)
    assert len(data.samples) == 1 and len(data.skipped) == 2 and "b.png cannot be read" in data.skipped[1]


def test_no_such_folder_format_or_data(tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a data set"):
        load_data(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"hold questions\.jsonl or the release of one of docvqa, infovqa"):
        load_data(tmp_path)
    with pytest.raises(ValueError, match="format must be one of auto, own, docvqa"):
        load_data(tmp_path, format="imagenet")
    with pytest.raises(FileNotFoundError, match="a release of textvqa must hold"):
        load_data(tmp_path, format="textvqa")


def docvqa(folder):
    entry = {"questionId": 7, "question": "q?", "image": "documents/p_1.png", "docId": 3, "answers": ["0.28", "0.28%"]}
    dump(folder / "val_v1.0_withQT.json", {"dataset_name": "docvqa", "data": [entry]})
    dump(folder / "train_v1.0_withQT.json", {"data": [entry | {"questionId": 8}]})
    write_image(folder / "documents" / "p_1.png")


def docvqa_later(folder):
    docvqa(folder / "spdocvqa_qas")
    shutil.move(folder / "spdocvqa_qas" / "documents", folder / "spdocvqa_images")


def infovqa(folder):
    entry = {
        "questionId": 65718,
        "question": "q?",
        "image_local_name": "30.jpeg",
        "answers": ["4"],
        "data_split": "val",
    }
    dump(folder / "infographicsVQA_val_v1.0_withQT.json", {"dataset_name": "infographicVQA", "data": [entry]})
    write_image(folder / "infographicsvqa_images" / "30.jpeg")


def textvqa(folder):
    entry = {"question_id": 34602, "question": "q?", "image_id": "003a", "answers": ["nokia"] * 9 + ["a"]}
    dump(folder / "TextVQA_0.5.1_val.json", {"dataset_type": "val", "data": [entry | {"set_name": "val"}]})
    write_image(folder / "train_images" / "003a.jpg")


def chartqa(folder):
    entry = {"imgname": "41.png", "query": "q?", "label": "14"}
    dump(folder / "test" / "test_human.json", [entry])
    dump(folder / "test" / "test_augmented.json", [entry | {"label": "15"}])
    dump(folder / "val" / "val_human.json", [entry])
    write_image(folder / "test" / "png" / "41.png")


def coco(folder):
    box = {"image_id": 139, "category_id": 18, "iscrowd": 0}
    dump(
        folder / "annotations" / "instances_val2017.json",
        {
            "images": [{"id": 139, "file_name": "000000000139.jpg", "height": 24, "width": 32}],
            "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}],
            "annotations": [
                box | {"bbox": [1.5, 2, 10, 4]},
                box | {"bbox": [20, 2, 3, 4]},
                box | {"category_id": 1, "bbox": [0, 0, 5, 5]},
                box | {"iscrowd": 1, "bbox": [0, 0, 30, 20]},
                box | {"bbox": [3, 3, 0, 4]},
            ],
        },
    )
    write_image(folder / "val2017" / "000000000139.jpg")


def vqav2(folder):
    question = {"image_id": 42, "question": "q?", "question_id": 42000}
    answers = [{"answer": answer, "answer_id": n} for n, answer in enumerate(["down", "down", "at table"])]
    dump(folder / "v2_OpenEnded_mscoco_val2014_questions.json", {"questions": [question]})
    dump(
        folder / "v2_mscoco_val2014_annotations.json",
        {"annotations": [{"question_id": 42000, "image_id": 42, "answers": answers}]},
    )
    write_image(folder / "val2014" / "COCO_val2014_000000000042.jpg")


def vizwiz(folder):
    answers = [{"answer": "basil", "answer_confidence": "yes"}, {"answer": "basil leaves", "answer_confidence": "yes"}]
    entry = {"image": "VizWiz_val_00000000.jpg", "question": "q?", "answers": answers, "answerable": 1}
    dump(folder / "Annotations" / "val.json", [entry])
    write_image(folder / "val" / "VizWiz_val_00000000.jpg")


RELEASES = {
    "docvqa": (docvqa, "7", ("0.28", "0.28%")),
    "docvqa, later archive": (docvqa_later, "7", ("0.28", "0.28%")),
    "infovqa": (infovqa, "65718", ("4",)),
    "textvqa": (textvqa, "34602", (*["nokia"] * 9, "a")),
    "chartqa": (chartqa, "test_human-0", ("14",)),
    "vqav2": (vqav2, "42000", ("down", "down", "at table")),
    "vizwiz": (vizwiz, "VizWiz_val_00000000", ("basil", "basil leaves")),
}


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_release_is_recognised_and_read(tmp_path, name, by_name):
    write, identity, answers = RELEASES[name]
    write(tmp_path)
    format = name.split(",")[0]
    data = load_data(tmp_path, format=format if by_name else "auto")
    assert data.format == format
    sample = data.samples[0]
    assert (sample.id, sample.question, sample.answers, sample.size) == (identity, "q?", answers, (24, 32))
    assert sample.split == "eval" and sample.boxes == () and sample.image.is_file()


@pytest.mark.parametrize("name", RELEASES)
def test_a_missing_image_of_a_release_is_named(tmp_path, name):
    RELEASES[name][0](tmp_path)
    for image in (path for path in tmp_path.rglob("*") if path.suffix in (".png", ".jpg", ".jpeg")):
        image.unlink()
    with pytest.raises(ValueError, match="no such image"):
        load_data(tmp_path)


def test_train_of_a_release(tmp_path):
    docvqa(tmp_path)
    assert [sample.id for sample in load_data(tmp_path, split="train").samples] == ["8"]
    assert [sample.split for sample in load_data(tmp_path, split=None).samples] == ["train", "eval"]


def test_both_kinds_of_questions_of_chartqa_but_one_split(tmp_path):
    chartqa(tmp_path)
    assert [sample.id for sample in load_data(tmp_path).samples] == ["test_human-0", "test_augmented-0"]


def test_coco(tmp_path):
    coco(tmp_path)
    data = load_data(tmp_path)
    assert data.format == "coco"
    dog, person = data.samples
    assert (dog.id, dog.name, dog.boxes) == ("139-18", "dog", ((1.5, 2, 11.5, 6), (20, 2, 23, 6)))
    assert (person.name, person.boxes, len(person.objects)) == ("person", ((0, 0, 5, 5),), 3)


def test_a_broken_entry_of_a_release_is_named(tmp_path):
    docvqa(tmp_path)
    path = tmp_path / "val_v1.0_withQT.json"
    content = json.loads(path.read_text())
    dump(path, {"data": [*content["data"], {"questionId": 9}, "text"]})
    with pytest.raises(ValueError, match=r"val_v1.0_withQT.json: data\[1\]: must have image"):
        load_data(tmp_path)
    data = load_data(tmp_path, skip_broken=True)
    assert len(data.samples) == 1 and len(data.skipped) == 2
    path.write_text('{"data": [')
    with pytest.raises(ValueError, match=r"val_v1\.0_withQT\.json must be JSON"):
        load_data(tmp_path)
    dump(path, {"rows": []})
    with pytest.raises(ValueError, match="must hold a list under data"):
        load_data(tmp_path)


def test_a_broken_annotation_of_coco_is_named(tmp_path):
    coco(tmp_path)
    path = tmp_path / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    content["annotations"] += [{"image_id": 139}, {"image_id": 1, "category_id": 18, "bbox": [0, 0, 1, 1]}]
    dump(path, content)
    with pytest.raises(ValueError, match=r"annotations\[5\]: must have category_id"):
        load_data(tmp_path)
    data = load_data(tmp_path, skip_broken=True)
    assert len(data.samples) == 2 and "must name an image and a category" in data.skipped[1]
