"""The reader: batches give the stock model's numbers, questions and views are what they say, and it learns."""

import csv
import math
import threading
import time
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from texturevlm.placement import choose_tokens
from texturevlm.types import Texture
from texturevlm.vlm.places import bilinear_taps
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import still_views
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit, rate_at
from texturevlm_lab.train.muon import Muon, orthogonalised
from texturevlm_lab.train.reader import task
from texturevlm_lab.train.reader.alphabet import (
    ANSWER,
    END,
    IMAGE,
    PAD,
    START,
    STOP,
    decode_ids,
    encode_text,
    make_tokenizer,
    training_ids,
)
from texturevlm_lab.train.reader.chosen import ChosenViews, choose_views, save_views
from texturevlm_lab.train.reader.forward import BatchedReader, Prompts, answer_loss, answers, positions
from texturevlm_lab.train.reader.heads import PlaceHead, token_shares
from texturevlm_lab.train.reader.network import make_config, make_network
from texturevlm_lab.train.reader.pages import ReaderPage, rendered, spoiled, turned
from texturevlm_lab.train.reader.pool import Pool, Workers, sample_pages, with_levels
from texturevlm_lab.train.reader.questions import (
    ReaderQuestion,
    labelled_questions,
    lines_of,
    place_questions,
    table_questions,
    top_question,
)
from texturevlm_lab.train.reader.samples import CROPS, ILLEGIBLE, SHAPES, page_samples
from texturevlm_lab.train.reader.task import ReaderTask, error_rate, split_fonts
from texturevlm_lab.train.reader.views import AHEAD, VIEW_KINDS, PageInk, as_view, draw_view, legible_height
from texturevlm_lab.train.render import Vocabulary

TOKENS, COARSE = 10, 6


@pytest.fixture(scope="module")
def fonts():
    return [Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")]


@pytest.fixture(scope="module")
def page(fonts):
    for seed in range(20):
        found = rendered(np.random.default_rng(seed), fonts, Vocabulary())
        if len(found.words) > 30 and len(found.questions) > 2:
            return found
    raise AssertionError


def small_network():
    """The reader's network with fewer and narrower layers, two of them with DeepStack."""
    config = make_config()
    small = {"hidden_size": 64, "intermediate_size": 96}
    vision = {"depth": 3, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0, 1]}
    text = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    for part, changed in ((config.vision_config, vision), (config.text_config, text)):
        for name, value in {**small, **changed}.items():
            setattr(part, name, value)
    torch.manual_seed(0)
    return make_network(config)


@pytest.fixture(scope="module")
def network():
    made = small_network().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(2)  # narrow layers start weaker
    return made


@pytest.fixture
def prompts():
    torch.manual_seed(1)
    centre, step = torch.rand(2, TOKENS, 2) * 300, torch.ones(2, TOKENS, 2)
    step[:, :COARSE] = 2.0
    patch, extent, token, after = positions(centre, step, torch.tensor([[320.0, 416.0]] * 2))
    ids = torch.tensor([[*encode_text("Who"), START, STOP, ANSWER, *encode_text("me"), END]] * 2)
    pixels = torch.rand(2, TOKENS, 32, 32) * 2 - 1
    before, length = torch.tensor([4, 4]), torch.tensor([9, 9])
    count = torch.tensor([TOKENS, TOKENS])
    return Prompts(pixels, patch, extent, step[..., 0].log2().long(), token, after, count, ids, before, length)


