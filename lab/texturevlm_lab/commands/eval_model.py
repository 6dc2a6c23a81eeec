"""texturevlm eval --model: a model answers the questions of a data set; or the table of an earlier run again.

Questions about videos are answered by multiple choice.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from texturevlm.allocate import ALLOCATORS as KNOWN_ALLOCATORS
from texturevlm.ask import VLM, load_vlm
from texturevlm.ask.config import check_context, check_family_looks
from texturevlm.ask.pretrained import find
from texturevlm.check import check_choice
from texturevlm.commands import arguments
from texturevlm.relevance import check_relevance
from texturevlm.vlm import FAMILIES, CapturedDecode
from texturevlm_lab.commands.eval import nothing_left, report_skipped
from texturevlm_lab.evaluate import answering, video_answers
from texturevlm_lab.evaluate.answer_digests import questions_digest, weights_digest
from texturevlm_lab.evaluate.answer_report import ANSWERING, answers_page
from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.answers import ANSWER_METRICS, DATA_SETS
from texturevlm_lab.evaluate.conditions import INPUT_KINDS, conditions
from texturevlm_lab.evaluate.data import Data, NothingLeft, load_data
from texturevlm_lab.evaluate.hub_data import is_table, table_folder
from texturevlm_lab.evaluate.own_input import has_own_input
from texturevlm_lab.evaluate.page_cache import PageCache
from texturevlm_lab.evaluate.presence import presence_questions
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.evaluate.video_data import load_video_questions
from texturevlm_lab.rivals import METHODS, steps_of
from texturevlm_lab.rivals.hooks.reducible import check_reducible

ROWS, TABLE = "answers.jsonl", "answers.md"
VIDEO_ROWS, VIDEO_TABLE = "video-answers.jsonl", "video-answers.md"
BUDGETS, VIDEO_BUDGETS = (32, 64, 96, 273), (96, 273)
RELEVANCES = ("none", "scout", "words")
ALLOCATORS = ("auto", "resize")
ALL = "all"  # reductions


def eval_model(options: argparse.Namespace) -> int:
    """Run, or make a table again."""
    if options.rows is not None:
        if options.model is not None or options.data:
            raise ValueError(f"--from must stand alone, without DATA and --model, got {options.model or options.data}")
        if not Path(options.rows).is_file():
            raise FileNotFoundError(f"--from must be the {ROWS} of a run, got {options.rows}, which is no file")
        _publish(answers_page(AnswerRows.read(Path(options.rows))), options.out)
        return 0
    if len(options.data) not in (1, 2):
        raise ValueError(f"[SET] DATA must be one or two arguments, got {len(options.data)}")
    *named, source = options.data
    name = check_choice("eval", "SET", named[0], DATA_SETS) if named else None
    if options.out is None:
        raise ValueError("--out must be a folder for rows and table, got none")
    _check_names(options)
    try:
        data = _load(name, source, options)
    except NothingLeft as error:
        return nothing_left(str(error), error.skipped)
    asking = _answered(name or _guessed(data.format, source), data, options)
    lost = f"{len(asking.failed)} questions could not be asked under a condition, or their image not be read."
    _publish(answers_page(asking.rows, notes=[lost] if asking.failed else []), options.out)
    report_skipped([*data.skipped, *asking.failed])
    return 0 if any(asking.rows.rows.values()) else 1


def _guessed(format: str, source: str) -> str:
    """The data set by its release, or by the name of its folder."""
    folder = Path(source).resolve().name.lower()
    found = [name for name in DATA_SETS if format == name or folder.startswith(name)]
    if not found:
        raise ValueError(f"SET must be one of {', '.join(DATA_SETS)}, and stand before DATA, got {source} alone")
    return found[0]


def _check_names(options: argparse.Namespace) -> None:
    """Refuse names that nobody knows before slow work begins."""
    if options.texts is not None and options.texts.is_dir():
        raise ValueError(f"--texts must be a file, got the folder {options.texts}")
    if len(options.metrics or ()) > 1:
        raise ValueError(f"--metrics must be one metric of answers, got {len(options.metrics)}")
    if options.reduce == [ALL]:
        options.reduce = list(METHODS)
    for name in options.allocators or ():
        KNOWN_ALLOCATORS.find("eval", name, argument="--allocators")
    for name in options.relevance or ():
        check_relevance("eval", name, ("model",), "--relevance")
    known: dict[str, Any] = {"metrics": ANSWER_METRICS, "reduce": METHODS, "conditions": INPUT_KINDS}
    for option, names in known.items():
        for name in getattr(options, option) or ():
            check_choice("eval", f"--{option}", name, names)


def _load(name: str | None, source: str, options: argparse.Namespace) -> Data:
    """The questions that have answers; broken entries are left out and named."""
    split = None if options.split == "all" else options.split
    folder, limit = Path(source), options.limit
    if is_table(source):
        folder, limit = table_folder(source, options.out, split=split, limit=limit), None
    objects = name == "coco" or (name is None and folder.name.startswith("coco"))
    how: Any = {"format": options.format, "split": split, "limit": limit, "skip_broken": True}
    data = load_data(folder, answered=not objects, **how)
    return replace(data, samples=tuple(presence_questions(data.samples))) if objects else data


def _answered(name: str, data: Data, options: argparse.Namespace) -> answering.Asking:
    """Load the model and ask it."""
    _check_model(options)
    vlm = load_vlm(options.model, device=options.device, dtype=options.dtype)
    wanted = conditions(
        options.allocators or ALLOCATORS,
        _relevances(options),
        options.budgets or BUDGETS,
        options.conditions or tuple(INPUT_KINDS),
        own=has_own_input(vlm.adapter),
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
    return asking


def _check_model(options: argparse.Namespace) -> None:
    """What the model's config says it cannot do is refused before its weights are read."""
    config = find(options.model, device=options.device, dtype=options.dtype).config
    family = FAMILIES[config.model_type]
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
    if importlib.util.find_spec("rapidocr") is not None or options.pages is not None:
        return RELEVANCES
    print("without relevance words, which needs the extra ocr or --pages", file=sys.stderr)
    return [name for name in RELEVANCES if name != "words"]


