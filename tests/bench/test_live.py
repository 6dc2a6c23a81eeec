"""The benchmark of a model that watches, small, on the CPU."""

from texturevlm_lab.bench.report import measure


def test_a_quick_run():
    report = measure("live", "cpu", quick=True)
    frames, question, *parts = report.rows
    assert [part.work.split(" tokens ")[-1] for part in parts] == [
        "frame → patches",
        "through the tower",
        "through the language model",
    ]
    assert "frame → cache" in frames.work and "question → first token" in question.work
    assert frames.timing.median > 0 and question.timing.median > 0
    said = " ".join(report.notes)
    assert "moments were evicted" in said and "frames a second" in said
