"""Codebooks of tower features: fitting, codes, refinement, files, models."""

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.codebook import (
    Codebook,
    TokenFeatures,
    fit,
    fit_codebook,
    joined_features,
    refine,
    split_features,
    token_features,
    tower_digest,
)
from texturevlm.codebook.codebook import nearest
from texturevlm.codebook.fit import kmeans
from texturevlm_lab.evaluate.prompted import chosen_prompt

WIDTH = 12


def views(count=16, tokens=200, *, levels=(0.0, 2.0), clusters=40, noise=0.02, seed=0):
    """Features around cluster centres, which differ from level to level."""
    random = torch.Generator().manual_seed(seed)
    centres = torch.randn(len(levels), clusters, WIDTH, generator=torch.Generator().manual_seed(5))
    found = []
    for _ in range(count):
        level = torch.randint(len(levels), (tokens,), generator=random)
        centre = torch.randint(clusters, (tokens,), generator=random)
        rows = centres[level, centre] + noise * torch.randn(tokens, WIDTH, generator=random)
        found.append(TokenFeatures(rows, torch.tensor(levels)[level]))
    return found


@pytest.fixture(scope="module")
def fitted():
    return fit_codebook(views(), entries=64, stages=2, groups=2, model="toy", digest="abc")


def test_nearest_is_the_nearest():
    rows, entries = torch.randn(70, 5), torch.randn(30, 5)
    assert torch.equal(nearest(rows, entries), torch.cdist(rows, entries).argmin(1))
    assert nearest(rows[:0], entries).shape == (0,)


def test_kmeans_revives_entries_that_nobody_chose():
    rows = torch.cat([torch.zeros(90, 2), torch.eye(2) * 8, -torch.eye(2) * 8])
    found = kmeans(rows, 5, random=torch.Generator().manual_seed(1), rounds=6)
    assert float((rows - found[nearest(rows, found)]).norm(dim=1).max()) < 1e-4  # each point has an entry


def test_tokens_come_evenly_from_all_views(monkeypatch):
    monkeypatch.setattr(fit, "_TOKENS", 1000)
    found = [TokenFeatures(torch.full((200, WIDTH), float(number)), torch.zeros(200)) for number in range(32)]
    own, held = fit._gathered(iter(found), 1)
    assert own.rows[:, 0].unique(return_counts=True)[1].unique().tolist() == [25] and len(own) == 28 * 25
    assert len(held) == 4 * 25


def test_groups_that_do_not_divide_are_told_at_the_first_view():
    def one_view():
        yield from views(1)
        raise AssertionError("a second view was made")

    with pytest.raises(ValueError, match="groups must divide the 12 numbers of a feature, got 5"):
        fit_codebook(one_view(), groups=5)


def test_codes_are_small_and_lose_little(fitted):
    book, report = fitted
    other = joined_features(views(2, seed=9))
    codes = book.encode(other)
    assert codes.dtype == torch.uint16 and codes.shape == (len(other), 2, 2)
    assert book.token_bytes == 8 and book.smaller == 2 * WIDTH / 8
    lost = (book.decode(codes, other.level) - other.rows).square().mean() / other.rows.var()
    assert lost < 0.02
    assert book.error(other) == pytest.approx(float(lost), rel=0.2)
    assert report.by_stage[1] < report.by_stage[0] < 0.2
    assert report.used[0] > 0.5 and len(str(report).splitlines()) == 4


def test_a_book_per_level_is_better_where_levels_differ(fitted):
    book, report = fitted
    assert report.books == 2 and book.edges.tolist() == [0.5]
    _, one = fit_codebook(views(), entries=32, stages=1, groups=1, per_level=False)
    _, two = fit_codebook(views(), entries=32, stages=1, groups=1)
    assert one.books == 1 and two.books == 2
    assert two.by_stage[0] < 0.7 * one.by_stage[0]


def test_levels_with_few_tokens_share_a_book():
    many, few = views(15), views(1, tokens=9, levels=(5.0,))
    _, report = fit_codebook([*few, *many], entries=64, stages=1, groups=1)
    assert report.books == 2  # not three


def test_all_parts_of_a_feature_count_alike():
    loud = [TokenFeatures(one.rows * torch.tensor([100.0] * 6 + [1.0] * 6), one.level, 2) for one in views()]
    book, _ = fit_codebook(loud, entries=64, stages=2, groups=1)
    given = joined_features(loud)
    left = (book.decode(book.encode(given), given.level) - given.rows) / given.rows.std(0)
    quiet, noisy = (float(half.square().mean()) for half in left.split(6, 1)[::-1])
    assert quiet < 3 * noisy


