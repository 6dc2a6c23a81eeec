"""The doors of the package, each as a function that returns a record.

They use public names. What has no public name is in the first part of this file, and nowhere else.
"""

import base64
import io
import json
from contextlib import contextmanager, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

import texturevlm as tv
from tests.golden.pictures import PICTURES, half, moments, paper
from tests.golden.record import fingerprint, footprints, numbers
from texturevlm.pages import choose_pages

TOTAL, DATE = "What is the total?", "What is the date?"
SHOWN = 8  # first logits
ANSWER = 4  # tokens


# What has no public name.


def geometry(rows: torch.Tensor, width: int) -> np.ndarray:
    """(N, 10): the numbers behind the pixels of packed rows, as vlm/places.py has them: patch, extent, token, grid,
    moment, begins."""
    from texturevlm.vlm.places import unpack

    parts = unpack(rows, width)[1]
    return torch.cat([parts.patch, parts.extent, parts.token, parts.grid, parts.moment, parts.begins], -1).numpy()


def chosen_of(answer: Any) -> tuple[list[Any], list[str]]:
    """The allocations of an Answer with details, and the names of the scorers."""
    return [own.given for own in answer.placements], [own.relevance.scorer for own in answer.placements]


def client(model: Any = None) -> Any:
    """A client of the HTTP server."""
    from fastapi.testclient import TestClient

    from texturevlm.serve.app import Settings, create_app

    settings = Settings(model=model, name="reader", device=torch.device("cpu"))
    return TestClient(create_app(settings), base_url="http://127.0.0.1:8080")


def command(*given: str) -> str:
    """What the command line prints."""
    from texturevlm.cli import main

    said = io.StringIO()
    with redirect_stdout(said):
        status = main(list(given))
    assert status == 0, f"texturevlm {' '.join(given)}: status {status}"
    return said.getvalue()


# Images and tokens.


@cache
def reader() -> Any:
    return tv.load_vlm("reader", captured=False, device="cpu", dtype="float32")


def texture(name: str) -> Any:
    return tv.Texture.open(PICTURES[name]()).mipmapped()


def picture(name: str) -> Any:
    return fingerprint(np.asarray(PICTURES[name](), np.float64)[::3, ::3] / 255)


def choose(name: str, question: str = TOTAL, **options: Any) -> Any:
    return footprints(tv.choose_tokens(texture(name), question, **{"relevance": "scout", "budget": 64, **options}))


def choose_several(*names: str, question: str = TOTAL, **options: Any) -> Any:
    """A list of images."""
    given = {"relevance": "scout", "budget": 64, **options}
    return [footprints(one) for one in tv.choose_tokens([texture(name) for name in names], question, **given)]


def choose_batch(question: str = TOTAL, **options: Any) -> Any:
    """Two images of one size in one texture."""
    levels = [torch.from_numpy(np.asarray(image, np.float32) / 255) for image in (half(), half().rotate(180))]
    both = tv.Texture.open(torch.stack(levels).permute(0, 3, 1, 2)).mipmapped()
    return footprints(tv.choose_tokens(both, question, **{"relevance": "scout", "budget": 64, **options}))


def choose_attended(name: str, **options: Any) -> Any:
    """By a map that the caller has."""
    seen = torch.zeros(1, 30, 20)
    seen[:, 18:24, 3:9] = 1
    return choose(name, relevance=tv.SCORERS["attention"](seen), **options)


def choose_prepared(name: str, *questions: str) -> Any:
    """Several questions about what `prepare` made once."""
    from texturevlm.relevance import prepare

    own = texture(name)
    ready = prepare(own, patch=32, relevance="scout")
    return [footprints(tv.choose_tokens(own, one, relevance=ready, budget=64)) for one in questions]


def sampled(name: str, question: str = TOTAL, **options: Any) -> Any:
    """Pixels of the chosen tokens."""
    own = texture(name)
    allocation = tv.choose_tokens(own, question, **{"relevance": "scout", "budget": 64, **options})
    pixels = tv.sample(own, allocation).pixels[allocation.valid]
    return {"pixels": fingerprint(pixels), "chosen": footprints(allocation)}


def foveated(name: str) -> Any:
    found = tv.sample_foveated(texture(name), fixation=(200.0, 300.0), budget=64)
    return {"pixels": fingerprint(found.pixels), "chosen": footprints(found.allocation)}


