"""What is asked: the name of each golden file, and the call that makes its record."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.golden import doors
from tests.golden.doors import DATE, TOTAL
from tests.golden.pictures import PICTURES
from texturevlm.relevance import Balance

ALLOCATORS = (
    "resize",
    "grid",
    "fit",
    "layers",
    "density",
    "cascade",
    "atlas",
    "crops",
    "dag",
    "pyramid",
    "quadtree",
    "frequency",
    "logpolar",
    "fixations",
)
# Pictures that are like another one to a model, which takes most of the test's time.
SEEN_ELSEWHERE = ("head", "foot", "columns", "grey", "upside_down", "large_askew", "large_stamped", "wide_photo")
SEEN_ELSEWHERE += ("screen", "noise", "large")
NEEDS = {"pages": ["pypdfium2"], "serve": ["fastapi", "httpx"], "corpus": ["pyarrow"], "choose/usual": ["rapidocr"]}
NEEDS["ask/document"] = ["pypdfium2"]

Case = Callable[[], Any]
CASES: dict[str, Case] = {}


def add(name: str, made: Callable[..., Any], *given: Any, **options: Any) -> None:
    assert name not in CASES
    CASES[name] = partial(made, *given, **options)


for own in PICTURES:
    add(f"picture/{own}", doors.picture, own)
    if own not in ("large_askew", "large_stamped"):
        add(f"choose/{own}", doors.choose, own)
    if own not in SEEN_ELSEWHERE:
        add(f"ask/{own}", doors.ask_about, own, budget=64)

# choose_tokens
for allocator in ALLOCATORS:
    add(f"choose/by-{allocator}", doors.choose, "chart", allocator=allocator)
for relevance in ("scout", "prior", "none", "channels"):
    add(f"choose/with-{relevance}", doors.choose, "half", DATE, relevance=relevance)
    add(f"choose/with-{relevance}-nothing-asked", doors.choose, "half", "", relevance=relevance)
add("choose/usual", doors.choose, "tiny", relevance="auto")  # reads by OCR where that is installed
add("choose/usual-nothing-asked", doors.choose, "half", "", relevance="auto")
for own in ("invoice", "photo", "chart"):
    add(f"choose/{own}-273", doors.choose, own, budget=273)
add("choose/invoice-273-density", doors.choose, "invoice", budget=273, allocator="density")
for own in ("half", "turned", "upside_down", "askew", "stamped", "photo"):
    add(f"choose/{own}-turn-auto", doors.choose, own, turn="auto", budget=96)
add("choose/turned-by-90", doors.choose, "turned", turn=90)
add("choose/askew-by--15", doors.choose, "askew", turn=-15)
add("choose/patch-16", doors.choose, "half", patch=16)
add("choose/learned-balance", doors.choose, "half", balance="learned")
add("choose/own-balance", doors.choose, "half", balance=Balance(particularise=2.0))
add("choose/list", doors.choose_several, "tiny", "photo")
add("choose/shared", doors.choose_several, "half", "photo", share=True, budget=120)
add("choose/shared-turn-auto", doors.choose_several, "turned", "photo", share=True, turn="auto", budget=96)
add("choose/batch", doors.choose_batch)
add("choose/attended", doors.choose_attended, "half")
add("choose/attended-turned", doors.choose_attended, "turned", turn=90)
add("choose/prepared", doors.choose_prepared, "half", TOTAL, DATE, "")

# What tokens show
for own in ("half", "photo", "noise"):
    add(f"sample/{own}", doors.sampled, own)
add("sample/askew", doors.sampled, "askew", turn="auto")
add("sample/frequency", doors.sampled, "photo", allocator="frequency")
add("sample/foveated", doors.foveated, "half")

# ask
add("ask/invoice-273", doors.ask_about, "invoice", budget=273)
add("ask/invoice-usual", doors.ask_about, "invoice")
add("ask/half-273", doors.ask_about, "half", budget=273)
add("ask/half-usual", doors.ask_about, "half")
add("ask/half-looks-2", doors.ask_about, "half", budget=128, looks=2)
add("ask/stamped-looks-2", doors.ask_about, "stamped", budget=128, looks=2)
for own in ("invoice", "half", "stamped"):
    add(f"ask/{own}-looks-auto", doors.ask_about, own, budget=128, looks="auto")
for relevance in ("model", "none"):
    add(f"ask/half-{relevance}", doors.ask_about, "half", budget=64, relevance=relevance)
add("ask/half-by-crops", doors.ask_about, "half", budget=64, allocator="crops")
add("ask/stamped-turn-0", doors.ask_about, "stamped", budget=64, turn=0)
add("ask/turned-by-90", doors.ask_about, "turned", budget=64, turn=90)
add("ask/weighted", doors.ask_about, "chart", budget=64, tokens="weighted")
add("ask/merged", doors.ask_about, "half", budget=64, tokens="merged")
add("ask/reduced", doors.ask_about, "half", budget=64, reduce="tome", keep=32)
add("ask/fine-coordinates", doors.ask_about, "half", budget=64, levels="joint", coordinates="fine")
add("ask/two-images", doors.ask_about, "half", "tiny", budget=96)
add("ask/two-questions", doors.ask_about, "half", question=[TOTAL, DATE], budget=64)
add("ask/clip", doors.ask_clip)
add("ask/document", doors.ask, doors.paper(), budget=128)
add("session/half", doors.session, "half", TOTAL, DATE)
add("session/half-looks-2", doors.session, "half", TOTAL, looks=2)
add("session/stamped", doors.session, "stamped", TOTAL, budget=128)

# An attached processor
for own in ("half", "invoice", "turned", "stamped"):
    add(f"attach/{own}", doors.attached, own)
add("attach/turned-turn-auto", doors.attached, "turned", turn="auto")
add("attach/stamped-turn-auto", doors.attached, "stamped", turn="auto", budget=128)
add("attach/two-images", doors.attached, "head", "photo", budget=96)

# Documents
add("pages/pdf", doors.pages)
add("pages/pdf-273", doors.pages, "", budget=273, fine_pages=1)
add("pages/images-turn-auto", doors.image_pages, "turned", "stamped", turn="auto", budget=128)

# Streams
add("stream/nothing-asked", doors.stream)
add("stream/asked", doors.stream, query=TOTAL, relevance="scout")
add("stream/pointed", doors.stream, point=(150.0, 90.0, 300.0, 180.0))
add("stream/channels", doors.stream, channels=("motion", "saliency"), relevance="channels", query=TOTAL)
add("stream/rate", doors.stream, rate=400)
add("stream/reader", doors.watched_stream)

# The server and the command line
for own in ("half", "turned"):
    add(f"serve/plan-{own}", doors.plan, own)
add("serve/plan-nothing-asked", doors.plan, "half", "")
add("serve/plan-density-273", doors.plan, "half", allocator="density", budget=273)
add("serve/plan-gaze", doors.plan, "half", gaze=[200, 300])
add("serve/plan-trail", doors.plan, "half", trail=[[200, 300, 1], [210, 320, 2]])
add("serve/plan-of-reader", doors.plan, "half", model=True)
add("serve/chat", doors.chat, "half", budget=64)
add("serve/chat-usual", doors.chat, "stamped")
add("command/allocate", doors.allocate, "--budget", "64", "--relevance", "scout")
add("command/allocate-density", doors.allocate, "--budget", "273", "--relevance", "scout", "--allocator", "density")

# A corpus
add("corpus/patches", doors.corpus)
add("corpus/allocations", doors.corpus, write="allocations", relevance="none", buckets=4)
add("corpus/asked", doors.corpus, questions=[(0, TOTAL), (1, DATE), (1, TOTAL)])
