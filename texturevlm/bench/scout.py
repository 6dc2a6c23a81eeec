"""`texturevlm bench scout`: a page and a question → where the answer is, beside the same layers in plain PyTorch.

On a CPU the rival is `words`, which reads the page by RapidOCR first. Pages are 1700×2200 (200 dots an inch), in
memory, with mips.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from texturevlm.bench import timing
from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.cuda.graph import Replay
from texturevlm.relevance.ocr import read_page
from texturevlm.relevance.words import words_map
from texturevlm.scout import Question, encode, load_scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.spotter import EMBEDDING, Spotter
from texturevlm.types import Texture

SIZE = (2200, 1700)
QUESTION = "What is the total amount of the invoice dated 14 March 1998?"
PAGES = 8
BARS = {"cuda": 500.0, "cpu": 5e5}  # microseconds


def run(device: str | None = None, *, quick: bool = False) -> Report:
    """Time looking at a page and asking a question, together and apart."""
    report = begin("Scout", device)
    texture = Texture.open(_page().to(report.device)).mipmapped()
    scout = load_scout(device=report.device)
    asked = encode([QUESTION])
    repeats = 3 if quick else 9

    def whole() -> Tensor:
        return scout.where(scout.read(texture), asked)

    work = f"page {SIZE[1]}×{SIZE[0]} and question → map"
    if report.device == "cpu":
        spots = scout.read(texture)
        report.rows += [
            Row(work, "scout", "cpu", timing.cpu(whole, repeats), bar=BARS["cpu"]),
            Row("the page alone", "scout", "cpu", timing.cpu(lambda: scout.read(texture), repeats)),
            Row("another question", "scout", "cpu", timing.cpu(lambda: scout.where(spots, asked), repeats)),
        ]
        if find_spec("rapidocr") is not None:
            image = texture.levels[0]
            read = timing.cpu(lambda: words_map(read_page(image), QUESTION, (138, 106)), 1 if quick else 3)
            report.rows.append(Row(work, "words (RapidOCR)", "cpu", read))
        report.notes = [f"cpu: wall clock of one call, weights in {scout.dtype}."]
        return report
    report.rows += _on_gpu(texture, asked, work, quick)
    report.rows.append(
        Row("encoding the question, on the host", "scout", "cpu", timing.cpu(lambda: encode([QUESTION])))
    )
    report.notes = [
        "captured: one replay of a CUDA graph, from the call until the GPU is done, the question brought over.",
        "uncaptured: the same calls one by one. PyTorch: the same layers in float32, normalisations not folded, one by",
        "one. Mips of the page are there already (bench engine).",
    ]
    return report


def _on_gpu(texture: Texture, asked: Question, work: str, quick: bool) -> list[Row]:
    scout = load_scout(device="cuda")
    calls = 20 if quick else 200

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
    def plain() -> Tensor:
        found: Tensor = ranker(spotter(grey), letters, question.traits, question.asked)
        return found

    look = timing.device_warm(lambda: scout.read(texture))
    several = Texture(tuple(level.expand(PAGES, -1, -1, -1).contiguous() for level in texture.levels))
    together = timing.device_warm(lambda: scout(several, question))
    shared = Timing(together.median / PAGES, together.low / PAGES, together.high / PAGES)
    return [
        Row(f"the same, a page of {PAGES} at once", "scout, captured", "warm", shared),
        Row(work, "scout, captured", "host", _one_by_one(lambda: replay(*asked), calls), bar=BARS["cuda"]),
        Row(work, "scout, captured", "warm", timing.device_warm(lambda: answer(*question))),
        Row("the page alone", "scout, captured", "warm", look),
        Row(work, "scout, uncaptured", "host", _one_by_one(lambda: answer(*asked), calls)),
        Row(work, "PyTorch", "host", _one_by_one(plain, calls)),
    ]


def _one_by_one(work: timing.Work, calls: int) -> Timing:
    """Wall clock of single calls, each waited for."""

    def waited() -> None:
        work()
        torch.cuda.synchronize()

    return timing.host(waited, calls=calls, repeats=7)


def _page() -> Tensor:
    """Lines of dark strokes on white, as text has: (1, 3, H, W)."""
    height, width = SIZE
    strokes = (torch.rand(height // 2, width // 3) < 0.4).float()
    fine = strokes.repeat_interleave(2, 0).repeat_interleave(3, 1)
    lines = ((torch.arange(fine.shape[0]) // 20) % 2).float()[:, None]
    page = torch.ones(1, 3, height, width)
    page[..., : fine.shape[0], : fine.shape[1]] -= fine * lines
    return page
