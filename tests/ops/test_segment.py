"""superpixels, region_statistics and boundaries: against loops over pixels, and the kernels against the reference."""

import pytest
import torch

from tests.conftest import captured, poison, worst
from texturevlm.ops.segment import boundaries, region_statistics, seed_grid, strides, superpixels

SIZES = [(1, 1), (1, 9), (9, 1), (7, 7), (37, 53), (200, 3), (64, 64), (129, 257)]
LARGE = [(1024, 1024), (425, 550), (1080, 1920), (33, 3000), (2048, 36)]


def make_image(batch: int, channels: int, height: int, width: int, device: str = "cpu") -> torch.Tensor:
    """Smooth blobs with noise on them."""
    blobs = torch.rand(batch, channels, height // 16 + 2, width // 16 + 2, device=device)
    smooth = torch.nn.functional.interpolate(blobs, size=(height, width), mode="bilinear")
    return smooth * 0.9 + torch.rand(batch, channels, height, width, device=device) * 0.1


def by_pixels(image: torch.Tensor, count: int, iterations: int, compactness: float) -> torch.Tensor:
    """SLIC as loops over pixels and regions in float64. Written apart from the library."""
    _, height, width = image.shape
    rows, columns = seed_grid(height, width, count)
    step = (height * width / (rows * columns)) ** 0.5
    ids = [[y * rows // height * columns + x * columns // width for x in range(width)] for y in range(height)]
    for _ in range(iterations):
        members: dict[int, list[torch.Tensor]] = {}
        for y in range(height):
            for x in range(width):
                point = torch.cat([image[:, y, x].double(), torch.tensor([y, x]) / step * compactness])
                members.setdefault(ids[y][x], []).append(point)
        means = {region: torch.stack(points).mean(0) for region, points in members.items()}
        for y in range(height):
            for x in range(width):
                point = torch.cat([image[:, y, x].double(), torch.tensor([y, x]) / step * compactness])
                near = [
                    row * columns + column
                    for row in range(rows)
                    for column in range(columns)
                    if abs(row - y * rows // height) <= 1 and abs(column - x * columns // width) <= 1
                ]
                ids[y][x] = min(near, key=lambda region: (point - means[region]).square().sum().item())
    return torch.tensor(ids)


@pytest.mark.parametrize("size", [*SIZES, (1024, 1024), (1080, 1920), (3508, 2480), (9, 1000)])
@pytest.mark.parametrize("count", [1, 7, 50, 200])
def test_seeds_come_near_to_the_count(size, count):
    rows, columns = seed_grid(*size, count)
    assert 1 <= rows <= size[0] and 1 <= columns <= size[1]
    assert abs(rows * columns - count) <= max(1, count * 0.05) or rows * columns == size[0] * size[1] < count
    assert all(stride >= 1 for stride in strides(*size, (rows, columns)))
    assert seed_grid(1024, 1024, 50) == (7, 7)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 12, 50])
def test_ids_lie_in_range_at_any_size(size, count):
    ids = superpixels(make_image(2, 3, *size), count=count)
    rows, columns = seed_grid(*size, count)
    assert ids.shape == (2, *size) and ids.dtype == torch.int32
    assert ids.min() >= 0 and ids.max() < rows * columns


@pytest.mark.parametrize(("size", "count", "iterations"), [((13, 17), 6, 3), ((8, 30), 9, 2), ((5, 4), 20, 1)])
def test_reference_equals_loops_over_pixels(size, count, iterations):
    image = make_image(1, 3, *size)
    wanted = by_pixels(image[0], count, iterations, 0.2)
    assert torch.equal(superpixels(image, count=count, iterations=iterations, compactness=0.2)[0].long(), wanted)


def test_a_constant_image_keeps_its_cells():
    cell = torch.arange(64) // 16
    ids = superpixels(torch.full((1, 3, 64, 64), 0.4), count=16)
    assert torch.equal(ids[0].long(), cell[:, None] * 4 + cell)


@pytest.mark.parametrize("size", [(90, 120), (300, 400)])
def test_regions_follow_colours(size):
    """A disc on a ground: no region has pixels of both, though means are refined from every n-th pixel alone."""
    y, x = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    disc = (y - size[0] * 0.45).square() + (x - size[1] * 0.55).square() < (size[0] * 0.3) ** 2
    ids = superpixels(disc.float().expand(1, 3, -1, -1), count=12, compactness=0.1)[0]
    assert not set(ids[disc].tolist()) & set(ids[~disc].tolist())
    assert strides(300, 400, seed_grid(300, 400, 12)) == (3, 3)
    rim = boundaries(disc.int()[None])[0].bool()
    assert boundaries(ids[None])[0].bool()[rim].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_and_batches_agree(dtype):
    image = make_image(3, 3, 50, 70).half().to(dtype)
    together = superpixels(image)
    assert torch.equal(together, superpixels(image.float()))
    assert torch.equal(together, torch.cat([superpixels(one[None]) for one in image]))


@pytest.mark.parametrize("size", SIZES)
def test_statistics_and_boundaries_equal_loops(size):
    ids = torch.randint(-1, 6, (2, *size), dtype=torch.int32)
    share, centroid = region_statistics(ids, 5)
    assert share.shape == (2, 5) and centroid.shape == (2, 5, 2)
    for image in range(2):
        for region in range(5):
            y, x = (ids[image] == region).nonzero().double().unbind(1)
            middle = torch.stack([x.mean() + 0.5, y.mean() + 0.5]) if len(x) else torch.tensor([0.5, 0.5])
            assert abs(share[image, region].item() - len(x) / (size[0] * size[1])) < 1e-6
            assert worst(centroid[image, region], middle) < 1e-3
    edges = boundaries(ids)
    assert edges.shape == ids.shape and edges.dtype == torch.float32
    for image, grid in enumerate(ids.tolist()):
        for y, line in enumerate(grid):
            for x, region in enumerate(line):
                right = x + 1 < size[1] and line[x + 1] != region
                below = y + 1 < size[0] and grid[y + 1][x] != region
                assert edges[image, y, x] == float(right or below)


def test_shares_add_up_to_the_image():
    ids = superpixels(make_image(2, 3, 100, 150), count=30)
    share, centroid = region_statistics(ids, 30)
    assert worst(share.sum(1), torch.ones(2)) < 1e-6
    assert worst((share[..., None] * centroid).sum(1), torch.tensor([[75.0, 50.0]] * 2)) < 1e-3


def test_bad_input_is_named():
    image = torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"superpixels: features must be \(B, C, H, W\), got \(3, 4\)"):
        superpixels(torch.rand(3, 4))
    with pytest.raises(TypeError, match=r"superpixels: features must be floating point, got torch.uint8"):
        superpixels(image.byte())
    with pytest.raises(ValueError, match=r"superpixels: features must not be empty"):
        superpixels(torch.rand(1, 3, 0, 4))
    with pytest.raises(ValueError, match=r"superpixels: count must be at least 1, got 0"):
        superpixels(image, count=0)
    with pytest.raises(ValueError, match=r"superpixels: iterations must be at least 1, got 0"):
        superpixels(image, iterations=0)
    with pytest.raises(ValueError, match=r"superpixels: compactness must be at least 0 and finite, got -1"):
        superpixels(image, compactness=-1)
    with pytest.raises(TypeError, match=r"boundaries: ids must hold whole numbers, got torch.float32"):
        boundaries(image[0])
    with pytest.raises(ValueError, match=r"region_statistics: regions must be at least 1, got 0"):
        region_statistics(torch.zeros(1, 2, 2, dtype=torch.int), 0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"superpixels: backend 'cuda' cannot run here: the tensor is on cpu"):
            superpixels(image, backend="cuda")


JOBS = [(3, 50, 5), (3, 1, 2), (1, 700, 3), (16, 1_000_000, 2), (5, 7, 1)]  # channels, count, iterations
CASES = [(size, *job) for size in SIZES for job in JOBS] + [(size, *job) for size in LARGE for job in JOBS[:3]]


@pytest.mark.gpu
@pytest.mark.parametrize(("size", "channels", "count", "iterations"), CASES)
def test_kernel_equals_reference(size, channels, count, iterations):
    image = make_image(2, channels, *size, device="cuda")
    poison()
    got = superpixels(image, count=count, iterations=iterations, backend="cuda")
    wanted = superpixels(image, count=count, iterations=iterations, backend="reference")
    rows, columns = seed_grid(*size, count)
    assert got.shape == wanted.shape and got.dtype == torch.int32
    assert got.min() >= 0 and got.max() < rows * columns
    assert (got != wanted).float().mean() <= 1e-3  # where two regions are equally near
    for _ in range(3):
        poison()
        assert torch.equal(superpixels(image, count=count, iterations=iterations, backend="cuda"), got)


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES + LARGE)
@pytest.mark.parametrize("regions", [1, 5, 50])
def test_kernel_statistics_and_boundaries_equal_the_references(size, regions):
    noise = torch.randint(-1, regions + 1, (2, *size), dtype=torch.int32, device="cuda")
    ids = superpixels(make_image(2, 3, *size, device="cuda"), count=regions)
    for names in (noise, ids, noise.long(), ids.mT):
        poison()
        for got, wanted in zip(
            region_statistics(names, regions, backend="cuda"), region_statistics(names, regions, backend="reference")
        ):
            assert torch.equal(got, wanted)
        poison()
        assert torch.equal(boundaries(names, backend="cuda"), boundaries(names, backend="reference"))