def stock_logits(network, prompts, number):
    """The logits of one prompt by transformers' own classes, through public arguments."""
    pixels, ids = prompts.pixels[number], prompts.ids[number : number + 1]
    rows = pixels.view(TOKENS, 1, 1, 2, 16, 2, 16).expand(-1, 3, 2, -1, -1, -1, -1)
    rows = rows.permute(0, 3, 5, 1, 2, 4, 6).reshape(4 * TOKENS, -1)
    indices, weights = bilinear_taps(prompts.patch[number], prompts.extent[number], 16)
    seen = network.model.visual(
        rows,
        grid_thw=torch.tensor([[1, 2, 2 * TOKENS]]),
        position_ids=prompts.patch[number],
        cu_seqlens=torch.tensor([0, 4 * COARSE, 4 * TOKENS], dtype=torch.int32),
        interp_indices=indices,
        interp_weights=weights,
    )
    whole = torch.cat([ids[:, :4], torch.full((1, TOKENS), IMAGE), ids[:, 4:]], 1)
    visual, place = whole == IMAGE, torch.arange(whole.shape[1]).float().expand(4, 1, -1).clone()
    place[1, 0, 4 : 4 + TOKENS] = 4
    place[2:, 0, 4 : 4 + TOKENS] = 4 + prompts.token[number].T
    place[1:, 0, 4 + TOKENS :] = 4 + prompts.after[number] + torch.arange(whole.shape[1] - 4 - TOKENS)
    embeds = network.model.language_model.embed_tokens(whole).clone()
    embeds[visual] = seen.pooler_output
    out = network.model.language_model(
        inputs_embeds=embeds,
        position_ids=place,
        visual_pos_masks=visual,
        deepstack_visual_embeds=seen.deepstack_features,
        attention_mask=torch.ones_like(whole),
    )
    return network.lm_head(out.last_hidden_state)[~visual]


def test_batches_give_the_logits_of_the_stock_model(network, prompts):
    with torch.no_grad():
        logits = BatchedReader(network)(prompts).logits
        for number in range(2):
            assert (stock_logits(network, prompts, number) - logits[number]).abs().max() < 1e-5
        joint = BatchedReader(network)(prompts._replace(segment=None)).logits
    assert (joint - logits).abs().max() > 1e-3  # segments matter


def test_it_learns_an_answer_and_then_says_it(prompts):
    network = small_network()
    reader, optimiser = BatchedReader(network), torch.optim.AdamW(network.parameters(), lr=4e-3)
    for _ in range(24):
        loss = answer_loss(reader(prompts).logits, prompts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.5
    hidden = prompts._replace(ids=prompts.ids.clone())
    hidden.ids[:, 6:] = 0
    assert [decode_ids(row) for row in answers(reader, hidden, 5).tolist()] == ["me", "me"]


def test_the_tokenizer_of_transformers_has_the_same_ids():
    tokenizer = make_tokenizer()
    text = "Total: “12,066.31”\nété"
    assert tokenizer(text).input_ids == encode_text(text)
    assert tokenizer.decode(encode_text("a  b , c")) == "a  b , c"
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]}]
    spelled = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    ids, before = training_ids("Who?", "me", 40)
    assert tokenizer(spelled).input_ids == [*ids[:before], IMAGE, *ids[before : before + 2]]
    assert training_ids("Who?", "me", 8) is None
    before = [*message, {"role": "assistant", "content": "me"}, {"role": "user", "content": "Whom?"}]
    spelled = tokenizer.apply_chat_template(before, add_generation_prompt=True, tokenize=False)
    assert spelled == "Whom?<|vision_start|><|image_pad|><|vision_end|><|answer|>"  # it learned one question at a time
    assert tokenizer.apply_chat_template(before[:2], tokenize=False).endswith("<|vision_end|><|answer|>me<|end|>")


def test_answers_stand_in_their_boxes(page):
    for question in page.questions:
        held = [text for text, box in page.words if box in question.boxes]
        assert sorted(held) == sorted(question.answer.split())


def test_questions_about_places():
    words = [
        ("Total", (10, 10, 50, 20)),
        ("9.50", (90, 10, 120, 20)),
        ("Tax", (10, 22, 40, 32)),
        ("1.0", (90, 22, 110, 32)),
    ]
    asked = list(place_questions(words, lines_of(words), np.random.default_rng(0), 60))
    found = {(one.kind, one.text.split(" ")[-1].strip("?.").lower(), one.answer) for one in asked}
    assert ("row", "total", "9.50") in found and ("below", "total", "Tax") in found
    assert not any(kind == "row" and name == "9.50" for kind, name, _ in found)


