"""The variations of the reader's recipe change what they say, and the report compares them."""

import torch

from texturevlm_lab.studies import reader_ablation
from texturevlm_lab.studies.reader_ablation import VARIATIONS, levels_joint, question_last
from texturevlm_lab.train.reader.alphabet import ANSWER, END, PAD, START, STOP, encode_text
from texturevlm_lab.train.reader.forward import Prompts, answer_starts, attention_groups


def prompts(*questions: str) -> Prompts:
    """Prompts with 4 visual tokens, of which the last is not used, and an answer of one letter."""
    asked = [encode_text(question) for question in questions]
    rows = [[*ids, START, STOP, ANSWER, *encode_text("y"), END] for ids in asked]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    count = len(questions)
    segment = torch.tensor([[2, 2, 0, 0]] * count)
    shape = torch.zeros(count, 16, 2)
    numbers = (torch.tensor([len(ids) + 1 for ids in asked]), torch.tensor([len(row) for row in rows]))
    return Prompts(
        torch.zeros(count, 4, 32, 32),
        shape,
        shape,
        segment,
        torch.zeros(count, 4, 2),
        torch.ones(count),
        torch.full((count,), 3),
        ids,
        *numbers,
    )


def test_the_question_moves_behind_the_image_and_the_answer_stays():
    given = prompts("Who", "Where?")
    moved = question_last(given)
    first = [START, STOP, *encode_text("Who"), ANSWER, *encode_text("y"), END]
    assert moved.ids[0, : len(first)].tolist() == first and moved.before.tolist() == [1, 1]
    assert torch.equal(answer_starts(moved.ids), answer_starts(given.ids))
    assert moved.ids[1].tolist() == [START, STOP, *encode_text("Where?"), ANSWER, *encode_text("y"), END]


def test_levels_attend_together_except_for_tokens_that_are_not_used():
    given = prompts("Who")
    seen = attention_groups(levels_joint(given).segment, given.used)[0, 0, ::4, ::4]
    assert seen[:3, :3].all() and not seen[:3, 3].any()
    assert not attention_groups(given.segment, given.used)[0, 0, 0, 8]


def test_the_report_compares_with_the_first_of_each_kind():
    def run(loss):
        return {
            "losses": {
                "real_few": ([loss, loss + 1], [0, 1]),
                "real_line": ([loss], [0]),
                "resize views": ([loss], [0]),
                "chosen views": ([loss / 2, loss / 4], [0, 1]),
            },
            "steps": 9,
        }

    runs = {"recipe": run(1.0), "joint": run(1.25), "lines": run(2.0), "lines_adamw": run(2.5)}
    record = {"runs": runs, "seconds": 60.0, "device": "cpu", "at_once": 4, "command": "c", "torch": "2", "python": "3"}
    text = reader_ablation.report(record)
    assert "| the recipe | 9 | | | | 1.500 | | | 1.000 | 0.375 | 0.500 |" in text
    assert f"| {VARIATIONS['joint'].what} | 9 | | | | +0.250 (+0.250 to +0.250) | | | +0.250 (+0.250 to" in text
    assert "| +0.125 (+0.125 to +0.125) |\n" in text  # what choosing gains on the page that both kinds of views show
    assert f"| {VARIATIONS['lines_adamw'].what} | 9 | | +0.500 (+0.500 to +0.500) |" in text
    assert "From nothing" not in reader_ablation.report({**record, "runs": {"recipe": run(1.0)}})
