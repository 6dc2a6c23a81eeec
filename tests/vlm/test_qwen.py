"""What towers with rotary positions can do beyond test_families: levels, crops, videos, any size, second turns."""

from dataclasses import replace

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import still_views

QUESTION = "what is the total ?"


FAMILIES = {**small.BUILDERS, "qwen2_vl": small.qwen2_vl, "glm4v": small.glm4v}


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    return FAMILIES[request.param]()


def stock_inputs(adapter, inputs, images, *, videos=()):
    """The same prompt with the processor's own pixels and grids, and nothing of ours."""
    found = {name: inputs[name] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
    pictures = [(image, "pixel_values", "image_grid_thw") for image in images]
    pictures += [(video, "pixel_values_videos", "video_grid_thw") for video in videos]
    for frames, pixels, grid in pictures:
        rows, grid_thw = stock_rows(adapter, frames)
        found[pixels] = torch.cat([found[pixels], rows]) if pixels in found else rows
        found[grid] = torch.cat([found[grid], grid_thw]) if grid in found else grid_thw
    return found


def stock_rows(adapter, frames):
    """(F, 3, H, W) → rows as the processor lays them out; a still is repeated."""
    if len(frames) == 1:
        images = adapter.processor.image_processor
        made = images([frames[0].numpy()], do_rescale=False, input_data_format="channels_first", return_tensors="pt")
        return made["pixel_values"], made["image_grid_thw"]
    patch = adapter.side // 2
    mean, std = (
        torch.tensor(getattr(adapter.processor.image_processor, name)).view(3, 1, 1)
        for name in ("image_mean", "image_std")
    )
    count, _, height, width = frames.shape
    rows, columns = height // patch, width // patch
    cut = ((frames - mean) / std).reshape(count // 2, 2, 3, rows // 2, 2, patch, columns // 2, 2, patch)
    made = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(count // 2 * rows * columns, -1)
    return made, torch.tensor([[count // 2, rows, columns]])


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def difference(one, other):
    return float((one - other).detach().abs().max())


def test_the_order_of_the_slots_does_not_matter(adapter):
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    shuffled = allocation.each(lambda column: column[:, torch.randperm(12, generator=torch.Generator().manual_seed(2))])
    ours, other = (logits(adapter.model, adapter.prepare(QUESTION, texture, one)) for one in (allocation, shuffled))
    assert difference(ours, other) < 1e-5


@pytest.mark.parametrize("control", ["no hook", "rotary", "taps", "height", "floored"])
def test_negative_controls_move_the_logits(adapter, control, monkeypatch):
    if control == "taps" and not hasattr(adapter.tower, "pos_embed"):
        pytest.skip("no position table")
    texture = small.picture(5 * adapter.side, 7 * adapter.side)
    mixed = small.chosen(texture, adapter.side, 20)
    inputs = adapter.prepare(QUESTION, texture, mixed)
    right = logits(adapter.model, inputs)
    given = adapter.tower_arguments

    def wrong(patch, extent, begins):
        if control == "rotary":
            return given(patch, extent, begins) | {"position_ids": patch * 1.1}
        if control == "floored":
            return given(patch.floor(), extent, begins)
        found = given(patch, extent, begins)
        return found | {name: value.flip(0) for name, value in found.items() if name.endswith("indices")}

    if control == "no hook":
        adapter.restore()
        inputs["pixel_values"] = inputs["pixel_values"][:, : adapter.row_width]
    elif control == "height":
        visual = inputs["input_ids"][0] == small.IMAGE
        inputs["position_ids"] = adapter.positions(inputs)
        inputs["position_ids"][1, 0, visual] += 1
    else:
        monkeypatch.setattr(adapter, "tower_arguments", wrong)
    assert difference(right, logits(adapter.model, inputs)) > 1e-2


def test_a_coarse_token_is_a_coarse_picture_at_the_centre_of_its_area(adapter):
    """The full grid of level 1 differs from the stock model on the half-size image only by its positions."""
    texture = small.picture(4 * adapter.side, 6 * adapter.side)
    coarse = small.full_grid(texture, adapter.side, scale=2.0)
    fine = adapter.prepare(QUESTION, texture, coarse)
    visual = fine["input_ids"][0] == small.IMAGE
    start = int(visual.nonzero()[0])
    rows = torch.tensor([0.5, 0.5, 0.5, 2.5, 2.5, 2.5]) + start
    columns = torch.tensor([0.5, 2.5, 4.5] * 2) + start
    found = adapter.positions(fine)[:, 0]
    assert torch.equal(found[1, visual], rows)
    assert torch.equal(found[2, visual], columns)
    after = found[:, int(visual.nonzero()[-1]) + 1]
    assert after.tolist() == [start + 6] * 3  # as far as the stock model's six columns of tokens
    native = adapter.encode(texture, coarse, coordinates="native")
    half = Texture.open(texture.levels[1])
    stock = adapter.encode(half, small.full_grid(half, adapter.side))
    assert difference(native.embeds, stock.embeds) < 1e-4
    assert difference(adapter.encode(texture, coarse).embeds, stock.embeds) > 1e-2


def test_levels_apart_do_not_see_one_another(adapter):
    texture = small.picture(4 * adapter.side, 4 * adapter.side)
    coarse, fine = small.full_grid(texture, adapter.side, scale=2.0), small.full_grid(texture, adapter.side)
    both = joined(coarse, fine)
    apart, together = (adapter.encode(texture, both, levels=levels).embeds for levels in ("apart", "joint"))
    alone = adapter.encode(texture, coarse).embeds
    assert difference(apart[:, :4], alone) < 1e-5
    assert difference(apart[:, 4:], adapter.encode(texture, fine).embeds) < 1e-5
    assert difference(together[:, :4], alone) > 1e-3


def joined(*allocations):
    columns = {
        name: torch.cat([getattr(one, name) for one in allocations], 1)
        for name in ("centre", "ddx", "ddy", "score", "valid", "source")
    }
    return Allocation(**columns, size=allocations[0].size, patch=allocations[0].patch)


def test_crops_are_ordinary_images(adapter):
    """An overview and a rectangle: the same as the stock model on a small image and a crop."""
    side = adapter.side
    texture = small.picture(4 * side, 6 * side)
    boxes = torch.tensor([[[x * side, y * side, (x + 1) * side, (y + 1) * side] for y in (1, 2) for x in (2, 3, 4)]])
    detail = Allocation.of_boxes(boxes.float(), texture.size, side)
    both = joined(detail, small.full_grid(texture, side, scale=2.0))
    inputs = adapter.prepare(QUESTION, texture, both, coordinates="crops")
    ours = logits(adapter.model, inputs)
    adapter.restore()
    crop = texture.levels[0][..., side : 3 * side, 2 * side : 5 * side]
    stock = logits(adapter.model, stock_inputs(adapter, inputs, [texture.levels[1], crop]))
    assert difference(ours, stock) < 1e-4


def test_crops_that_are_no_rectangles_are_refused(adapter):
    texture = small.picture(4 * adapter.side, 4 * adapter.side)
    hole = small.full_grid(texture, adapter.side).each(lambda column: column[:, [0, 1, 4]])
    with pytest.raises(ValueError, match="fill rectangles, got 3 tokens"):
        adapter.prepare(QUESTION, texture, hole, coordinates="crops")


def test_video(adapter):
    """The full grid of every second frame is what the stock model makes of a video."""
    if not adapter.videos:
        pytest.skip("no videos")
    side = adapter.side
    texture = small.picture(2 * side, 3 * side, batch=4)
    allocation = small.full_grid(texture, side, frames=[0, 2])
    inputs = adapter.prepare(QUESTION, texture, allocation, fps=2.0)
    ours = logits(adapter.model, inputs)
    found = stock_inputs(adapter, inputs, [], videos=[texture.levels[0]])
    if "qwen2_5" in adapter.model.config.model_type:
        found["second_per_grid_ts"] = torch.tensor([1.0])
    adapter.restore()
    assert difference(ours, logits(adapter.model, found)) < 1e-5


def test_moments_of_a_video_may_have_different_tokens(adapter):
    if not adapter.videos:
        pytest.skip("no videos")
    side = adapter.side
    texture = small.picture(2 * side, 3 * side, batch=4)
    allocation = small.full_grid(texture, side, frames=[0, 1, 3]).each(lambda column: column[:, [0, 1, 2, 7, 13, 16]])
    inputs = adapter.prepare(QUESTION, texture, allocation)
    assert int((inputs["input_ids"] == small.VIDEO).sum()) == 6
    changed = texture.levels[0].clone()
    changed[3] = torch.rand_like(changed[3])
    other = adapter.prepare(QUESTION, Texture.open(changed).mipmapped(), allocation)
    moved = (inputs["pixel_values_videos"] != other["pixel_values_videos"]).any(-1)
    assert moved.tolist() == [False] * 16 + [True] * 8  # frame 1 shows itself and frame 2
    assert torch.isfinite(logits(adapter.model, inputs)).all()


def test_one_texture_with_an_image_a_prompt(adapter):
    texture = small.picture(3 * adapter.side, 2 * adapter.side, batch=2)
    allocation = small.chosen(texture, adapter.side, 5)
    together = logits(adapter.model, adapter.prepare([QUESTION] * 2, texture, allocation))
    second = Texture.open(texture.levels[0][1:]).mipmapped()
    alone = adapter.prepare(QUESTION, second, allocation.each(lambda column: column[1:]))
    assert difference(together[1:], logits(adapter.model, alone)) < 1e-5


def test_unused_slots_are_packed_away(adapter):
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    padded = joined(
        allocation, allocation.each(lambda column: torch.zeros_like(column[:, :3]))
    )  # a budget larger than the grid
    assert padded.budget == 15 and int(padded.valid.sum()) == 12
    ours, other = (logits(adapter.model, adapter.prepare(QUESTION, texture, one)) for one in (allocation, padded))
    assert torch.equal(ours, other)
    tokens = adapter.encode(texture, padded)
    assert tokens.embeds.shape[:2] == (1, 15)
    assert tokens.weight[0].tolist() == [1.0] * 12 + [0.0] * 3
    assert not tokens.embeds[0, 12:].any()
    assert difference(tokens.embeds[:, :12], adapter.encode(texture, allocation).embeds) == 0
    image = texture.levels[0].clone().requires_grad_()
    adapter.encode(Texture((image,)).mipmapped(), padded).embeds.sum().backward()
    assert torch.isfinite(image.grad).all() and image.grad.any()
    adapter.model.zero_grad()


def test_encode_gives_the_embeddings_that_the_language_model_gets(adapter):
    texture = small.picture(3 * adapter.side, 4 * adapter.side)
    tokens = adapter.encode(texture, small.full_grid(texture, adapter.side))
    rows, grid = stock_rows(adapter, texture.levels[0])
    adapter.restore()
    with torch.no_grad():
        out = adapter.tower(rows, grid_thw=grid)
    assert difference(tokens.embeds[0], out.pooler_output) < 1e-5
    assert tokens.position[0, 5].tolist() == [1.5 * adapter.side, 1.5 * adapter.side]
    assert tokens.size[0, 5].tolist() == [adapter.side, adapter.side]
    assert len(tokens.deepstack) == len(getattr(out, "deepstack_features", []))
    for ours, stock in zip(tokens.deepstack, getattr(out, "deepstack_features", [])):
        assert difference(ours[0], stock) < 1e-5


@pytest.mark.parametrize("size", [(3, 5), (1, 1), (1, 400), (37, 90)])
def test_images_of_any_size(adapter, size):
    """Smaller than a token, thin, or no multiple of it."""
    texture = small.picture(*size)
    height, width = size
    boxes = torch.tensor([[[0.0, 0.0, width, height], [0.0, 0.0, width / 2, height]]])
    allocation = Allocation.of_boxes(boxes, size, adapter.side)
    inputs = adapter.prepare(QUESTION, texture, allocation)
    assert torch.isfinite(logits(adapter.model, inputs)).all()


def test_positions_count_on_the_grid_that_the_processor_would_use(adapter):
    """With resizing on, a small image is enlarged by the stock processor: its one token lies over many cells."""
    images = adapter.processor.image_processor
    least = (4 * adapter.side) ** 2 * (2 if adapter.config.model_type == "glm4v" else 1)  # GLM counts two frames
    images.do_resize, images.size = True, {"shortest_edge": least, "longest_edge": 10**6}
    try:
        texture = small.picture(adapter.side, adapter.side)
        inputs = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    finally:
        images.do_resize = False
    visual = int((inputs["input_ids"][0] == small.IMAGE).nonzero()[0])
    found = adapter.positions(inputs)[:, 0]
    assert (found[1:, visual] - visual).tolist() == [1.5, 1.5]
    assert float(found[0, visual + 1] - visual) == 4


def test_a_position_names_the_same_pixel_before_and_after(adapter):
    """Grounding: the language model's rows and columns × the token side are pixels, whatever was chosen."""
    texture = small.picture(6 * adapter.side, 8 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 12)
    inputs = adapter.prepare(QUESTION, texture, allocation)
    visual = inputs["input_ids"][0] == small.IMAGE
    start = int(visual.nonzero()[0])
    named = (adapter.positions(inputs)[[2, 1], 0][:, visual] - start + 0.5).T * adapter.side
    centres = allocation.centre[0]
    nearest = torch.cdist(named, centres).amin(1)
    assert float(nearest.max()) < 1e-3
    everything = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    text = [adapter.positions(one)[0, 0, one["input_ids"][0] != small.IMAGE] for one in (inputs, everything)]
    assert torch.equal(text[0], text[1].to(text[0]))  # the text stands where it would with every token


def test_training_steps_lower_the_loss():
    model, processor = small.qwen3_vl()
    adapter = vlm.adapt(model.train(), processor)
    texture = small.picture(64, 96)
    inputs = adapter.prepare(QUESTION, texture, small.chosen(texture, 32, 4))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_bfloat16_keeps_exact_positions(built):
    """Positions ride in the rows of pixel_values, which transformers casts to the model's precision."""
    model, processor = built
    adapter = vlm.adapt(model, processor)
    texture = small.picture(4 * adapter.side, 300 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 8)
    seen = []
    given = adapter.tower_arguments
    adapter.tower_arguments = lambda *columns: seen.append(columns) or given(*columns)
    try:
        inputs = adapter.prepare(QUESTION, texture, allocation)
        model.bfloat16()
        result = logits(model, inputs)
        full = small.full_grid(small.picture(2 * adapter.side, 2 * adapter.side), adapter.side)
        assert adapter.encode(small.picture(2 * adapter.side, 2 * adapter.side), full).embeds.dtype == torch.bfloat16
    finally:
        model.float()
        adapter.restore()
    assert result.dtype == torch.bfloat16 and torch.isfinite(result).all()
    exact = adapter.places(views_of(adapter, texture, allocation), "fine").patch.flatten(0, 1)
    assert torch.equal(seen[0][0], exact)


def views_of(adapter, texture, allocation):
    return still_views("test", PromptImage(texture, allocation), adapter.side)[0]


def test_messages_and_texts_with_placeholders(adapter):
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    wanted = adapter.prepare(QUESTION, texture, allocation)
    for prompt in (
        [{"role": "user", "content": content}],
        f"user : <|vision_start|><|image_pad|><|vision_end|> {QUESTION} :",
    ):
        assert torch.equal(adapter.prepare(prompt, texture, allocation)["input_ids"], wanted["input_ids"])


def test_complaints(adapter, built):
    side = adapter.side
    texture = small.picture(2 * side, 2 * side)
    allocation = small.full_grid(texture, side)
    turned = replace(allocation, ddx=allocation.ddx + torch.tensor([0, 0.1]))
    with pytest.raises(ValueError, match=r"footprints with perpendicular axes.*got 4 of those"):
        adapter.prepare(QUESTION, texture, turned)
    with pytest.raises(ValueError, match=f"patches of {side} for this model, got 16"):
        adapter.prepare(QUESTION, texture, small.full_grid(texture, 16))
    with pytest.raises(ValueError, match=r"one placeholder per picture \(1\), got 2"):
        adapter.prepare("<|image_pad|> <|image_pad|> ?", texture, allocation)
    with pytest.raises(ValueError, match="must have 4 placeholders, one per visual token, got 3"):
        adapter.assemble([[small.IMAGE] * 3], [views_of(adapter, texture, allocation)])
    with pytest.raises(ValueError, match="levels must be one of joint, apart"):
        adapter.prepare(QUESTION, texture, allocation, levels="alone")
    with pytest.raises(ValueError, match="every image a token, got none for image 0"):
        adapter.prepare(QUESTION, texture, allocation.each(torch.zeros_like))
    with pytest.raises(ValueError, match=r"model must be one of qwen3_vl, .*qwen2_5_vl.* got Linear"):
        vlm.adapt(torch.nn.Linear(1, 1))
    template, adapter.tokenizer.chat_template = adapter.tokenizer.chat_template, None
    try:
        with pytest.raises(ValueError, match="must have a chat template"):
            adapter.prepare(QUESTION, texture, allocation)
    finally:
        adapter.tokenizer.chat_template = template


def test_a_second_turn_goes_on_from_the_cache(adapter):
    """`generate` with a cache counts on from `rope_deltas`, which the model itself keeps; preparing leaves it alone."""
    texture = small.picture(5 * adapter.side, 6 * adapter.side)
    inputs = adapter.prepare(QUESTION, texture, small.chosen(texture, adapter.side, 7))
    options = {"max_new_tokens": 3, "do_sample": False, "suppress_tokens": [small.IMAGE, small.VIDEO]}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    first = adapter.model.generate(**inputs, **options)
    adapter.prepare(QUESTION, small.picture(64, 200), small.chosen(small.picture(64, 200), adapter.side, 3))
    more = torch.tensor([[small.IDS["and"], small.IDS["there"], small.IDS["?"]]])
    ids = torch.cat([first.sequences, more], 1)
    second = adapter.model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=first.past_key_values, **options
    )
    added = ids.shape[1] - inputs["input_ids"].shape[1]
    inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros(1, added).int()], 1)
    whole = adapter.model.generate(**inputs | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **options)
    assert difference(torch.stack(second.logits), torch.stack(whole.logits)) < 1e-4


def test_chosen_tokens_beside_an_ordinary_video_are_refused(adapter):
    """The positions of the video would be those of text."""
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    inputs = adapter.prepare(QUESTION, texture, small.chosen(texture, adapter.side, 4))
    video = torch.zeros(8, adapter.row_width)
    with pytest.raises(ValueError, match="must both be of chosen tokens, or neither, got pixel_values_videos"):
        adapter.model(**inputs, pixel_values_videos=video, video_grid_thw=torch.tensor([[1, 2, 4]]))