@pytest.mark.parametrize("kind", [kind for kind in VIEW_KINDS if kind != AHEAD])
def test_views_have_the_budget_and_lie_on_the_page(page, kind):
    rng, words = np.random.default_rng(3), np.array([box for _, box in page.words], np.float32)
    question = page.questions[0]
    made = 0
    for _ in range(4):
        geometry = PageInk(page.image, rng)
        view = draw_view(geometry, 64, question.boxes, question.boxes, words, rng, {kind: 1.0})
        if view is None:
            continue
        made += 1
        assert 16 <= len(view.tokens) <= 64 and view.kind == kind
        assert (view.tokens[:, 2:] * view.magnified > 0.99).all()  # nothing finer than a pixel
        if kind == "oracle":
            assert legible_height(view.tokens, question.boxes) > 0
    assert made


def test_tokens_stand_in_the_order_in_which_a_model_gets_them(page):
    """An order by relevance would point at the answer, and no model gets such an order."""
    texture = Texture.open(page.image)
    allocation = choose_tokens(texture, "", budget=64, patch=32, allocator="layers", relevance="none")
    boxes = allocation.boxes[0][allocation.valid[0]].numpy()
    found = as_view(np.random.default_rng(0).permutation(boxes), 1.0, "")
    (wanted,) = still_views("test", PromptImage(Texture.open(page.image).mipmapped(), allocation), 32, levels="apart")
    assert np.abs(found.tokens[:, :2] - wanted.centre.numpy()).max() < 0.01
    begins = np.flatnonzero(np.diff(found.segment, prepend=99))
    assert begins.tolist() == wanted.begins.nonzero()[:, 0].tolist() and len(begins) > 1


def test_unused_tokens_change_nothing(network, prompts):
    few = prompts._replace(used=torch.tensor([7, TOKENS]))
    other = few._replace(pixels=few.pixels.clone())
    other.pixels[0, 7:] = 0
    with torch.no_grad():
        one, two = (BatchedReader(network)(these).logits for these in (few, other))
        all_used = BatchedReader(network)(prompts).logits
    assert torch.equal(one, two) and (one[0] - all_used[0]).abs().max() > 1e-3
    assert (one[1] - all_used[1]).abs().max() < 1e-5