@pytest.mark.gpu
def test_kernel_takes_half_precision_and_views():
    image = make_image(1, 3, 120, 90, device="cuda")
    wanted = superpixels(image.half().float(), backend="cuda")
    assert torch.equal(superpixels(image.half(), backend="cuda"), wanted)
    turned = superpixels(image.mT, backend="reference")
    assert (superpixels(image.mT, backend="cuda") != turned).float().mean() <= 1e-3
    with pytest.raises(ValueError, match=r"superpixels: backend 'cuda' cannot run here: the kernel takes up to 16"):
        superpixels(torch.rand(1, 17, 8, 8, device="cuda"), backend="cuda")
    assert superpixels(torch.rand(1, 17, 8, 8, device="cuda")).shape == (1, 8, 8)


@pytest.mark.gpu
def test_kernels_are_captured_and_replayed():
    image = make_image(1, 3, 300, 400, device="cuda")

    def step():
        ids = superpixels(image, count=12, backend="cuda")
        return ids, *region_statistics(ids, 12, backend="cuda"), boundaries(ids, backend="cuda")

    graph, replayed = captured(step)
    for _ in range(3):
        image.copy_(make_image(1, 3, 300, 400, device="cuda"))
        graph.replay()
        for got, wanted in zip(replayed, step()):
            assert torch.equal(got, wanted)