def test_refinement_helps_the_image_it_was_made_for(fitted):
    book, _ = fitted
    (image,) = views(1, tokens=60, noise=0.3, seed=3)
    codes = book.encode(image)
    plain = book.decode(codes, image.level)
    errors = [float((plain - image.rows).square().mean())]
    for count in (1, 8, 60):
        own = refine(book, image, codes, count=count)
        assert own.bytes == 2 * count * WIDTH + 60
        errors.append(float((own.apply(plain) - image.rows).square().mean()))
    assert errors == sorted(errors, reverse=True) and errors[3] < 1e-4 < errors[1]


def test_a_saved_book_gives_the_same_codes(fitted, tmp_path):
    book, _ = fitted
    file = tmp_path / "book.safetensors"
    book.save(file)
    loaded, given = Codebook.load(file), joined_features(views(1, seed=4))
    assert (loaded.model, loaded.digest) == ("toy", "abc")
    assert torch.equal(loaded.encode(given).long(), book.encode(given).long())
    assert torch.equal(loaded.decode(loaded.encode(given), given.level), book.decode(book.encode(given), given.level))
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


def test_files_that_are_no_codebook(tmp_path):
    from safetensors.torch import save_file

    odd, broken = tmp_path / "odd.safetensors", tmp_path / "broken.safetensors"
    save_file({"weight": torch.zeros(2)}, odd)
    broken.write_bytes(b"nothing")
    for file in (odd, broken):
        with pytest.raises(ValueError, match=r"Codebook.load: path must be a file from .*, got .*safetensors"):
            Codebook.load(file)
    with pytest.raises(FileNotFoundError, match=r"Codebook.load: no such file"):
        Codebook.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "more, message",
    [
        ({"entries": 70000}, "entries must be between 16 and 65536, got 70000"),
        ({"entries": 4096}, "4 tokens for each of 4096 entries, got 2800 in all"),
        ({"stages": 0}, "stages must be at least 1"),
        ({"groups": 5}, "groups must divide the 12 numbers of a feature, got 5"),
    ],
)
def test_what_fit_refuses(more, message):
    with pytest.raises(ValueError, match=message):
        fit_codebook(views(), **{"groups": 1} | more)


def test_too_few_views_and_wrong_codes(fitted):
    book, _ = fitted
    with pytest.raises(ValueError, match="views must be at least 8, got 3"):
        fit_codebook(views(3), groups=1)
    with pytest.raises(ValueError, match="codes must be below 64, got 64"):
        book.decode(torch.full((1, 2, 2), 64), torch.zeros(1))
    with pytest.raises(ValueError, match=r"rows must be \(N, 12\)"):
        book.encode(TokenFeatures(torch.zeros(2, 5), torch.zeros(2)))


@pytest.fixture(scope="module")
def adapter():
    return vlm.adapt(*small.built(small.BUILDERS, "qwen3_vl"))


def test_a_model_answers_from_codes(adapter):
    texture = small.picture(256, 256)
    prompts = [
        chosen_prompt(adapter, "what ?", [texture], [small.chosen(texture, adapter.side, 40, seed=seed)])
        for seed in range(8)
    ]
    seen = token_features(adapter, [view for one in prompts for view in one.views])
    assert seen[0].rows.shape == (40, 3 * 32)  # the embedding and two of DeepStack
    book, _ = fit_codebook(seen, entries=64, stages=3, groups=3, digest=tower_digest(adapter))
    book.check_model("ask", adapter)
    rows = book.decode(book.encode(seen[0]), seen[0].level)
    whole, coarse = split_features(adapter, [seen[0].rows]), split_features(adapter, [rows])
    for one, other in zip(whole, adapter.embed(prompts[0].views)):
        torch.testing.assert_close(one[0], other[0])
    inputs = adapter.assemble([prompts[0].ids], prompts[0].views)
    with torch.no_grad():
        expected = adapter.model(**inputs).logits[0, -1].softmax(-1)
        with vlm.StoredFeatures(coarse).run(adapter):
            found = adapter.model(**inputs).logits[0, -1].softmax(-1)
        with vlm.StoredFeatures([[torch.zeros_like(one) for one in part] for part in coarse]).run(adapter):
            nothing = adapter.model(**inputs).logits[0, -1].softmax(-1)
    near, far = (float((one - expected).abs().sum()) for one in (found, nothing))
    assert near < 0.5 * far


def test_a_book_of_another_model_is_refused(adapter, fitted):
    with pytest.raises(ValueError, match=r"ask: codebook must be fitted to this model, .*one of toy \(weights abc\)"):
        fitted[0].check_model("ask", adapter)


def test_the_digest_is_of_the_tower_in_any_precision(adapter):
    own = tower_digest(adapter)
    other = vlm.adapt(*small.BUILDERS["qwen3_vl"]())
    assert tower_digest(other) == own
    other.model.bfloat16()
    assert tower_digest(other) == own
    with torch.no_grad():
        other.language_of(other.model).layers[0].mlp.up_proj.weight.zero_()
    assert tower_digest(other) == own
    with torch.no_grad():
        other.tower.blocks[0].mlp.linear_fc1.weight.zero_()
    assert tower_digest(other) != own
