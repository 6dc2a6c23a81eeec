"""texturevlm eval --model: a model answers the questions of a data set; or the table of an earlier run again."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from texturevlm.commands import arguments

if TYPE_CHECKING:
    from texturevlm.ask import VLM
    from texturevlm_lab.evaluate.data import Data, NothingLeft

ROWS, TABLE = "answers.jsonl", "answers.md"
BUDGETS = (32, 64, 96, 273)
RELEVANCES = ("none", "scout", "words")
ALLOCATORS = ("auto", "resize")
ALL = "all"  # reductions
ANSWER_OPTIONS = (  # that mean nothing without a model
    *("conditions", "reduce", "batch", "max_new_tokens", "suffix", "dtype", "levels", "coordinates"),
    *("untimed", "captured", "texts"),
)
NAMED = 20  # entries that were skipped and are named at the end


def add_model_options(parser: arguments.Parser) -> None:
    """The options of `eval` with a model."""
    group = parser.add_argument_group("with a model")
    group.add_argument("--model", metavar="ID|DIR", help="a model of the hub or a folder; it answers the questions")
    group.add_argument("--from", dest="rows", metavar="ROWS", help="make the table of an earlier run from its rows")
    kinds = "full, own, chosen, oracle, question, page, blank, text (default: all)"
    group.add_argument("--conditions", metavar="C,D", type=arguments.names, help=kinds)
    reductions = (
        "visionzip, fastv … or all: twice the budget is chosen, and the model reduces it to the budget (docs/rivals.md)"
    )
    group.add_argument("--reduce", metavar="M,N", type=arguments.names, help=reductions)
    group.add_argument("--batch", metavar="N", type=arguments.count, help="questions per batch (default: 16)")
    group.add_argument(
        "--max-new-tokens", metavar="N", type=arguments.count, help="of an answer (default: 64; 160 for a reader)"
    )
    suffix = (
        "text behind every question (default: Answer the question using a single word or phrase.; none for a reader)"
    )
    group.add_argument("--suffix", metavar="TEXT", help=suffix)
    group.add_argument("--dtype", metavar="T", help="of the model: bfloat16, float32 … (default: the checkpoint's)")
    turned = "angle of the text of pages in degrees, or auto: for the conditions chosen and question (default: 0)"
    group.add_argument("--turn", metavar="A", type=arguments.angle_or_auto, help=turned)
    group.add_argument("--levels", help="joint, apart or causal: how the vision tower sees tokens of several scales")
    group.add_argument("--coordinates", help="fine or native: the positions of tokens in the vision tower")
    group.add_argument("--untimed", action="store_true", help="do not time the first tokens")
    group.add_argument("--captured", action="store_true", help="decode answers from CUDA graphs (Qwen)")
    group.add_argument("--texts", metavar="FILE", type=Path, help="write the answers as text, for your own eyes")


def eval_model(options: argparse.Namespace) -> int:
    """Run, or make a table again."""
    from texturevlm_lab.evaluate.answer_report import answers_page
    from texturevlm_lab.evaluate.answer_rows import AnswerRows
    from texturevlm_lab.evaluate.data import NothingLeft

    if options.rows is not None:
        if options.model is not None or options.data:
            raise ValueError(f"--from must stand alone, without DATA and --model, got {options.model or options.data}")
        if not Path(options.rows).is_file():
            raise FileNotFoundError(f"--from must be the {ROWS} of a run, got {options.rows}, which is no file")
        answers = AnswerRows.read(Path(options.rows))
        _publish(answers_page(answers), options.out)
        return 0
    name, source = _named(options.data)
    if options.out is None:
        raise ValueError("--out must be a folder for rows and table, got none")
    _check_names(options)
    try:
        data = _load(name, source, options)
    except NothingLeft as error:
        return nothing_left(error)
    name = name or _guessed(data.format, source)
    answers, failed = _answered(name, data, options)
    _publish(answers_page(answers, notes=_failures(failed)), options.out)
    report_skipped([*data.skipped, *failed])
    return 0 if any(answers.rows.values()) else 1


def nothing_left(error: "NothingLeft") -> int:
    """Name the broken entries; the status."""
    report_skipped(error.skipped)
    print(f"texturevlm eval: {str(error).removeprefix('load_data: ')}", file=sys.stderr)
    return 1


def _named(given: Sequence[str]) -> tuple[str | None, str]:
    """[SET] DATA as the name of the data set, if it was given, and where it lies."""
    from texturevlm.check import check_choice
    from texturevlm_lab.evaluate.answers import DATA_SETS

    if len(given) not in (1, 2):
        raise ValueError(f"[SET] DATA must be one or two arguments, got {len(given)}")
    return (None, given[0]) if len(given) == 1 else (check_choice("eval", "SET", given[0], DATA_SETS), given[1])


def _guessed(format: str, source: str) -> str:
    """The data set by its release, or by the name of its folder."""
    from texturevlm_lab.evaluate.answers import DATA_SETS

    folder = Path(source).resolve().name.lower()
    found = [name for name in DATA_SETS if format == name or folder.startswith(name)]
    if not found:
        raise ValueError(f"SET must be one of {', '.join(DATA_SETS)}, and stand before DATA, got {source} alone")
    return found[0]


def _check_names(options: argparse.Namespace) -> None:
    """Before slow work begins."""
    from texturevlm.allocate import ALLOCATORS
    from texturevlm.check import check_choice
    from texturevlm.relevance import check_relevance
    from texturevlm_lab.evaluate.answers import ANSWER_METRICS
    from texturevlm_lab.evaluate.conditions import INPUT_KINDS
    from texturevlm_lab.rivals import METHODS

    if options.texts is not None and options.texts.is_dir():
        raise ValueError(f"--texts must be a file, got the folder {options.texts}")
    if len(options.metrics or ()) > 1:
        raise ValueError(f"--metrics must be one metric of answers, got {len(options.metrics)}")
    for name in options.metrics or ():
        check_choice("eval", "--metrics", name, ANSWER_METRICS)
    for name in options.allocators or ():
        ALLOCATORS.find("eval", name, argument="--allocators")
    for name in options.relevance or ():
        check_relevance("eval", name, ("model",), "--relevance")
    if options.reduce == [ALL]:
        options.reduce = list(METHODS)
    for name in options.reduce or ():
        check_choice("eval", "--reduce", name, METHODS)
    for name in options.conditions or ():
        check_choice("eval", "--conditions", name, INPUT_KINDS)


def _load(name: str | None, source: str, options: argparse.Namespace) -> "Data":
    """The questions that have answers; broken entries are left out and named."""
    from dataclasses import replace

    from texturevlm_lab.evaluate.data import load_data
    from texturevlm_lab.evaluate.hub_data import is_table, table_folder
    from texturevlm_lab.evaluate.presence import presence_questions

    split = None if options.split == "all" else options.split
    folder, limit = Path(source), options.limit
    if is_table(source):
        folder, limit = table_folder(source, options.out, split=split, limit=limit), None
    objects = name == "coco" or (name is None and folder.name.startswith("coco"))
    data = load_data(
        folder,
        format=options.format,
        split=split,
        limit=limit,
        skip_broken=True,
        answered=not objects,
    )
    return replace(data, samples=tuple(presence_questions(data.samples))) if objects else data


def _answered(name: str, data: "Data", options: argparse.Namespace) -> tuple[Any, list[str]]:
    """Load the model and ask it."""
    from texturevlm.ask import load_vlm
    from texturevlm.vlm.captured_decode import CapturedDecode
    from texturevlm_lab.evaluate import answering
    from texturevlm_lab.evaluate.answer_rows import AnswerRows
    from texturevlm_lab.evaluate.answers import ANSWER_METRICS
    from texturevlm_lab.evaluate.conditions import INPUT_KINDS, conditions
    from texturevlm_lab.evaluate.page_cache import PageCache

    _check_model(options)
    vlm = load_vlm(options.model, device=options.device, dtype=options.dtype)
    wanted = conditions(
        options.allocators or ALLOCATORS,
        _relevances(options),
        options.budgets or BUDGETS,
        options.conditions or tuple(INPUT_KINDS),
        own=vlm.adapter.has_own_input,
        reductions=options.reduce or (),
    )
    trained = vlm.adapter.trained
    how: dict[str, Any] = {
        "suffix": next(one for one in (options.suffix, trained.suffix, answering.SUFFIX) if one is not None),
        "new_tokens": options.max_new_tokens or trained.answer_tokens or answering.NEW_TOKENS,
        **({} if options.turn is None else {"turn": options.turn}),
        "place": {name: value for name in ("levels", "coordinates") if (value := getattr(options, name))},
    }
    settings = _settings(name, data, vlm, how, options)
    top = os.path.commonpath([sample.image.parent.absolute() for sample in data.samples])
    # Not the name alone: images of two folders may have one name, and intervals resample pages.
    questions = [(one.id, one.image.absolute().relative_to(top).as_posix()) for one in data.samples]
    asking = answering.Asking(
        vlm.adapter,
        ANSWER_METRICS[settings["metric"]],
        AnswerRows.open(options.out / ROWS, settings, questions, fresh=options.fresh),
        PageCache(options.pages or options.out / "pages"),
        together=name in answering.TOGETHER,
        batch=options.batch or answering.AT_ONCE,
        texts=options.texts,
        timed=not options.untimed,
        decode=CapturedDecode(vlm.adapter) if options.captured else None,
        **how,
    )
    asking.run(data.samples, wanted)
    return asking.rows, asking.failed


def _check_model(options: argparse.Namespace) -> None:
    """What the model's config says it cannot do is refused before its weights are read."""
    from texturevlm.ask.config import check_context, check_family_looks
    from texturevlm.ask.pretrained import find
    from texturevlm.check import check_choice
    from texturevlm.vlm.families import FAMILIES
    from texturevlm_lab.rivals import steps_of
    from texturevlm_lab.rivals.hooks.reducible import check_reducible

    config = find(options.model, device=options.device, dtype=options.dtype).config
    family = FAMILIES[config.model_type][0]
    check_context("eval", max(options.budgets or BUDGETS), config)
    for name in ("levels", "coordinates"):
        if (value := getattr(options, name)) is not None:
            check_choice("eval", f"--{name}", value, getattr(family, name))
    for name in options.relevance or ():
        check_family_looks("eval", 1, config, name)
    if options.captured and not family.captured:
        raise ValueError(f"--captured is for Qwen models, got {config.model_type}")
    for method in options.reduce or ():
        check_reducible("eval", config, steps_of("eval", method, 1))


