"""The plug-in for vLLM against stubs of its interface, and against the same small model under transformers."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.ask import models
from tests.vllm_plugin import stubs
from tests.vlm import small

IMAGES = [models.picture(160, 240), models.picture(200, 130, seed=1)]
OURS = [f"texturevlm.vllm_plugin.{name}" for name in ("model", "processor")]


@pytest.fixture
def loaded(monkeypatch):
    """The model class, as vLLM finds it by the entry point."""
    monkeypatch.setattr(stubs.ModelRegistry, "models", {})
    for name, content in stubs.MODULES.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in OURS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "vllm" in project["optional-dependencies"]
    module, function = project["entry-points"]["vllm.general_plugins"]["texturevlm"].split(":")
    register = getattr(import_module(module), function)
    register()
    register()  # vLLM may call it again in the same process
    (place,) = stubs.ModelRegistry.models.values()
    module, name = place.split(":")
    yield getattr(import_module(module), name)
    for name in OURS:
        sys.modules.pop(name, None)


def served(loaded, **config):
    """A model and a processor of the plug-in over one small model of transformers."""
    network, processor = models.built("qwen3_vl")
    for name, value in config.items():
        setattr(network.config, name, value)
    mm = SimpleNamespace(mm_encoder_tp_mode="weights", is_multimodal_pruning_enabled=lambda: False)
    tower = stubs.Tower(network.model.visual)
    given = SimpleNamespace(model_config=SimpleNamespace(hf_config=network.config, multimodal_config=mm), tower=tower)
    parts = loaded.factories
    info = parts.info(network.config, processor)
    return SimpleNamespace(
        model=loaded(vllm_config=given),
        processor=parts.processor(info, parts.dummy_inputs(info)),
        network=network,
        mm=mm,
        given=given,
        hf=processor,
    )


def processed(server, images=IMAGES, **options):
    items = stubs.MultiModalDataItems(image=stubs.ImageProcessorItems(images))
    return server.processor._apply_hf_processor_main(items, {"relevance": "none", **options})


def features(found, offsets):
    """What vLLM makes of processed images: one feature each, at an offset of the prompt."""
    counts = (found["image_grid_thw"].prod(-1)).tolist()
    rows = found["pixel_values"].split(counts)
    return [
        stubs.Feature(
            "image", {"pixel_values": SimpleNamespace(data=one)}, stubs.PlaceholderRange(first, len(one) // 4)
        )
        for one, first in zip(rows, offsets)
    ]


@pytest.mark.parametrize("table", [{}, {"levels": "apart", "coordinates": "native"}])
def test_the_tower_computes_what_transformers_computes(loaded, table):
    """Places between the entries of both tables, segments of attention, DeepStack, the order of patches."""
    server = served(loaded, texturevlm=table)
    found = processed(server, budget=20)
    parts = server.model._process_image_input(found)
    assert [len(part) for part in parts] == [20, 20]
    import texturevlm as tv

    tv.attach(server.network, server.hf)
    with torch.no_grad():
        wanted = server.network.model.visual(found["pixel_values"], grid_thw=found["image_grid_thw"])
    wanted = torch.cat([wanted.pooler_output, *wanted.deepstack_features], 1)
    torch.testing.assert_close(torch.cat(parts), wanted, atol=1e-5, rtol=1e-4)
    moved = found["pixel_values"].bfloat16()  # as vLLM may send them: places do not move
    again = torch.cat(server.model._process_image_input({**found, "pixel_values": moved}))
    assert (again - wanted).abs().max() < 0.2 * wanted.abs().max()


def test_positions_are_those_of_transformers_to_the_nearest_row_and_column(loaded):
    from texturevlm.vlm import adapter_for

    server = served(loaded)
    found = processed(server, budget=20)
    ids = [8, small.VISION_START, *[small.IMAGE] * 20, small.VISION_END, 9, 9, *[small.IMAGE] * 20, 10]
    adapter = adapter_for(server.network.config, server.hf)
    exact = adapter.positions({"input_ids": torch.tensor([ids]), "pixel_values": found["pixel_values"]})[:, 0]
    positions, further = server.model.get_mrope_input_positions(ids, features(found, [2, 25])[::-1])
    assert positions.dtype == torch.long and positions.shape == (3, len(ids))
    assert 0.4 < (positions - exact).abs().max() <= 0.5
    text = [index for index, one in enumerate(ids) if one != small.IMAGE]
    assert torch.equal(positions[:, text], exact[:, text].long())
    assert further == int(exact.max() + 1) - len(ids) == int(positions[0, -1]) + 1 - len(ids)


def test_whole_tokens_have_the_places_of_the_unmodified_model(loaded):
    """All tokens of the full grid, in its order, beside an ordinary picture and a video of two frames."""
    from texturevlm.vllm_plugin.positions import prompt_positions, whole_grid

    grid = whole_grid(2, 3)
    positions, further = prompt_positions(12, [(1, grid), (8, whole_grid(1, 2))])
    assert positions[0].tolist() == [0, *[1] * 6, 4, 5, 5, 7, 8]  # one step of time per picture, then the longer side
    assert positions[1].tolist() == [0, 1, 1, 1, 2, 2, 2, 4, 5, 5, 7, 8]
    assert positions[2].tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]
    assert further == 9 - 12
    server = served(loaded)
    (feature,) = features(processed(server, IMAGES[:1], budget=4), [1])
    video = {"video_grid_thw": SimpleNamespace(data=torch.tensor([2, 2, 4]))}
    frames = stubs.Feature("video", video, stubs.PlaceholderRange(6, 6))
    ids = [8, *[small.IMAGE] * 4, 9, 9, small.VIDEO, small.VIDEO, 9, small.VIDEO, small.VIDEO, small.IMAGE]
    mixed, _ = server.model.get_mrope_input_positions(ids, [frames, feature])
    start = int(mixed[0, 5])
    assert start == 1 + 8  # the image is 160 × 240: 5 × 7.5 tokens, and round(7.5) is 8
    assert mixed[:, 5:].tolist() == [
        [start, start + 1, start + 2, start + 2, start + 4, start + 5, start + 5, start + 7],
        [start, start + 1, start + 2, start + 2, start + 4, start + 5, start + 5, start + 7],
        [start, start + 1, start + 2, start + 3, start + 4, start + 5, start + 6, start + 7],
    ]  # the mark at the end belongs to no picture: a user wrote it


def test_what_is_not_chosen_passes_unchanged(loaded):
    server = served(loaded)
    width = processed(server, budget=4)["pixel_values"].shape[1]
    plain = {"pixel_values": torch.zeros(16, width - 31), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    assert server.model._process_image_input(plain) == ("stock",)
    assert server.model._process_image_input({"image_embeds": torch.zeros(4, 96)}) == ("stock",)
    assert server.model.get_mrope_input_positions([8, 9], [])[0].tolist() == [[0, 1]] * 3
    videos = stubs.MultiModalDataItems(video=stubs.VideoItems())
    apply = server.processor._apply_hf_processor_main
    assert apply(videos, {"question": "?", "fps": 2}) == {"stock": (["video"], {"fps": 2})}
    embedded = stubs.MultiModalDataItems(image=stubs.EmbeddingItems())
    assert apply(embedded, {"budget": 3}) == {"stock": (["image"], {})}
    both = apply(stubs.MultiModalDataItems(videos, image=stubs.ImageProcessorItems(IMAGES)), {"relevance": "none"})
    assert both["stock"] == (["video"], {}) and len(both["image_grid_thw"]) == 2


def test_every_image_has_the_budget_and_the_question_decides_where_it_goes(loaded):
    server = served(loaded, texture_budget=24)
    assert processed(server)["image_grid_thw"].tolist() == [[1, 2, 48]] * 2
    first = processed(server, budget=6, relevance="scout", question="what is the total ?")
    assert first["image_grid_thw"].tolist() == [[1, 2, 12]] * 2
    alone = processed(server, IMAGES[1:], budget=6, relevance="scout", question="what is the total ?")
    assert torch.equal(
        alone["pixel_values"], first["pixel_values"][24:]
    )  # cached one by one: neighbours change nothing
    other = processed(server, budget=6, relevance="prior")
    assert not torch.equal(other["pixel_values"], first["pixel_values"])
    assert not any(set(kwargs) & {"question", "budget", "relevance"} for kwargs in server.processor.info.loaded)


def test_images_of_the_profiling_run_fill_the_most_tokens(loaded):
    server = served(loaded, texture_budget=23)
    info, dummies = server.processor.info, server.processor.dummy_inputs
    assert info.get_mm_max_tokens_per_item(100, {})["image"] == 23
    data = dummies.get_dummy_mm_data(100, {"image": 2, "video": 1}, {})
    assert data["video"] == ["a video"] and [image.size for image in data["image"]] == [(160, 160)] * 2
    assert processed(server, data["image"])["image_grid_thw"].tolist() == [[1, 2, 46]] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 25}, "texturevlm: budget must be between 1 and 24, got 25"),
        ({"budget": "6"}, "texturevlm: budget must be a whole number, got '6'"),
        ({"question": ["a"]}, "texturevlm: question must be a text, got list"),
        ({"relevance": "embedding:../../model,pca"}, "texturevlm: relevance must be one of auto, words"),
        ({"relevance": "attention"}, "texturevlm: relevance must be one of auto, words"),
        ({"allocator": "quadtre"}, "texturevlm: allocator must be one of .*quadtree.*got 'quadtre'"),
    ],
)
def test_a_bad_request_is_refused_in_the_front_end(loaded, options, said):
    server = served(loaded, texture_budget=24)
    with pytest.raises((ValueError, TypeError), match=said):
        processed(server, **options)


def test_a_server_that_would_answer_wrongly_does_not_start(loaded):
    assert served(loaded).model.get_encoder_cudagraph_config() == stubs.EncoderCudaGraphConfig([], ["pixel_values"])
    with pytest.raises(ValueError, match="levels of the checkpoint must be joint or apart under vLLM, got causal"):
        served(loaded, texturevlm={"levels": "causal"})
    with pytest.raises(ValueError, match="texture_budget must be between 1 and 4096, got 5000"):
        served(loaded, texture_budget=5000)
    server = served(loaded)
    server.mm.mm_encoder_tp_mode = "data"
    with pytest.raises(ValueError, match="mm_encoder_tp_mode must be weights"):
        loaded(vllm_config=server.given)
    server.mm.mm_encoder_tp_mode = "weights"
    server.mm.is_multimodal_pruning_enabled = lambda: True
    with pytest.raises(ValueError, match="video_pruning_rate must be 0"):
        loaded(vllm_config=server.given)


def test_the_checkpoint_says_what_a_request_does_not(loaded, tmp_path):
    """Its texturevlm.json comes before the package's defaults, and its `finer` holds; a request comes before both."""
    from texturevlm.ask.processor import TextureProcessor

    server = served(loaded)
    own = {"budget": 7, "allocator": "crops", "relevance": "prior", "turn": 90}
    TextureProcessor(server.hf, server.network.config, **own).save_pretrained(tmp_path)
    server.network.config.save_pretrained(tmp_path)
    server = served(loaded, name_or_path=str(tmp_path), texturevlm={"finer": 2})
    found = server.processor._chosen(IMAGES, {})
    chosen = TextureProcessor(server.hf, server.network.config, **own)
    wanted = chosen(images=IMAGES[:1], text=chosen.image_token)
    assert found["image_grid_thw"].tolist() == [[1, 2, 14]] * 2
    assert torch.equal(found["pixel_values"][:28], wanted["pixel_values"])
    how = chosen.config_for(1)
    assert how.finer.most == 2 and how.turn == 90 and how.allocator == "crops"
    named = server.processor._chosen(IMAGES, {"budget": 5, "allocator": "auto", "relevance": "none", "turn": 0})
    assert named["image_grid_thw"].tolist() == [[1, 2, 10]] * 2
    assert server.processor.info.get_max_image_tokens() == 7