def allocate(*given: str, question: str = TOTAL) -> Any:
    """The command, about a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        half().save(path)
        said = json.loads(command("allocate", str(path), "--query", question, "--device", "cpu", *given))
    return footprints(allocation_of(said))


def allocation_of(said: Any) -> Any:
    return tv.Allocation.from_json(said)


# The model.


def inputs_record(inputs: Any) -> Any:
    """What a model is given: ids, places of its tokens, rows."""
    found: dict[str, Any] = {"ids": [ids_line(row) for row in inputs["input_ids"].tolist()]}
    for name, value in inputs.items():
        if name.startswith("pixel_values"):
            known = geometry(value, 3 * 2 * 16 * 16)
            step = 4  # patches of a token
            found["places"] = numbers(known[::step, [4, 5, 6, 7, 8]], 2e-3)
            found["rows"] = fingerprint(value)
        elif name.endswith("grid_thw"):
            found[name] = value.tolist()
    return found


def ids_line(ids: list[int]) -> str:
    """Ids as text; 2*64 is the id 2, 64 times."""
    runs: list[list[int]] = []
    for one in ids:
        if runs and runs[-1][0] == one:
            runs[-1][1] += 1
        else:
            runs.append([one, 1])
    return " ".join(f"{one}*{times}" if times > 1 else str(one) for one, times in runs)


@contextmanager
def watched(network: Any) -> Any:
    """What `generate` of a transformers model is given and what it returns, one dict per call."""
    calls: list[dict[str, Any]] = []
    plain = network.generate

    def generate(**given: Any) -> Any:
        own: dict[str, Any] = {"given": given}
        calls.append(own)
        found = plain(**given)
        own["logits"] = getattr(found, "logits", [None])[0]
        return found

    def positions(_: Any, __: Any, given: Any) -> None:
        if calls and calls[-1].get("positions") is None and "logits" not in calls[-1]:
            calls[-1]["positions"] = given.get("position_ids")

    hook = network.model.language_model.register_forward_pre_hook(positions, with_kwargs=True)
    network.generate = generate
    try:
        yield calls
    finally:
        hook.remove()
        del network.generate


def call_record(call: dict[str, Any]) -> Any:
    """The last prompt of an answer: what the model was given, where, and what it said first."""
    found = inputs_record(call["given"])
    places = call["given"].get("position_ids")
    places = call.get("positions") if places is None else places
    if places is not None:  # (3 or 4, B, L); of four, the first is that of plain text
        found["positions"] = [numbers(places[-3:, row].T, 2e-3) for row in range(places.shape[1])]
    if call["logits"] is not None:
        best = call["logits"].float().topk(SHOWN)
        found["logits"] = {"best": best.indices.tolist(), **numbers(best.values, 1e-3, 4)}
    return found


def ask(images: Any, question: Any = TOTAL, **options: Any) -> Any:
    """An answer of the reader: what was chosen, what the model was given last, its first logits, its words."""
    given = {"max_new_tokens": ANSWER, "return_details": True, **options}
    with watched(reader().model) as calls:
        answers = reader().ask(images, question, **given)
    many = isinstance(answers, list)
    records = []
    for answer in answers if many else [answers]:
        allocations, scorers = chosen_of(answer)
        chosen = [own for one in allocations for own in footprints(one)]
        records.append({"answer": answer.text, "looks": answer.looks, "scorers": scorers, "chosen": chosen})
        if answer.pages:
            records[-1]["pages"] = {str(page): tokens for page, tokens in answer.pages.items()}
        if answer.confidence is not None:
            records[-1]["confidence"] = numbers([[answer.confidence, answer.unreadable or 0.0]], 1e-3, 4)
    return {"answers": records, "model": call_record(calls[-1])}


def ask_about(*names: str, question: Any = TOTAL, **options: Any) -> Any:
    images = [PICTURES[name]() for name in names]
    return ask(images if len(images) > 1 else images[0], question, **options)


def ask_clip(**options: Any) -> Any:
    return ask(moments(), TOTAL, **{"fps": 1, "budget": 64, **options})


def session(name: str, *questions: str, **options: Any) -> Any:
    """What a session chooses, without an answer."""
    own = reader().prepare(PICTURES[name]())
    given = {"budget": 64, **options}
    return [footprints(placement.given) for one in questions for placement in own.choose(one, **given)]


def attached(*names: str, question: str = TOTAL, **options: Any) -> Any:
    """The inputs that the processor of an attached model makes of a chat template."""
    processor = tv.attach(
        reader().model, reader().processor.processor, **{"relevance": "scout", "budget": 64, **options}
    )
    content = [{"type": "image", "image": PICTURES[name]()} for name in names]
    conversation = [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]
    given = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return inputs_record(processor.apply_chat_template(conversation, **given))


# Documents, streams, the server, a corpus.


def pages(question: str = TOTAL, **options: Any) -> Any:
    """Pages and tokens of a PDF."""
    return _pages_record(choose_pages(paper(), question, **{"relevance": "scout", "budget": 64, **options}))


def image_pages(*names: str, question: str = TOTAL, **options: Any) -> Any:
    """Of a list of images."""
    images = [PICTURES[name]() for name in names]
    return _pages_record(choose_pages(images, question, **{"relevance": "scout", "budget": 64, **options}))


def _pages_record(found: Any) -> Any:
    return [
        {
            "pages": list(page.numbers),
            "worth": numbers([[page.worth]], 1e-3, 4),
            "chosen": footprints(page.allocation),
            "pixels": fingerprint(page.texture.levels[2].float()),
        }
        for page in found
    ]


def stream(count: int = 4, point: Any = None, **options: Any) -> Any:
    """The steps of a stream, as its tokens follow what moves."""
    given = {"budget": 48, **options}
    own, found = tv.VideoStream((320, 480), **given), []
    for frame in moments(count):
        step = own.step(frame)
        if point is not None and not found:
            own.point(point)
        record = {"keyframe": step.reuse.keyframe, "changed": step.reuse.changed, "fresh": step.reuse.fresh}
        used = step.patches.allocation.valid
        pixels = fingerprint(step.patches.pixels[used])
        found.append({**record, "chosen": footprints(step.patches.allocation), "pixels": pixels})
    return found


def watched_stream(**options: Any) -> Any:
    """What the reader says about a stream."""
    own = tv.VideoStream((320, 480), model=reader(), fps=1.0, **{"budget": 48, "relevance": "scout", **options})
    chosen = [footprints(own.step(frame).patches.allocation) for frame in moments()]
    return {"answer": own.ask(TOTAL, max_new_tokens=ANSWER), "chosen": chosen[-1]}


def plan(name: str, question: str = TOTAL, *, model: bool = False, **options: Any) -> Any:
    """The plan that the page draws."""
    file = io.BytesIO()
    PICTURES[name]().save(file, "PNG")
    with client(reader() if model else None) as server:
        identity = server.post("/api/images", files={"file": ("page.png", file.getvalue())}).json()["id"]
        body = {"id": identity, "question": question, "budget": 64, **options}
        answer = server.post("/api/plan", json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    tokens = [{**dict(zip(said["tokens"], row)), "source": 0} for row in zip(*said["tokens"].values())]
    whole = {name: said[name] for name in ("size", "patch", "budget")}
    url = said["atlas"]["url"].partition(",")[2]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(url))).convert("RGB"), np.float64) / 255
    facts = {name: said[name] for name in ("used", "full", "allocator", "scorer", "grey")}
    return {**facts, "chosen": footprints(allocation_of({**whole, "tokens": tokens})), "atlas": fingerprint(pixels)}


def chat(name: str, question: str = TOTAL, **options: Any) -> Any:
    """A chat completion of the reader behind the server."""
    file = io.BytesIO()
    PICTURES[name]().save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    body = {"model": "reader", "messages": [{"role": "user", "content": content}], "max_tokens": ANSWER, **options}
    with watched(reader().model) as calls, client(reader()) as server:
        answer = server.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return {"answer": said["choices"][0]["message"]["content"], "usage": said["usage"], "model": call_record(calls[-1])}


def corpus(**options: Any) -> Any:
    """The rows of a corpus of six small images, read back."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "in", Path(folder) / "out"
        source.mkdir()
        for index in range(6):
            size = ((256, 192), (192, 256))[index % 2]
            half().crop((40, 100 * index, 40 + size[0], 100 * index + size[1])).save(source / f"{index}.png")
        if questions := options.pop("questions", None):
            path = Path(folder) / "questions.jsonl"
            asked = [json.dumps({"key": f"{key}.png", "question": text}) for key, text in questions]
            path.write_text("\n".join(asked) + "\n")
            options["questions"] = path
        given = {"relevance": "scout", "budget": 12, "patch": 16, "unit": 4, "workers": 0, "device": "cpu", **options}
        summary = tv.corpus.build(source, out, **given)
        opened = tv.corpus.open(out)
        rows = [opened[number] for number in range(len(opened))]
        kinds = sorted({path.suffix for path in out.rglob("*") if path.is_file()})
    counts = {"rows": summary.rows, "errors": summary.errors, "units": summary.units, "asked": summary.asked}
    return {**counts, "files": kinds, "samples": [_row(row) for row in rows]}


def _row(row: Any) -> Any:
    found = {"key": row["key"], "size": list(row["size"]), "question": row["question"]}
    found["chosen"] = footprints(row["allocation"])
    if "patches" in row:
        found["pixels"] = fingerprint(row["patches"].pixels)
    return found