def test_views_made_ahead_are_those_of_the_chooser(page, tmp_path):
    image, rng = Image.fromarray(page.image).convert("RGB"), np.random.default_rng(1)
    views = choose_views(image, page.image.shape[1] // 2, ["What is the date?", "total"], rng, each=1)
    assert [view.question for view in views] == [0, 1] and all(view.magnified >= 2 for view in views)
    save_views([[], views], tmp_path)
    kept = ChosenViews(tmp_path).of(1, 1.0)
    assert all(np.abs(one.boxes - two.boxes).max() <= 1 / 32 for one, two in zip(kept, views))
    (larger, _), none = ChosenViews(tmp_path).of(1, 2.0), ChosenViews(tmp_path).of(0, 1.0)
    assert np.allclose(larger.boxes, 2 * kept[0].boxes) and larger.magnified * 2 == kept[0].magnified and not none


def test_the_place_of_an_answer_is_where_tokens_show_it():
    centre = torch.tensor([[[16.0, 16.0], [48.0, 16.0], [32.0, 32.0], [16.0, 16.0]]])
    step = torch.tensor(
        [[[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [1.0, 1.0]]]
    )  # two fine tokens, a coarse one, an unused one
    boxes = torch.tensor([[[40.0, 8.0, 56.0, 24.0], [0.0, 0.0, 0.0, 0.0]]])
    shares = token_shares(centre, step, torch.tensor([3]), boxes)[0]
    fine, coarse = 256 / 1024, 256 / 4096
    torch.testing.assert_close(shares, torch.tensor([0.0, fine, coarse, 0.0]) / (fine + coarse))
    assert token_shares(centre, step, torch.tensor([1]), boxes).sum() == 0  # no token that is used shows it


def test_the_place_head_learns_from_prompts_that_have_a_place():
    torch.manual_seed(0)
    head, visual = PlaceHead(16), torch.randn(4, 6, 16)
    wanted = functional.one_hot(torch.tensor([[1, 0], [4, 1], [2, 5], [0, 3]]), 6).float()
    wanted[3, 0] = wanted[1, 1] = 0  # nowhere
    answer = visual[torch.arange(4), wanted[:, 0].argmax(1)].clone()
    assert head(visual, answer, wanted).item() == pytest.approx(math.log(6))  # it knows nothing, and disturbs nothing
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.02)
    for _ in range(60):
        loss = head(visual, answer, wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.1
    same = head(torch.cat([visual[:3], visual[3:] * 9]), answer, wanted)
    torch.testing.assert_close(same, head(visual, answer, wanted))


def test_what_is_seen_in_the_middle_belongs_to_its_token(network, prompts):
    """A visual token that changes, changes its own state; what the answer follows, changes with the question."""
    with torch.no_grad():
        reader = BatchedReader(network)
        before = reader(prompts)
        pixels = prompts.pixels.clone()
        last = int(prompts.used[0]) - 1
        pixels[0, last] = -pixels[0, last]
        alone = torch.arange(TOKENS).flip(0).expand(len(pixels), -1)  # no token sees another in the tower
        apart = reader(prompts._replace(segment=alone))
        after = reader(prompts._replace(segment=alone, pixels=pixels))
        moved = (after.visual - apart.visual).abs().amax(-1)[0]
    assert moved[last] > 1e-3 and moved[:last].max() < 1e-5
    assert (after.answer - apart.answer).abs()[0].max() > 1e-4 and torch.equal(after.answer[1:], apart.answer[1:])
    assert before.visual.shape == (*prompts.pixels.shape[:2], network.config.text_config.hidden_size)


def test_an_answer_that_cannot_be_read_is_not_asked_for(page):
    page = page._replace(type_share=0.5)  # small print
    boxes, told = {question.answer: question.boxes for question in page.questions}, [0, 0]
    for seed in range(8):
        for name, listed in page_samples(page, np.random.default_rng(seed)).items():
            assert len(listed) <= SHAPES[name].per_page
            for one in listed:
                said = decode_ids(one.ids[one.before + 2 :])
                if said in boxes and name not in CROPS:
                    assert legible_height(one.tokens, boxes[said]) * page.type_share >= 5, (name, said)
                told[said == ILLEGIBLE] += 1
    assert min(told) > 1


def test_boxes_taller_than_their_type_need_finer_tokens(page):
    """OCR's boxes hold the whole line: the same samples over a taller box show smaller type."""
    shares = (1.0, 0.6)
    crops = [page_samples(page._replace(type_share=share), np.random.default_rng(2))["line"] for share in shares]
    heights = [min((one.keep[3] - one.keep[1]) / one.tokens[0, 3] for one in listed) for listed in crops]
    assert heights[1] > 1.3 * heights[0]


def test_nothing_is_read_on_a_turned_page(page):
    over = turned(page, across=True, down=True)
    assert np.array_equal(over.image[::-1, ::-1], page.image)
    (_, (x0, y0, x1, y1)), (_, moved) = page.words[0], over.words[0]
    height, width = page.image.shape
    assert moved == (width - x1, height - y1, width - x0, height - y0)
    samples = page_samples(over, np.random.default_rng(2))
    said = [decode_ids(one.ids[one.before + 2 :]) for listed in samples.values() for one in listed]
    assert samples["line"] and samples["many"] and set(said) == {ILLEGIBLE}


def test_long_answers_do_not_drown_short_ones(prompts):
    logits = torch.zeros(*prompts.ids.shape, 128)
    wrong = [logits.clone(), logits.clone()]
    lengths = (prompts.length - prompts.before - 2).tolist()
    for number, one in enumerate(wrong):
        one[number, :, PAD] = 9  # a wrong id, in the answer of one prompt alone
    added = [float(answer_loss(one, prompts) - answer_loss(logits, prompts)) for one in wrong]
    assert added[0] / added[1] == pytest.approx((lengths[0] / lengths[1]) ** 0.5, rel=1e-4)


def test_the_pool_shows_what_the_page_shows(page):
    image = torch.full((1, 1100, 850), 200, dtype=torch.uint8)
    height, width = page.image.shape
    image[0, :height, :width] = torch.tensor(page.image)
    keep, paper = torch.tensor([[-1e4, -1e4, 1e4, 1e4]]), torch.tensor([9.0])
    given = (torch.tensor([0]), torch.tensor([[[80.0, 112.0]]]), torch.ones(1, 1, 2), torch.zeros(1, 1))
    seen = sample_pages(with_levels(image), *given, keep, paper)
    assert torch.equal(seen[0, 0], image[0, 96:128, 64:96].float())
    keep[0, 2] = 80
    hidden = sample_pages(with_levels(image), *given, keep, paper)[0, 0]
    assert torch.equal(hidden[:, :16], seen[0, 0, :, :16]) and (hidden[:, 16:] == 9).all()


def test_a_batch_from_the_pool_reads_its_page(page):
    pool = Pool(2, "cpu")
    pool.add([(page, page_samples(page, np.random.default_rng(2)))])
    batch = pool.draw("line", 3)
    assert batch.prompts.pixels.shape == (3, 16, 32, 32) and batch.prompts.segment is None
    assert batch.prompts.pixels.std() > 0.01
    assert (batch.prompts.length > batch.prompts.before + 2).all()


@pytest.mark.parametrize("name", ["line", "few"])
def test_a_page_without_samples_of_a_shape_teaches_nothing_of_it(network, page, name):
    """Batches may hold its slots, where most of the pages have none."""
    pool, reader = Pool(2, "cpu"), BatchedReader(network)
    pool.add([(page, page_samples(page, np.random.default_rng(2)) | {name: []})])
    batch = pool.draw(name, 2)
    assert batch.prompts.length.tolist() == [0, 0]
    found = reader(batch.prompts)
    assert found.logits.isfinite().all() and answer_loss(found.logits, batch.prompts) == 0
    wanted = token_shares(batch.centre, batch.step, batch.prompts.used, batch.boxes)
    assert not wanted.any()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_no_page_is_replaced_while_a_batch_reads_it(page, device):
    samples = page_samples(page, np.random.default_rng(2))
    pages = [(page._replace(image=np.full_like(page.image, shade)), samples) for shade in (50, 200)]
    pool, drawn = Pool(1, device), threading.Event()
    pool.add(pages[:1])

    def replace():
        stream = torch.cuda.Stream() if device == "cuda" else None
        with torch.cuda.stream(stream):
            while not drawn.is_set():
                pool.add(pages)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        where = torch.zeros(4, dtype=torch.long, device=device)
        shades = [pool.batch("few", where, where).prompts.pixels for _ in range(12)]
    finally:
        drawn.set()
        thread.join()
    assert pool.seen > 2
    assert all(one.amin() == one.amax() for one in shades)


@pytest.mark.parametrize(("seeds", "step", "same"), [((0, 1), 0, True), ((0, 2), 0, False), ((0, 1), 7, False)])
def test_another_stage_and_a_resumed_run_see_other_pages(seeds, step, same):
    """seeds: of the run and of the weights that it begins with"""

    made = []

    def make(rng):
        made.append(rng.integers(200))
        if len(made) > 3:
            time.sleep(60)  # the pool is full, and the process is about to be ended
        image = np.full((64, 64), made[-1], np.uint8)
        return ReaderPage(image, [], []), {name: [] for name in SHAPES}

    def shades(seeds, step):
        workers, pool = Workers(make, 1, seeds), Pool(3, "cpu")
        try:
            workers.feed(pool, step)
            until = time.monotonic() + 20
            while pool.filled < 3 and time.monotonic() < until:
                time.sleep(0.01)
        finally:
            workers.close()
        assert pool.seen == 3
        return pool.pages[:, 0].tolist()

    assert (shades((0, 1), 0) == shades(seeds, step)) == same


def test_muon_orthogonalises_and_resumes():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(2, 40, 24)).float())
    assert values.min() > 0.6 and values.max() < 1.3
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimiser = Muon(module, lr=0.1)
    module(torch.randn(3, 4)).square().sum().backward()
    optimiser.step()
    again = Muon(module, lr=0.1)
    again.load_state_dict(optimiser.state_dict())
    assert torch.equal(again.state[module[0].weight]["moment"], optimiser.state[module[0].weight]["moment"])


