"""fit_pca against a full decomposition, its report against cases that are known, and the command from end to end."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import worst
from texturevlm.commands.arguments import Parser
from texturevlm.paths import image_paths
from texturevlm_lab.commands.weights import add_weights
from texturevlm_lab.train.pca import HeldOut, Moments, fit_pca, neighbours_kept, principal


def features_like(images=40, width=48, side=6, decay=0.8):
    """Unit features (B, D, h, w) whose variance falls by `decay` from one direction to the next."""
    strength = decay ** torch.arange(width)
    turned = torch.linalg.qr(torch.randn(width, width)).Q
    rows = (torch.randn(images * side * side, width) * strength + 0.5) @ turned
    return torch.nn.functional.normalize(rows, dim=1).reshape(images, side, side, width).movedim(3, 1)


def rows_of(features):
    return features.movedim(1, 3).flatten(0, 2)


def test_moments_of_a_stream_are_those_of_all_at_once():
    rows = torch.randn(500, 20, dtype=torch.float64) + 1e6  # a mean that would drown a sum of squares
    moments = Moments()
    for part in rows.split([1, 0, 7, 200, 3, 289]):
        moments.add(part)
    assert moments.count == 500
    assert worst(moments.mean, rows.mean(0)) < 1e-8
    assert worst(moments.scatter / 499, torch.cov(rows.T)) < 1e-9


def test_principal_directions_are_those_of_a_full_decomposition():
    rows = rows_of(features_like()).double()
    moments = Moments()
    moments.add(rows)
    basis, variance = principal(moments)
    _, values, vectors = np.linalg.svd((rows - rows.mean(0)).numpy(), full_matrices=False)
    assert worst((basis @ torch.from_numpy(vectors[:16]).T).abs(), torch.eye(16)) < 1e-6
    assert abs(variance - (values[:16] ** 2).sum() / (values**2).sum()) < 1e-12
    assert worst(basis @ basis.T, torch.eye(16)) < 1e-12
    assert (basis.gather(1, basis.abs().argmax(1, keepdim=True)) > 0).all()


def test_the_split_into_batches_does_not_matter():
    features = features_like()
    whole, report = fit_pca([features], held_out=100)
    streamed, again = fit_pca(iter(features.split([1, 5, 14, 20])), held_out=100)
    assert worst(whole.basis, streamed.basis) < 1e-5 and worst(whole.mean, streamed.mean) < 1e-6
    assert whole.scale == pytest.approx(streamed.scale, rel=1e-5)
    assert report.held_out == again.held_out == 100 and report.nearest == pytest.approx(again.nearest, abs=0.011)
    reduced = whole.apply(features)
    assert reduced.shape == (40, 16, 6, 6) and 0.5 < reduced.abs().max() <= 1


def test_images_of_different_sizes_and_what_was_counted():
    batches = [features_like(images, side=side, width=48) for images, side in ((3, 8), (1, 5), (2, 9))]
    projection, report = fit_pca(batches, model="a/b", digest="77")
    assert (report.images, report.patches) == (6, 3 * 64 + 25 + 2 * 81)
    assert 10 < report.held_out < 70
    assert (projection.model, projection.digest, projection.variance) == ("a/b", "77", report.variance)
    assert projection.mean.dtype == projection.basis.dtype == torch.float32


def test_held_out_patches_are_a_bounded_uniform_sample_that_never_enters_the_fit():
    rows = torch.arange(20000.0)[:, None].expand(-1, 3)
    sample = HeldOut(500, seed=3)
    fitted = torch.cat([sample.add(part) for part in rows.split(777)])
    kept = sample.rows[:, 0]
    assert len(kept) == 500
    assert torch.equal(torch.cat([fitted[:, 0], kept]).sort().values, rows[:, 0])
    assert abs(kept.mean() - 10000) < 4 * 20000 / 12**0.5 / 500**0.5


def test_sixteen_directions_are_kept_whole():
    low = torch.randn(400, 16) @ torch.randn(16, 64)
    features = low.reshape(10, 8, 5, 64).movedim(3, 1)
    _, report = fit_pca([features / features.norm(dim=1).max()])
    assert report.variance > 1 - 1e-9
    unit = torch.nn.functional.normalize(features, dim=1)
    _, report = fit_pca([unit])
    assert report.nearest > 0.97 and "reached" in str(report) and "NOT" not in str(report)


def test_a_missed_target_is_said_plainly():
    noise = torch.nn.functional.normalize(torch.randn(50, 256, 6, 6), dim=1)
    _, report = fit_pca([noise])
    assert report.variance < 0.2 and report.nearest < 0.5
    assert "target 95% NOT reached: 16 numbers are too few for these features" in str(report)
    assert report.nearest <= report.among_ten


def test_neighbours_kept():
    rows = torch.nn.functional.normalize(torch.randn(600, 32), dim=1)
    assert neighbours_kept(rows, rows @ torch.linalg.qr(torch.randn(32, 32)).Q * 0.3 + 0.1) == 1
    assert neighbours_kept(rows, torch.randn(600, 16)) < 0.02
    similar = rows @ rows.T - 2 * torch.eye(600)
    distance = torch.cdist(rows[:, :16], rows[:, :16]) + 9 * torch.eye(600)
    wanted = (similar.argmax(1) == distance.argmin(1)).double().mean()
    assert neighbours_kept(rows, rows[:, :16]) == pytest.approx(float(wanted), abs=1e-9)
    nearest_ten = distance.topk(10, largest=False).indices
    wanted = (nearest_ten == similar.argmax(1)[:, None]).any(1).double().mean()
    assert neighbours_kept(rows, rows[:, :16], among=10) == pytest.approx(float(wanted), abs=1e-9)


def test_equal_patches_are_equally_near():
    blank = torch.ones(50, 32).expand(50, 32)
    assert neighbours_kept(blank, torch.zeros(50, 16)) == 1


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "feature_batches must hold at least 160 patches, got 0"),
        ([torch.rand(1, 32, 3, 3)], "feature_batches must hold at least 160 patches, got 9"),
        ([torch.rand(9, 15, 9, 9)], r"features must be at least 16 wide, got \(9, 15, 9, 9\)"),
        (
            [torch.rand(9, 32, 9, 9), torch.rand(9, 31, 9, 9)],
            r"features must be 32 wide like the first, got \(9, 31, 9",
        ),
        ([torch.rand(9, 32, 9)], r"features must be \(B, D, h, w\), got \(9, 32, 9\)"),
        ([torch.full((9, 32, 9, 9), torch.nan)], "features must be finite, got 23328 NaN"),
        ([torch.ones(9, 32, 9, 9)], "feature_batches must vary, got the same feature"),
    ],
)
def test_bad_streams(batches, message):
    with pytest.raises(ValueError, match=f"fit_pca: {message}"):
        fit_pca(batches)


@pytest.mark.gpu
def test_on_the_gpu():
    features = features_like()
    here, there = fit_pca([features])[0], fit_pca([features.cuda()])[0]
    assert worst(here.basis, there.basis) < 1e-4 and there.basis.device.type == "cpu"


# ---- the command


def run(*arguments):
    parser = Parser()
    add_weights(parser.add_subparsers(dest="command"))
    options = parser.parse_args(["fit-pca", *map(str, arguments)])
    return options.run(options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'texturevlm[hf]'")
    from tests.channels.test_embedding import tiny_clip

    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    random = np.random.default_rng(0)
    for index in range(12):
        pixels = random.integers(0, 256, (6 + index, 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((90, 60 + 10 * index), Image.Resampling.BICUBIC).save(folder / f"{index:02}.png")
    (folder / "notes.txt").write_text("not an image, and not looked at")
    return folder


def test_fit_pca_from_end_to_end(model, pictures, tmp_path, capsys):
    from texturevlm.channels.embedding import DenseEncoder, Projection, embed

    out = tmp_path / "new" / "p.safetensors"
    assert run(pictures, "--model", model, "--out", out, "--device", "cpu") == 0
    said = capsys.readouterr()
    assert "12/12 images" in said.err and "of 12 images" in said.out and "nearest neighbour" in said.out
    encoder, projection = DenseEncoder.load(model), Projection.load(out)
    assert projection.model == str(model) and projection.variance > 0.5
    layers = embed(torch.rand(1, 3, 100, 120), encoder, projection)
    assert layers.shape[1] == 16 and layers.abs().max() <= 1


def test_an_unreadable_image_is_named_and_skipped_only_when_asked(model, pictures, tmp_path, capsys):
    (pictures / "05.png").write_bytes(b"torn")
    arguments = (pictures, "--model", model, "--out", tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match=r"05.png: .*\(--skip-bad continues without it\)"):
        run(*arguments)
    assert not (tmp_path / "p.safetensors").exists()
    assert run(*arguments, "--skip-bad") == 0
    said = capsys.readouterr()
    assert "05.png" in said.err
    assert "1 images skipped" in said.out and "of 11 images" in said.out


def test_limit_spreads_evenly(pictures):
    assert [path.name for path in image_paths([pictures], 4)] == ["00.png", "03.png", "06.png", "09.png"]
    assert len(image_paths([pictures], 99)) == 12
    (pictures / "empty").mkdir()
    with pytest.raises(ValueError, match=r"IMAGES must hold images \(.*\), got none in .*empty"):
        image_paths([pictures / "empty"])


def test_the_command_says_what_is_missing(pictures, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(pictures, "--out", tmp_path / "p.safetensors")
    assert "--model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(pictures, "--model", "x", "--out", tmp_path / "p.safetensors", "--limit", "0")
    assert "--limit: must be a whole number from 1, got '0'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(tmp_path / "missing.png", "--model", "x", "--out", tmp_path / "new" / "p.safetensors")
    assert "no such file or folder" in capsys.readouterr().err and not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"--out must end in .safetensors, got p.pt"):
        run(pictures, "--model", "x", "--out", "p.pt")