def _relevances(options: argparse.Namespace) -> Sequence[str]:
    """Those asked for; by default without `words` where no OCR engine can read them."""
    if options.relevance:
        return list(options.relevance)
    from importlib.util import find_spec

    if find_spec("rapidocr") is not None or options.pages is not None:
        return RELEVANCES
    print("without relevance words, which needs the extra ocr or --pages", file=sys.stderr)
    return [name for name in RELEVANCES if name != "words"]


def _settings(name: str, data: "Data", vlm: "VLM", how: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What every answer depends on, and a file of answers is refused for if it differs."""
    import torch
    import transformers

    from texturevlm_lab.evaluate.answer_digests import questions_digest, weights_digest
    from texturevlm_lab.evaluate.answer_report import ANSWERING
    from texturevlm_lab.evaluate.answering import TIMED
    from texturevlm_lab.evaluate.answers import DATA_SETS
    from texturevlm_lab.evaluate.provenance import origin

    device, code = vlm.device, origin(ANSWERING)
    return {
        "data set": name,
        "metric": options.metrics[0] if options.metrics else DATA_SETS[name],
        "split": options.split,
        "skipped": len(data.skipped),
        "questions": questions_digest(data.samples),
        "model": Path(options.model).name if Path(options.model).exists() else options.model,
        "weights": weights_digest(vlm.model),
        "dtype": str(vlm.model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        **how,
        "timed": 0 if options.untimed else TIMED,
        **({"captured": True} if options.captured else {}),
        "code": code.digest,
        "commit": code.commit,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _publish(page: str, out: Path | None) -> None:
    print(page)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / TABLE).write_text(page, encoding="utf-8")
        print(out / TABLE, file=sys.stderr)


def _failures(failed: Sequence[str]) -> list[str]:
    return (
        [f"{len(failed)} questions could not be asked under a condition, or their image not be read."] if failed else []
    )


def report_skipped(skipped: Sequence[str]) -> None:
    for what in skipped[:NAMED]:
        print(f"skipped {what}", file=sys.stderr)
    if len(skipped) > NAMED:
        print(f"skipped {len(skipped) - NAMED} more", file=sys.stderr)
    if skipped:
        print(f"{len(skipped)} skipped in all", file=sys.stderr)
