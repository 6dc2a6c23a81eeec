"""`texturevlm bench scout`: a page and a question → where the answer is, beside the same layers in plain PyTorch.

On a CPU the rival is `words`, which reads the page by RapidOCR first. Pages are 1700×2200 (200 dots per inch), in
memory, with mips.
"""

from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from texturevlm.cuda.graph import Replay
from texturevlm.relevance.ocr import read_page
from texturevlm.relevance.words import words_map
from texturevlm.scout import Question, encode, load_scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.spotter import EMBEDDING, Spotter
from texturevlm.types import Texture
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import waited

TITLE = "Scout"
SIZE = (2200, 1700)
QUESTION = "What is the total amount of the invoice dated 14 March 1998?"
PAGES = 8
MAP_BARS = {"cuda": 500.0, "cpu": 5e5}  # microseconds


def bench(report: Report) -> None:
    """Time looking at a page and asking a question, together and apart."""
    texture = Texture.open(page(1, *SIZE).to(report.device)).mipmapped()
    work = f"page {SIZE[1]}×{SIZE[0]} and question → map"
    if report.device == "cuda":
        return _on_gpu(report, work, texture)
    scout, asked = load_scout(device="cpu"), encode([QUESTION])
    spots = scout.read(texture)
    report.add(work, "scout", lambda: scout.where(scout.read(texture), asked), "cpu", bar=MAP_BARS["cpu"], repeats=9)
    report.add("the page alone", "scout", partial(scout.read, texture), "cpu", repeats=9)
    report.add("another question", "scout", partial(scout.where, spots, asked), "cpu", repeats=9)
    if find_spec("rapidocr") is not None:
        reading = partial(_read_words, texture.levels[0])
        report.add(work, "words (RapidOCR)", reading, "cpu", repeats=1 if report.quick else 3)
    report.notes = [f"cpu: wall clock of one call, weights in {scout.dtype}."]


def _read_words(image: Tensor) -> object:
    return words_map(read_page(image), QUESTION, (138, 106))


def _on_gpu(report: Report, work: str, texture: Texture) -> None:
    scout, asked = load_scout(device="cuda"), encode([QUESTION])

    def answer(*parts: Tensor) -> tuple[Tensor, ...]:
        return (scout(texture, Question(*parts)),)

    replay = Replay(answer, list(asked), device=torch.device("cuda", torch.cuda.current_device()))
    if replay.reason is not None:
        raise RuntimeError(f"bench scout: {replay.reason}")
    spotter, ranker = Spotter().cuda().eval(), Ranker().cuda().eval()
    letters = torch.rand(1, asked.letters.shape[1], EMBEDDING, device="cuda")
    question = Question(*(part.cuda() for part in asked))  # for device time alone, and for the rival
    grey = torch.rand(1, 1, 1104, 848, device="cuda")

    @torch.inference_mode()
    def plain() -> object:
        return ranker(spotter(grey), letters, question.traits, question.asked)

    several = Texture(tuple(level.expand(PAGES, -1, -1, -1).contiguous() for level in texture.levels))
    together, ours = partial(scout, several, question), "scout, captured"
    one_by_one = {"calls": 20 if report.quick else 200, "repeats": 7}
    report.add(f"the same, per page of a batch of {PAGES}", ours, together, per=PAGES)
    report.add(work, ours, waited(lambda: replay(*asked)), "host", bar=MAP_BARS["cuda"], **one_by_one)
    report.add(work, ours, lambda: answer(*question))
    report.add("the page alone", ours, partial(scout.read, texture))
    report.add(work, "scout, uncaptured", waited(lambda: answer(*asked)), "host", **one_by_one)
    report.add(work, "PyTorch", waited(plain), "host", **one_by_one)
    report.add("encoding the question, on the host", "scout", partial(encode, [QUESTION]), "cpu")
    report.notes = [
        "captured: one replay of a CUDA graph, from the call until the GPU is done, the question brought over.",
        "uncaptured: the same calls one by one. PyTorch: the same layers in float32, normalisations not folded, one by",
        "one. Mips of the page are there already (bench engine).",
    ]