def test_the_schedule_follows_the_time_where_it_is_short():
    falls = {"steps": 100, "rate": 1.0, "schedule": "linear"}
    assert rate_at(50, **falls) == 0.5 and rate_at(50, spent=0.75, **falls) == 0.25
    assert rate_at(50, spent=0.1, **falls) == 0.5 and rate_at(50, spent=1.2, **falls) == 0


def test_scores():
    assert error_rate([("ab", "abc"), ("x", "x")]) == 0.25


@pytest.mark.gpu
def test_steps_of_every_shape_are_captured(fonts, tmp_path):
    settings = ReaderTask.Settings(
        fonts=fonts[0].parent, lines=0, blocks=0, batch=0.02, workers=2, room=16, first=8, judged=1, compiled=False
    )
    config = FitConfig(steps=60, device="cuda", captured=True, precision="bfloat16", optimiser="muon", log_every=1)
    task = ReaderTask(settings, device="cuda")
    try:
        fit(task, config, tmp_path)
    finally:
        task.workers.close()
    losses = [float(row["answer"]) for row in csv.DictReader((tmp_path / "log.csv").open())]
    assert len(losses) == 60 and sum(losses[-10:]) < sum(losses[:10])


def test_a_label_with_a_colon_asks_for_what_stands_right_of_it():
    def row(text: str, x: float, y: float) -> list[tuple[str, tuple[float, float, float, float]]]:
        words, found = text.split(), []
        for word in words:
            found.append((word, (x, y, x + 8 * len(word), y + 10)))
            x += 8 * len(word) + 5
        return found

    words = [
        *row("Ship To: Jane Doe", 10, 10),
        *row("Account No:", 10, 40),
        *row("A-17", 200, 40),  # beyond a gap, in the same row
        *row("Date:", 10, 70),  # twice on the page, once with a value that is not asked for
        *row("May 5", 80, 70),
        *row("Date:", 10, 100),
        *row("10:30", 80, 100),
        *row("Too far:", 10, 130),
        *row("away", 700, 130),
        *row("Known: 12", 10, 160),  # asked for already
        *row("no label here", 10, 190),
    ]
    asked = [ReaderQuestion("funsd", "KNOWN", "12", (words[-4][1],))]
    found = labelled_questions(words, asked, np.random.default_rng(0))
    assert [one.answer for one in found] == ["Jane Doe", "A-17"]
    assert [len(one.named) for one in found] == [2, 2]
    assert "ship to" in found[0].text.lower() and found[0].boxes == (words[2][1], words[3][1])


