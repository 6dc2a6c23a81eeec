"""Each kernel once, on small inputs: what `make sanitize` runs under compute-sanitizer."""

import pytest
import torch

from tests.emulator import replace_launch
from tests.ops.test_cover import maps_of
from tests.relevance.test_channel_logits import random_case
from tests.scout.networks import lively
from tests.sources import kernels
from texturevlm.allocate.density import density
from texturevlm.allocate.layers import layers_by_kernel
from texturevlm.channels import CHANNELS, build
from texturevlm.channels.fused import list_text_tiles, no_text_tiles
from texturevlm.cuda.compiler import SOURCES
from texturevlm.ops import backend, lookup, lookup_grad, mipmap, sample_patches, update_region
from texturevlm.ops.device_texture import DeviceTexture
from texturevlm.ops.distance import distance_field
from texturevlm.ops.lookup_kernel import refresh_patches_cuda
from texturevlm.ops.packed import Marks
from texturevlm.ops.paged import PagedLevels
from texturevlm.ops.pixels import bytes_of, planes_of
from texturevlm.ops.segment import boundaries, region_statistics, superpixels
from texturevlm.relevance.channel_logits import ChannelForm, channel_logits
from texturevlm.relevance.information import cell_maps
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.scout import Scout
from texturevlm.scout.spotter import Spotter
from texturevlm.types import Texture
from texturevlm.video.change import initial_noise
from texturevlm.video.change_gpu import GpuComparison
from texturevlm_lab.allocators.select import Plan, Stage, select


def mips(device):
    for size in ((64, 64), (37, 50), (65, 129), (130, 70)):
        levels = mipmap(torch.rand(2, 3, *size, device=device), backend="cuda")
        update_region(levels, torch.tensor([[[3, 4, 30, 20]]] * 2, device=device), backend="cuda")
        image = torch.rand(1, 2, *size, device=device, requires_grad=True)
        mipmap(image, backend="cuda")[2].sum().backward()


def samples(device):
    image = torch.rand(1, 5, 33, 48, device=device, requires_grad=True)
    points, lod = torch.rand(1, 9, 2, device=device) * 30, torch.rand(1, 9, device=device)
    for layout in (torch.contiguous_format, torch.channels_last):
        levels = [level.contiguous(memory_format=layout) for level in mipmap(image, backend="cuda")]
        lookup(levels, points, lod, backend="cuda").sum().backward()
        lookup_grad(levels, points, points / 9, points / 7, backend="cuda").sum()
    levels = mipmap(image, backend="cuda")
    sample_patches(levels, points, points / 9, points / 7, patch=8, backend="cuda").sum().backward()
    still = [level.detach().contiguous() for level in levels]
    pixels, sampled = torch.zeros(1, 9, 5, 8, 8, device=device), torch.zeros(9, dtype=torch.bool, device=device)
    where = (points, torch.ones_like(points), torch.ones_like(points))
    refresh_patches_cuda(pixels, still, where, torch.ones_like(sampled)[None], sampled, everywhere((33, 48), device))
    coarse, pool = [level[:, :3] for level in still[1:]], torch.zeros(6, 16, 16, 3, dtype=torch.uint8, device=device)
    paged = PagedLevels((33, 48), coarse, pool, torch.tensor([5, -1, 0, 1, -1, 2, 3, -1, 4], device=device).int())
    paged.watch(torch.ones(1, 9, device=device), 8)
    sample_patches(paged, points, points / 9, points / 7, patch=8, backend="cuda")


def texture_units(device):
    texture = DeviceTexture(mipmap(torch.rand(1, 5, 33, 48, device=device)))
    lookup(texture, torch.rand(1, 9, 2, device=device) * 30, torch.rand(1, 9, device=device))


def everywhere(size, device, tile=32):
    rows, columns = (-(-extent // tile) + 1 for extent in size)
    total = torch.arange(rows)[:, None] * torch.arange(columns)
    return Marks(total.int().to(device), tile)


def regions(device):
    image = torch.rand(2, 3, 40, 70, device=device)
    ids = superpixels(image, count=20, backend="cuda")
    region_statistics(ids, 20, backend="cuda"), boundaries(ids, backend="cuda")
    distance_field(image[:, 0] > 0.95, backend="cuda")


def layers(device):
    names = ["edges", "low_pass", "saliency", "text", "edge_distance", "cluster_id"]
    texture = Texture((torch.rand(1, 3, 70, 90, device=device),))
    build(texture, names, backend="cuda")
    levels = mipmap(texture.levels[0], levels=3, backend="cuda")
    list_text_tiles(no_text_tiles(levels), levels, everywhere((70, 90), device), reach=70)


def allocations(device):
    relevance = maps_of(2, (24, 33), (200, 264), 0.5, device)
    texture = Texture((torch.zeros(2, 3, 200, 264, device=device),))
    density(texture, relevance, budget=20, patch=16, backend="cuda")
    layers_by_kernel("layers", relevance, budget=20, patch=16, overview=0.25, backend="cuda")
    parts = relevance.mass[:, None], relevance.legible_scale, relevance.ink
    select(*parts, [Plan(2, 2, (Stage(2, 2, 4),))], size=(200, 264), budget=20, patch=16, backend="cuda")
    cell_maps(Texture((torch.rand(1, 3, 64, 96, device=device),)).mipmapped(), 2, backend="cuda")


def scout(device):
    with torch.no_grad():
        both = Scout(lively(Spotter()), lively(Ranker((8, 12, 16)))).to(device)
        both.where(both.read(Texture.open(torch.rand(1, 3, 48, 64)).to(device)), "What is the total amount?")


def channel_scores(device):
    layers, maps = random_case(tuple(CHANNELS), (40, 48), (5, 6), device)
    channel_logits(ChannelForm(), layers, maps, torch.tensor([0, 1], device=device), backend="cuda")


def pixels(device):
    for size in ((6, 8), (5, 7)):  # four values at once, and one by one
        planes = planes_of(torch.randint(256, (2, *size, 3), device=device, dtype=torch.uint8), backend="cuda")
        bytes_of(planes, backend="cuda")


def stream(device):
    size, tile = (64, 96), 32
    frame, held = (torch.rand(1, 3, *size, device=device) for _ in range(2))
    comparison = GpuComparison(held, tile, tokens=3)
    noise, motion = (
        initial_noise(size, tile, torch.device(device)),
        torch.zeros(size, device=device),
    )  # kept until the end
    comparison.set_frame(frame, noise, copy=True)
    comparison.mark()
    comparison.copy_marked(motion)
    comparison.report()
    comparison.wait()


JOBS = [mips, samples, regions, layers, allocations, channel_scores, scout, pixels, stream]


def test_every_kernel_is_among_them(monkeypatch):
    """Launches are recorded, not made: what the kernels compute is tested elsewhere."""
    started = set()
    replace_launch(monkeypatch, lambda source, name, *given, **options: started.add(name))
    monkeypatch.setattr(backend, "no_kernel_because", lambda tensor: None)
    for job in JOBS:
        job("cpu")
    assert started == {name for source in SOURCES if source != "texture.cu" for name in kernels(source)}


@pytest.mark.gpu
@pytest.mark.sanitize
@pytest.mark.parametrize("job", [*JOBS, texture_units])
def test_each_kernel_once(job):
    job("cuda")
    torch.cuda.synchronize()
