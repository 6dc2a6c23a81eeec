"""DenseEncoder and Projection on tiny models made on the spot: what a patch's feature is, and every way to go wrong."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from tests.conftest import worst
from texturevlm.channels.embedding import DenseEncoder, Projection, embed, patch_grid
from texturevlm.image import to_tensor

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'texturevlm[hf]'")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="needs safetensors: pip install 'texturevlm[hf]'")

TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION = {"image_size": 64, "patch_size": 8, **TOWER}
ENDS = {"bos_token_id": 10, "eos_token_id": 11, "pad_token_id": 11}
TEXT = {"vocab_size": 12, "max_position_embeddings": 16, **ENDS, **TOWER}


def tiny_clip(folder, seed=0):
    """A CLIP of 8×8 patches of 8 pixels and 24 numbers a feature, that knows the letters a to e."""
    torch.manual_seed(seed)
    config = transformers.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=24)
    return _saved(transformers.CLIPModel(config), transformers.CLIPImageProcessorPil(), folder)


def tiny_siglip(folder, seed=0):
    torch.manual_seed(seed)
    config = transformers.SiglipConfig(vision_config=VISION, text_config={"projection_size": 32, **TEXT})
    network = transformers.SiglipModel(config)
    for bias in ("in_proj_bias", "out_proj.bias"):  # zero when made, not when trained
        torch.nn.init.normal_(network.vision_model.head.attention.get_parameter(bias))
    return _saved(network, transformers.SiglipImageProcessorPil(), folder)


def _saved(network, processor, folder):
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    letters = {letter: index for index, letter in enumerate("abcde")}
    ends = {f"{letter}</w>": index + 5 for letter, index in letters.items()}
    special = {"<|startoftext|>": 10, "<|endoftext|>": 11}
    transformers.CLIPTokenizer(vocab={**letters, **ends, **special}, merges=[]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {"clip": tiny_clip(root / "clip"), "siglip": tiny_siglip(root / "siglip")}


@pytest.fixture(scope="module", params=["clip", "siglip"])
def encoder(request, folders):
    return DenseEncoder.load(folders[request.param])


def projection_for(encoder, width):
    basis = torch.linalg.qr(torch.randn(width, 16)).Q.T.contiguous()
    return Projection(torch.randn(width) / 10, basis, 1.7, 0.6, encoder.model, encoder.digest)


def as_grid(tokens, rows, columns):
    return functional.normalize(tokens, dim=2).mT.unflatten(2, (rows, columns))


@torch.no_grad()
def test_a_clip_feature_is_the_value_path_of_the_last_block(folders):
    encoder = DenseEncoder.load(folders["clip"])
    image = torch.rand(2, 3, 40, 80)
    rows, columns = patch_grid(40, 80, 64)
    vision = encoder.network.vision_model
    tokens = vision.pre_layrnorm(
        vision.embeddings(encoder._pixels(image, rows, columns), interpolate_pos_encoding=True)
    )
    for layer in vision.encoder.layers[:2]:
        tokens = layer(tokens, None)
    last = vision.encoder.layers[2]
    patches = tokens[:, 1:]
    patches = patches + last.self_attn.out_proj(last.self_attn.v_proj(last.layer_norm1(patches)))
    patches = patches + last.mlp(last.layer_norm2(patches))
    wanted = encoder.network.visual_projection(vision.post_layernorm(patches))
    assert worst(encoder.encode(image), as_grid(wanted, rows, columns)) < 1e-5


@torch.no_grad()
def test_a_siglip_feature_is_the_value_path_of_the_pooling_head(folders):
    encoder = DenseEncoder.load(folders["siglip"])
    image = torch.rand(2, 3, 40, 80)
    rows, columns = patch_grid(40, 80, 64)
    vision = encoder.network.vision_model
    tokens = vision(encoder._pixels(image, rows, columns), interpolate_pos_encoding=True).last_hidden_state
    attention = vision.head.attention
    value = functional.linear(tokens, attention.in_proj_weight[64:], attention.in_proj_bias[64:])
    pooled = attention.out_proj(value)
    wanted = pooled + vision.head.mlp(vision.head.layernorm(pooled))
    assert worst(encoder.encode(image), as_grid(wanted, rows, columns)) < 1e-5


@torch.no_grad()
def test_an_image_of_one_patch_compares_with_text_as_the_model_itself_does(folders):
    encoder = DenseEncoder.load(folders["siglip"])
    image = torch.rand(1, 3, 8, 8)
    ids = encoder._tokenizer("abc", padding="max_length", max_length=16, return_tensors="pt")["input_ids"]
    pixels = encoder._pixels(image, 1, 1)
    out = encoder.network(input_ids=ids, pixel_values=pixels, interpolate_pos_encoding=True)
    wanted = (out.text_embeds @ out.image_embeds.T)[0, 0]
    assert worst(encoder.encode(image, patches=1)[0, :, 0, 0] @ encoder.text("abc"), wanted) < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_text_is_what_the_model_makes_of_it(folders, kind):
    encoder = DenseEncoder.load(folders[kind])
    ids = [10, 0, 6, 2 + 5, 11] if kind == "clip" else [10, 0, 6, 2 + 5, *[11] * 12]
    wanted = encoder.network.get_text_features(input_ids=torch.tensor([ids])).pooler_output[0]
    assert worst(encoder.text("ab C"), functional.normalize(wanted, dim=0)) < 1e-6
    assert encoder.text("abcde " * 40).shape == wanted.shape  # longer than the context: cut off
    with pytest.raises(ValueError, match=r"DenseEncoder.text: question must be some text, got ' '"):
        encoder.text(" ")


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (700, 2), (64, 64), (37, 53), (100, 400), (240, 320)])
def test_any_size_and_aspect(encoder, size):
    features = encoder.encode(torch.rand(1, 3, *size))
    rows, columns = features.shape[2:]
    assert rows * columns <= encoder.patches == 64
    assert worst(features.norm(dim=1), torch.ones(1, rows, columns)) < 1e-5
    if max(size) <= 4 * min(size):
        assert rows * columns > 0.75 * 64
        assert 0.8 < (rows / columns) / (size[0] / size[1]) < 1.25


def test_patches_ask_for_a_finer_or_coarser_grid(encoder):
    assert encoder.encode(torch.rand(1, 3, 60, 60), patches=200).shape[2:] == (14, 14)
    assert encoder.encode(torch.rand(1, 3, 60, 60), patches=1).shape[2:] == (1, 1)
    with pytest.raises(ValueError, match=r"DenseEncoder.encode: patches must be at least 1, got 0"):
        encoder.encode(torch.rand(1, 3, 60, 60), patches=0)


def test_a_batch_is_its_images_and_grey_is_three_equal_colours(encoder):
    images = torch.rand(3, 1, 50, 70)
    together = encoder.encode(images)
    for index in range(3):
        assert worst(together[index], encoder.encode(images[index : index + 1].expand(-1, 3, -1, -1))[0]) < 1e-5


@pytest.mark.parametrize("size", [(64, 64), (150, 150)])
def test_pixels_are_those_of_the_models_own_processor(encoder, folders, size):
    picture = np.random.default_rng(0).integers(0, 256, (size[0] // 5, size[1] // 5, 3), dtype=np.uint8)
    picture = Image.fromarray(picture).resize(size[::-1], Image.Resampling.BICUBIC)
    from transformers.models.auto import image_processing_auto  # the name in `transformers` itself wants torchvision

    processor = image_processing_auto.AutoImageProcessor.from_pretrained(encoder.model, backend="pil")
    wanted = processor(picture, size={"height": 64, "width": 64}, do_center_crop=False, return_tensors="pt")
    # Pillow rounds to whole numbers between its two passes and after them.
    assert worst(encoder._pixels(to_tensor(picture), 8, 8), wanted["pixel_values"]) < 2.1 / 255 / encoder.std.min()


def test_another_precision_or_folder_is_the_same_model(encoder, tmp_path):
    copied = shutil.copytree(encoder.model, tmp_path / "copied")
    half = DenseEncoder.load(copied, dtype=torch.bfloat16)
    assert half.digest == encoder.digest
    image = torch.rand(1, 3, 64, 64)
    assert half.encode(image).dtype == torch.float32
    assert worst(half.encode(image), encoder.encode(image)) < 0.1


def test_another_model_has_another_digest(folders, tmp_path):
    assert DenseEncoder.load(tiny_clip(tmp_path, seed=1)).digest != DenseEncoder.load(folders["clip"]).digest


def test_patches_pooled_in_several_calls_are_the_same(encoder, monkeypatch):
    image = torch.rand(2, 3, 64, 64)
    whole = encoder.encode(image)
    monkeypatch.setattr("texturevlm.channels.embedding._TOGETHER", 7)
    assert worst(encoder.encode(image), whole) < 1e-6


@pytest.mark.gpu
def test_on_the_gpu(encoder):
    there = DenseEncoder.load(encoder.model, device="cuda")
    images = torch.rand(2, 3, 50, 70)
    assert there.encode(images).is_cuda and worst(there.encode(images), encoder.encode(images)) < 1e-3
    assert worst(there.text("abc"), encoder.text("abc")) < 1e-3
    many = there.encode(torch.rand(1, 3, 64, 64, device="cuda").expand(1200, -1, -1, -1))  # 76,800 patches
    assert worst(many[0], many[-1]) < 1e-3


def test_features_can_be_trained_on(encoder):
    features = encoder.encode(torch.rand(1, 3, 64, 64))
    weight = torch.ones(features.shape[1], requires_grad=True)
    torch.einsum("bdhw,d->", features, weight).backward()
    assert weight.grad is not None and not encoder.text("ab").is_inference()


def edited(folder, target, name, change):
    shutil.copytree(folder, target)
    change(target / name)
    return target


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


def drop_a_weight(path):
    tensors = safetensors_torch.load_file(path)
    tensors.pop("visual_projection.weight")
    safetensors_torch.save_file(tensors, path, metadata={"format": "pt"})


def call_it(kind):
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": kind}))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", os.remove, "complete and undamaged, got .*: config.json with a model_type is missing"),
        ("config.json", truncate, "complete and undamaged, got .*: config.json is not JSON"),
        ("config.json", call_it("siglip2"), "must be one of clip, siglip, got 'siglip2'"),
        ("preprocessor_config.json", os.remove, "model must be complete and undamaged, got "),
        ("model.safetensors", os.remove, "model must be complete and undamaged, got "),
        ("model.safetensors", truncate, "complete and undamaged, got .*: model.safetensors is damaged"),
        ("model.safetensors", drop_a_weight, "lacks 1 weights: visual_projection.weight"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(folders, tmp_path, name, change, message):
    broken = edited(folders["clip"], tmp_path / "broken", name, change)
    with pytest.raises(ValueError, match=message) as caught:
        DenseEncoder.load(broken)
    assert str(caught.value).startswith("DenseEncoder.load: ") and str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tokenizer_still_encodes_images(folders, tmp_path, monkeypatch):
    bare = edited(folders["clip"], tmp_path / "bare", "tokenizer.json", os.remove)
    (bare / "tokenizer_config.json").unlink()
    encoder = DenseEncoder.load(bare)
    encoder.encode(torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match=r"DenseEncoder.text: tokenizer of .*bare must know 12 words, got \d"):
        encoder.text("ab")
    (bare / "tokenizer_config.json").write_text('{"tokenizer_class": "SiglipTokenizer"}')
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # which SigLIP 1 needs for texts
    with pytest.raises(
        ImportError, match=r"DenseEncoder.text: pip install 'texturevlm\[hf\]' \(.*(SentencePiece|SiglipTokenizer)"
    ):
        encoder.text("ab")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": None}, "model must be a hub id or a folder with a model of transformers, got None"),
        ({"model": "/nowhere/model"}, "no such folder: /nowhere/model"),
        ({"device": "cuda:99"}, r"device must be one of this machine's \d+ GPUs or cpu, got cuda:99"),
        ({"device": "abacus"}, "device must be one of torch's, such as cpu, cuda or cuda:1, got 'abacus'"),
    ],
)
def test_bad_arguments(folders, arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=f"DenseEncoder.load: {message}"):
        DenseEncoder.load(**{"model": folders["clip"], **arguments})


def test_bad_images(encoder):
    with pytest.raises(ValueError, match=r"DenseEncoder.encode: image must have 3 channels or 1, got \(1, 2, 8, 8\)"):
        encoder.encode(torch.rand(1, 2, 8, 8))
    with pytest.raises(TypeError, match=r"DenseEncoder.encode: image must be floating point, got torch.uint8"):
        encoder.encode(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))


def test_a_missing_package_names_the_extra(monkeypatch, encoder, tmp_path):
    projection_for(encoder, 40).save(tmp_path / "p.safetensors")
    for package in ("transformers", "safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"DenseEncoder.load: needs transformers; pip install 'texturevlm\[hf\]'"):
        DenseEncoder.load(encoder.model)
    with pytest.raises(ImportError, match=r"Projection.load: needs safetensors; pip install 'texturevlm\[hf\]'"):
        Projection.load(tmp_path / "p.safetensors")
    with pytest.raises(ImportError, match=r"Projection.save: needs safetensors.torch; pip install"):
        projection_for(encoder, 40).save(tmp_path / "q.safetensors")


def test_projection_is_linear_clamped_and_keeps_the_dot_product_with_text(encoder):
    features = encoder.encode(torch.rand(2, 3, 64, 96))
    projection = projection_for(encoder, features.shape[1])
    centred = features - projection.mean[:, None, None]
    wanted = torch.stack([(centred * row[:, None, None]).sum(1) for row in projection.basis], 1) / 1.7
    assert worst(projection.apply(features), wanted) < 1e-6
    assert projection.apply(1000 * features).abs().max() == 1
    text = encoder.text("abc")
    seen = projection.mean[:, None, None] + torch.einsum("kd,bkhw->bdhw", projection.basis, wanted * 1.7)
    assert worst(projection.similarity(wanted, text), torch.einsum("d,bdhw->bhw", text, seen)) < 1e-5
    with pytest.raises(ValueError, match=r"Projection.apply: features must be \(B, D, h, w\), got \(1, 7, 2, 2\) \(D="):
        projection.apply(torch.rand(1, 7, 2, 2))


def test_projection_round_trip(encoder, tmp_path):
    projection = projection_for(encoder, 40)
    projection.save(tmp_path / "new" / "p.safetensors")
    again = Projection.load(tmp_path / "new" / "p.safetensors")
    assert torch.equal(again.mean, projection.mean) and torch.equal(again.basis, projection.basis)
    for name in ("scale", "variance", "model", "digest"):
        assert getattr(again, name) == getattr(projection, name)
    assert os.listdir(tmp_path / "new") == ["p.safetensors"]


def test_an_interrupted_save_leaves_the_old_file(encoder, tmp_path, monkeypatch):
    old = projection_for(encoder, 40)
    old.save(tmp_path / "p.safetensors")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        projection_for(encoder, 40).save(tmp_path / "p.safetensors")
    assert torch.equal(Projection.load(tmp_path / "p.safetensors").mean, old.mean)
    assert os.listdir(tmp_path) == ["p.safetensors"]


def test_a_damaged_projection(encoder, tmp_path):
    path = tmp_path / "p.safetensors"
    with pytest.raises(FileNotFoundError, match=r"Projection.load: no such file: .*p.safetensors"):
        Projection.load(path)
    projection_for(encoder, 40).save(path)
    whole = path.read_bytes()
    described = {"format": "texturevlm projection 1", "model": "", "digest": "", "scale": "1.0", "variance": "nonsense"}
    tensors = {"mean": torch.zeros(40), "basis": torch.zeros(16, 40)}
    for content in (
        whole[:-100],
        whole[:5],
        b"",
        b"not safetensors at all",
        safetensors_torch.save(tensors),
        safetensors_torch.save(tensors, metadata=described),
        safetensors_torch.save({"mean": torch.zeros(40)}, metadata={**described, "variance": "0.5"}),
        safetensors_torch.save({**tensors, "mean": torch.zeros(39)}, metadata={**described, "variance": "0.5"}),
        safetensors_torch.save({**tensors, "mean": tensors["mean"] / 0}, metadata={**described, "variance": "0.5"}),
    ):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"Projection.load: .*p.safetensors is damaged or no projection of `fit-pca`"
        ):
            Projection.load(path)


def test_embed(encoder):
    image = torch.rand(2, 3, 64, 96)
    features = encoder.encode(image)
    projection = projection_for(encoder, features.shape[1])
    assert worst(embed(image, encoder, projection), projection.apply(features)) < 1e-6
    layers = embed(image, encoder, projection, size=(16, 24))
    assert layers.shape == (2, 16, 16, 24) and layers.abs().max() <= 1


def test_embed_says_what_to_pass(encoder):
    image = torch.rand(1, 3, 64, 64)
    with pytest.raises(
        ValueError, match=r"embed: encoder must be a DenseEncoder; make one with DenseEncoder.load\(hub id"
    ):
        embed(image, None, None)
    with pytest.raises(ValueError, match=r"embed: projection must be a Projection; fit one with `texturevlm fit-pca"):
        embed(image, encoder, None)
    other = Projection(torch.zeros(40), torch.eye(16, 40), 1.0, 0.5, "some/other-model", "0123456789")
    with pytest.raises(ValueError, match=r"must be fitted on the encoder's model.*got one fitted on some/other-model"):
        embed(image, encoder, other)