def test_the_numbers_of_a_table_are_asked_by_row_and_column():
    rows = (("", "1991", "Growth"), ("Sales", "1,204", "3.5%"), ("Net profit", "77", "(1%)"), ("Staff", "310", ""))
    words = [
        (part, (x + 40.0 * place, 20.0 * y, x + 40.0 * place + 36, 20.0 * y + 10))
        for y, row in enumerate(rows)
        for x, text in zip((0, 200, 300), row)
        for place, part in enumerate(text.split())
    ]
    known = next(box for text, box in words if text == "77")
    found = table_questions(words, [ReaderQuestion("docvqa_half", "?", "77", (known,))], np.random.default_rng(0))
    assert [(one.kind, one.answer) for one in found] == [
        ("cell", "1,204"),
        ("cell", "3.5%"),
        ("cell", "(1%)"),
        ("figure", "310"),
    ]
    assert "net profit" in found[2].text.lower() and "growth" in found[2].text.lower()
    assert len(found[2].named) == 3 and "staff" in found[3].text.lower()


def test_a_number_without_a_head_or_beside_text_is_not_asked():
    words = [
        ("Sales", (0.0, 0.0, 36.0, 10.0)),
        ("12", (200.0, 0.0, 236.0, 10.0)),
        ("13", (300.0, 0.0, 336.0, 10.0)),
        ("Fax", (0.0, 40.0, 36.0, 50.0)),
        ("14", (200.0, 40.0, 236.0, 50.0)),
        ("none", (300.0, 40.0, 336.0, 50.0)),
    ]
    assert table_questions(words, [], np.random.default_rng(0)) == []


