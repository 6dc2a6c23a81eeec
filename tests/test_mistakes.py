"""Mistakes that a newcomer makes with the public API: each error names the function, the argument and what came."""

import copy
import pickle

import pytest
import torch

import texturevlm as tv
from tests.test_cli import PHOTO, status
from texturevlm.channels import build as build_channels
from texturevlm.draw import draw
from texturevlm.rebuilding import resized
from texturevlm.relevance import find_relevance, prepare

IMAGE = torch.rand(3, 48, 64)


@pytest.fixture
def texture():
    return tv.Texture(IMAGE)


@pytest.fixture
def allocation():
    return tv.foveate((48, 64), fixation=(9, 9), budget=4)


NOT_A_TEXTURE = r"{}: texture must be a Texture \(Texture.open makes one\), got Tensor"


def test_an_image_in_place_of_a_texture_is_named(allocation):
    for name, call in {
        "prepare": lambda: prepare(IMAGE, "scout"),
        "find_relevance": lambda: find_relevance(IMAGE, relevance="none"),
        "sample": lambda: tv.sample(IMAGE, allocation),
        "rebuild": lambda: tv.rebuild(IMAGE, allocation),
        "resized": lambda: resized(IMAGE),
        "build": lambda: build_channels(IMAGE, ["edges"]),
    }.items():
        with pytest.raises(TypeError, match=NOT_A_TEXTURE.format(name)):
            call()
    with pytest.raises(TypeError, match=r"choose_tokens: texture must be a Texture or a list of them, got Tensor"):
        tv.choose_tokens(IMAGE)


def test_something_else_in_place_of_an_allocation_is_named(texture):
    for name, call in {"sample": tv.sample, "rebuild": tv.rebuild}.items():
        with pytest.raises(TypeError, match=rf"{name}: allocation must be an Allocation, got int"):
            call(texture, 3)


def test_wrong_arguments_of_choose_tokens_are_named(texture):
    with pytest.raises(TypeError, match=r"choose_tokens: allocator must be a name, or an object of its kind, got 3"):
        tv.choose_tokens(texture, allocator=3)
    with pytest.raises(TypeError, match=r"balance must be a Balance or one of even, learned, got int"):
        tv.choose_tokens(texture, relevance="none", balance=2)
    with pytest.raises(TypeError, match=r"relevance must be a scorer, got the class ScoutScorer; ScoutScorer\(…\)"):
        tv.choose_tokens(texture, relevance=tv.SCORERS["scout"])
    with pytest.raises(TypeError, match=r"WordsScorer: pages must be what read_page returns, got int"):
        tv.SCORERS["words"](3)
    with pytest.raises(ValueError, match=r"choose_tokens: budget must be at least 2, one token per image, got 1"):
        tv.choose_tokens([texture, texture], budget=1, share=True)


@pytest.mark.parametrize("call", [tv.prepare, lambda image, how: tv.place(image, "what?", how)])
def test_something_else_in_place_of_a_config_is_named(call):
    with pytest.raises(TypeError, match=r"(prepare|place): how must be a TokenConfig, got 'scout'"):
        call(IMAGE, "scout")


def test_a_size_is_not_printed_as_a_tensor():
    with pytest.raises(ValueError, match=r"size must be \(height, width\), got Tensor$"):
        tv.compile(IMAGE)
    with pytest.raises(ValueError, match=r"an array must be frames, \(N, H, W, 3\), got \(3, 48, 64\)$"):
        tv.VideoStream(IMAGE)


def test_wrong_settings_of_a_stream_are_refused_at_once():
    with pytest.raises(TypeError, match=r"VideoStream: 'bugdet' is neither a setting nor an option of auto"):
        tv.VideoStream((48, 64), bugdet=3)
    with pytest.raises(ValueError, match=r"VideoStream: relevance must be one of auto, words.*got 'nope'"):
        tv.VideoStream((48, 64), relevance="nope")


def test_foveate_says_why_a_budget_is_too_large():
    with pytest.raises(ValueError, match=r"budget must be between 1 and 1, got 273 \(at most one token per pixel\)"):
        tv.foveate((1, 1), fixation=(0, 0))
    with pytest.raises(TypeError, match=r"foveate: e0 must be a positive number, got 'a'"):
        tv.foveate((48, 64), fixation=(0, 0), budget=4, e0="a")


def test_a_url_that_is_not_for_images_is_shown_as_it_was_given():
    with pytest.raises(ValueError, match=r"must be a path or a URL of http, https or data, got s3://x.y/a.png"):
        tv.Texture("s3://x.y/a.png")


def test_mips_of_a_texture_are_made_like_those_of_an_image(texture):
    made = tv.generate_mipmaps(texture)
    assert all(torch.equal(one, other) for one, other in zip(made.levels, texture.generate_mipmaps().levels))
    assert len(made.levels) == 7


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_what_the_functions_return_can_be_copied(texture, allocation, copied):
    assert torch.equal(copied(texture).levels[0], IMAGE[None])
    assert copied(allocation).to_json() == allocation.to_json()
    assert torch.equal(copied(tv.sample(texture, allocation)).pixels, tv.sample(texture, allocation).pixels)
    prepared = prepare(texture, "scout")
    assert torch.equal(copied(prepared).find("total?").mass, prepared.find("total?").mass)


def test_the_version_is_printed(capsys):
    assert status("--version") == 0
    assert capsys.readouterr().out == f"texturevlm {tv.__version__}\n"


def test_the_command_line_offers_only_scorers_that_it_can_make(capsys):
    for name in ("embedding", "attention", "nope"):
        assert status("look", PHOTO, "--query", "total?", "--relevance", name) == 2
        assert (
            f"--relevance must be one of auto, words, scout, prior, channels, none, got '{name}'"
            in capsys.readouterr().err
        )


def test_an_unknown_device_is_one_short_line(capsys):
    assert status("allocate", PHOTO, "--device", "tpu") == 2
    assert capsys.readouterr().err == (
        "texturevlm allocate: device must be one of torch's, such as cpu, cuda or cuda:1, got 'tpu'\n"
    )


def test_wrong_parts_of_a_config_are_named(texture):
    with pytest.raises(TypeError, match=r"place: finer must be a Finer, got 2"):
        tv.place(texture, "a", tv.TokenConfig(8, relevance="none", finer=2))
    with pytest.raises(TypeError, match=r"place: options must be a mapping of the allocator's options, got 'even'"):
        tv.place(texture, "a", tv.TokenConfig(8, relevance="none", options="even"))
    with pytest.raises(TypeError, match=r"got 'overveiw' \(did you mean overview\?\)"):
        tv.place(texture, "a", tv.TokenConfig(8, relevance="none", options={"overveiw": 0.5}))


def test_a_misspelled_scorer_or_option_is_told_what_was_meant(texture, capsys):
    with pytest.raises(ValueError, match=r"relevance must be one of .*, got 'scuot' \(did you mean scout\?\)"):
        tv.choose_tokens(texture, "a", relevance="scuot")
    assert status("look", str(PHOTO), "--bugdet", "8") == 2
    assert "unrecognized arguments: --bugdet 8 (did you mean --budget?)" in capsys.readouterr().err


def test_a_placement_is_short_in_words_and_drawn_among_others(texture):
    placement = tv.place(texture, "", tv.TokenConfig(4, relevance="none"))
    assert repr(placement) == "Placement(4 tokens of 48×64, by none)"
    with pytest.raises(TypeError, match=r"draw: placements must be a sequence of Placements, .* got Placement"):
        draw(placement)