def _settings(name: str, data: Data, vlm: VLM, how: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """What every answer depends on, and a file of answers is refused for if it differs."""
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
        "timed": 0 if options.untimed else answering.TIMED,
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


def eval_videos(options: argparse.Namespace) -> int:
    """Ask about videos, or go on with a run; the table is written to --out."""
    name, folder = options.data
    if options.model is None or options.out is None:
        raise ValueError(f"--model and --out must be given for videos, got {options.model} and {options.out}")
    shown = options.conditions or video_answers.CONDITIONS[:2]
    for condition in shown:
        check_choice("eval", "--conditions", condition, video_answers.CONDITIONS)
    device = arguments.device_of(options)
    split = {"eval": "val"}.get(options.split, options.split)
    how: Any = {"limit": options.limit, "skip_broken": options.skip_broken}
    questions, skipped = load_video_questions(folder, format=name, split=split, **how)
    for what in skipped:
        print(f"skipped {what}", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    with arguments.announced(f"loading {options.model}"):
        model = load_vlm(options.model, device=device, dtype=options.dtype)
    budgets, out = options.budgets or VIDEO_BUDGETS, options.out / VIDEO_ROWS
    rows = video_answers.answer_videos(model, questions, budgets=budgets, conditions=shown, out=out)
    counted = f"{len(questions)} questions, {len(skipped)} skipped."
    page = f"# {name}: {options.model}\n\n{counted}\n\n{video_answers.accuracy_table(rows)}\n"
    (options.out / VIDEO_TABLE).write_text(page)
    print(page)
    return 0