def test_views_of_one_kind_alone_leave_out_those_made_ahead(page):
    made = choose_views(Image.fromarray(page.image), page.image.shape[1], ["date"], np.random.default_rng(1), each=4)
    ahead = page._replace(views=[view._replace(magnified=3.0) for view in made])
    for kinds, wanted in (({"fit": 1.0}, False), ({"fit": 1.0, AHEAD: 1e9}, True)):
        samples = page_samples(ahead, np.random.default_rng(2), kinds=kinds)
        found = [one.magnified == 3 for name in ("few", "many") for one in samples[name]]
        assert found and any(found) == wanted


def test_held_out_fonts_are_the_same_whatever_else_is_installed(monkeypatch):
    monkeypatch.setattr(task, "family_name", lambda path: path.stem[:4])
    fonts = [Path(f"{family:04d}-{style}.ttf") for family in range(40) for style in ("Bold", "Light")]
    seen, unseen = split_fonts(fonts)
    assert set(seen).isdisjoint(unseen) and set(seen) | set(unseen) == set(fonts) and 2 <= len(unseen) < len(seen)
    assert {path.stem[:4] for path in seen}.isdisjoint(path.stem[:4] for path in unseen)
    fewer = [unseen[0], *seen[:5]]
    assert split_fonts(fewer) == (seen[:5], unseen[:1])
    assert split_fonts(seen) == (seen, seen)


def test_nothing_is_to_be_read_on_a_spoiled_page(page):
    for seed in range(8):
        found = spoiled(page, np.random.default_rng(seed))
        assert found.image.shape == page.image.shape and found.image.dtype == np.uint8
        assert (found.image != page.image).any() and set(found.words) <= set(page.words)
        samples = page_samples(found, np.random.default_rng(seed))
        said = {decode_ids(one.ids[one.ids.index(ANSWER) + 1 :]) for own in samples.values() for one in own}
        assert said == {decode_ids(encode_text(ILLEGIBLE))}


def test_letters_are_turned_and_digits_stay_where_a_label_cannot_be_read():
    words = [
        ("Total", (10, 10, 60, 24)),
        ("12.50", (90, 10, 130, 24)),
        ("at", (10, 30, 30, 44)),
        ("7b", (90, 30, 110, 44)),
    ]
    image = np.random.default_rng(0).integers(0, 256, (60, 150)).astype(np.uint8)
    asked = [
        ReaderQuestion("figure", "Total?", "12.50", (words[1][1],), (words[0][1],)),
        ReaderQuestion("total", "How much?", "12.50", (words[1][1],)),
    ]
    made = (spoiled(ReaderPage(image, words, asked), np.random.default_rng(seed)) for seed in range(40))
    found = next(one for one in made if len(one.words) < len(words))
    assert [text for text, _ in found.words] == ["Total", "at", "7b"]
    assert [one.kind for one in found.questions] == ["figure"]
    assert np.array_equal(found.image[10:24, 90:130], image[10:24, 90:130])
    assert np.array_equal(found.image[10:24, 10:60], image[10:24, 10:60][::-1, ::-1])


def test_without_a_question_the_topmost_line_is_read(page):
    lines = lines_of(page.words)
    found = top_question(page.words, lines)
    top = min(box[1] for _, box in page.words)
    assert found.text == "" and min(box[1] for box in found.boxes) == top
    assert found.answer in {" ".join(page.words[number][0] for number in line) for line in lines}
