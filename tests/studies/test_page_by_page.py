"""Studies that ask page by page go on where a run was cut, and refuse what another run left."""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import asking as module
from texturevlm_lab.studies.asking import page_by_page

STUDY = "reader_settings"
asked = []


def counted(samples, name, threads):
    asked.append(samples[0].image.name)
    return [f"{name} {one.id}" for one in samples]


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    asked.clear()
    return argparse.Namespace(out=tmp_path, at_once=1)


def questions(*pages):
    return {"forms": [Sample(f"{page}{number}", Path(page), (4, 4), "Q?") for page in pages for number in (1, 2)]}


def test_each_page_comes_with_its_own_questions(options):
    found = list(page_by_page(STUDY, options, questions("a", "b"), counted, "m"))
    assert [(name, [one.id for one in own], said) for name, own, said in found] == [
        ("forms", ["a1", "a2"], ["m a1", "m a2"]),
        ("forms", ["b1", "b2"], ["m b1", "m b2"]),
    ]
    assert not list(options.out.iterdir())


def test_a_cut_run_goes_on(options):
    run = page_by_page(STUDY, options, questions("a", "b", "c"), counted, "m")
    next(run)
    run.close()
    with (options.out / "reader-settings.jsonl").open("a") as file:
        file.write('{"page": ["forms", "b"], "questio')  # the kill came here
    asked.clear()
    found = list(page_by_page(STUDY, options, questions("a", "b", "c"), counted, "m"))
    assert asked == ["b", "c"] and [said[0] for *_, said in found] == ["m a1", "m b1", "m c1"]


@pytest.mark.parametrize("other", ["settings", "questions", "pages", "code"])
def test_what_another_run_left_is_refused(options, monkeypatch, other):
    run = page_by_page(STUDY, options, questions("a", "b"), counted, "m")
    next(run)
    run.close()
    if other == "code":
        monkeypatch.setattr(module, "code_digest", lambda name: "0" * 16)
    own = {"questions": {"forms": questions("a")["forms"][:1]}, "pages": questions("c")}.get(other, questions("a", "b"))
    with pytest.raises(ValueError, match=r"reader-settings\.jsonl must be of this run, got one of another"):
        list(page_by_page(STUDY, options, own, counted, "n" if other == "settings" else "m"))
