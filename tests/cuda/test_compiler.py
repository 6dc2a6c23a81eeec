"""The kernels' machinery: they compile without a GPU, the cache heals itself, and on a GPU nothing leaks or races."""

import hashlib
import re
import threading
from pathlib import Path

import pytest
import torch

from tests.conftest import captured, worst
from tests.recorded import compare
from tests.sources import kernels, variants
from texturevlm.cuda import add_sources
from texturevlm.ops import lookup, lookup_grad, mipmap, sample_patches, update_region

compiler = pytest.importorskip("texturevlm.cuda.compiler")
pytest.importorskip("cuda.bindings")

DIGESTS = Path(__file__).with_name("digests.json")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TEXTUREVLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("capability", ["lowest", (9, 0), (10, 0)])
@pytest.mark.parametrize("source", compiler.SOURCES)
def test_every_kernel_compiles_without_a_gpu(source, capability, cache):
    """To the binary that was recorded, digest by digest: a source that only moved, or none that changed."""
    digests, versions = {}, set()
    lowest = {bits: compiler.LOWEST[name] for name, bits in compiler.SCALARS.items()}
    every = variants(source)
    # What is only for 9.0 does not depend on the element type, and no source tells 10.0 from 9.0.
    for definitions in every if capability == "lowest" else every[:1]:
        major, minor = lowest[definitions["SCALAR"]] if capability == "lowest" else capability
        cubin = compiler.compile_source(source, f"sm_{major}{minor}", definitions)
        assert cubin[:4] == b"\x7fELF"
        for kernel in kernels(source):
            assert kernel.encode() in cubin
        variant = " ".join(f"{name}={value}" for name, value in definitions.items())
        digests[variant] = hashlib.sha256(cubin).hexdigest()
        versions |= set(re.findall(rb"release [\d.]+, V([\d.]+)", cubin))
    (version,) = versions
    # By the file's name: sources move between folders.
    key = f"{source}, {capability if capability == 'lowest' else 'sm_{}{}'.format(*capability)}"
    compare(DIGESTS, key, digests, like=f"NVRTC {version.decode()}")


def test_file_names_are_unique_and_every_kernel_is_found():
    paths = [path for ending in ("cu", "cuh") for path in compiler.PACKAGE_FOLDER.rglob(f"*.{ending}")]
    assert len({path.name for path in paths}) == len(paths)
    for source in compiler.SOURCES:
        assert len(kernels(source)) == compiler.read_source(source).count("__global__") > 0


def test_kernels_of_another_package(tmp_path, cache, monkeypatch):
    """They are found by file name and may use our headers; their headers change no binary of ours."""
    monkeypatch.setattr(compiler, "SOURCES", dict(compiler.SOURCES))
    monkeypatch.setattr(compiler, "HEADERS", dict(compiler.HEADERS))
    before = compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32})
    folder = tmp_path / "theirs"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "theirs.cuh").write_text('#include "scalar.cuh"\n#define TWICE 2\n')
    own = '#include "theirs.cuh"\nextern "C" __global__ void their_kernel(float* out) { out[0] = TWICE; }\n'
    (folder / "theirs.cu").write_text(own)
    add_sources(folder)
    add_sources(folder)
    assert b"their_kernel" in compiler.compile_source("theirs.cu", "sm_90", {"SCALAR": 32})
    monkeypatch.setattr(compiler, "_nvrtc", lambda *_: pytest.fail("compiled again"))
    assert compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32}) == before
    (folder / "patches.cu").write_text(own)
    with pytest.raises(ValueError, match=r"add_sources: folder must bring names of its own, got .*patches\.cu beside"):
        add_sources(folder)


def test_a_cached_binary_is_not_compiled_again(cache, monkeypatch):
    first = compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32})
    monkeypatch.setattr(compiler, "_nvrtc", lambda *_: pytest.fail("compiled again"))
    assert compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32}) == first


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 5000])
def test_a_damaged_cache_entry_is_compiled_again(cache, damage):
    first = compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32})
    (entry,) = cache.iterdir()
    entry.write_bytes(damage)
    assert compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32}) == first
    assert compiler.read_entry(entry) == first


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TEXTUREVLM_CACHE", str(tmp_path / "file" / "cache"))
    assert compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32})


def test_a_kernel_that_does_not_compile_says_why(cache):
    with pytest.raises(RuntimeError, match=r"patches.cu does not compile with .*-DSCALAR=32 -Dconstexpr=7:\n.*error"):
        compiler.compile_source("patches.cu", "sm_90", {"SCALAR": 32, "constexpr": 7})


def inputs(count=64, size=(200, 300), channels=6):
    image = torch.rand(1, channels, *size, device="cuda")
    centre = torch.rand(1, count, 2, device="cuda") * 200
    scale = torch.rand(1, count, 1, device="cuda") * 7 + 1
    return (
        image,
        centre,
        scale * torch.tensor([1.0, 0.0], device="cuda"),
        scale * torch.tensor([0.0, 1.0], device="cuda"),
    )


def work(image, centre, ddx, ddy):
    levels = mipmap(image)
    return sample_patches(levels, centre, ddx, ddy, patch=16), lookup_grad(levels, centre, ddx, ddy * 3)


@pytest.mark.gpu
def test_kernels_run_on_the_current_stream():
    image, *footprints = inputs()
    wanted = work(image, *footprints)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        image.mul_(2)
        got = work(image, *footprints)
    stream.synchronize()
    for mine, before in zip(got, wanted):
        assert worst(mine, before * 2) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "texture"])
def test_kernels_are_captured_and_replayed(backend):
    from texturevlm.ops.device_texture import DeviceTexture

    image, *footprints = inputs()
    boxes = torch.tensor([[[5, 5, 60, 70]]], device="cuda")
    levels = mipmap(image)
    texture = DeviceTexture(levels, half=False)

    def step():
        fresh = mipmap(image)
        update_region(fresh, boxes)
        if backend == "texture":
            texture.fill(fresh)
            return sample_patches(texture, *footprints, patch=16)
        return sample_patches(fresh, *footprints, patch=16)

    graph, replayed = captured(step)
    for _ in range(3):
        image.copy_(torch.rand_like(image))
        graph.replay()
        wanted = sample_patches([level.double() for level in mipmap(image)], *footprints, patch=16, backend="reference")
        assert worst(replayed, wanted) < (1e-4 if backend == "cuda" else 1e-2)


@pytest.mark.gpu
def test_several_threads_at_once():
    jobs = [inputs(size=(100 + 13 * i, 150 + 7 * i)) for i in range(8)]
    wanted = [work(*job) for job in jobs]
    torch.cuda.synchronize()
    wrong = []

    def run(index):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    got = work(*jobs[index])
                    torch.cuda.current_stream().synchronize()
                    wrong.extend(index for mine, truth in zip(got, wanted[index]) if not torch.equal(mine, truth))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.gpu
def test_ten_thousand_textures_leave_no_memory_behind():
    from texturevlm.ops.device_texture import DeviceTexture

    levels = mipmap(torch.rand(1, 8, 256, 256, device="cuda"))
    for _ in range(100):
        DeviceTexture(levels)
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(10_000):
        DeviceTexture(levels)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] < 8 << 20


@pytest.mark.gpu
def test_a_texture_dropped_while_in_use_is_still_read_right():
    from texturevlm.ops.device_texture import DeviceTexture

    image, *footprints = inputs(size=(1000, 1000))
    levels = mipmap(image)
    wanted = sample_patches(levels, *footprints, patch=16, backend="reference")
    for _ in range(20):
        torch.cuda._sleep(10_000_000)
        got = sample_patches(DeviceTexture(levels, half=False), *footprints, patch=16)
        others = [DeviceTexture([torch.full_like(level, 9.0) for level in levels], half=False) for _ in range(3)]
        assert worst(got, wanted) < 1e-2
        del others


@pytest.mark.gpu
def test_a_filled_texture_serves_every_lookup():
    from texturevlm.ops.device_texture import DeviceTexture

    image, centre, ddx, ddy = inputs()
    levels = mipmap(image)
    texture = DeviceTexture(levels, half=False)
    lod = torch.rand(1, 64, device="cuda") * 4
    assert worst(lookup(texture, centre, lod), lookup(levels, centre, lod)) < 1e-2
    assert worst(lookup_grad(texture, centre, ddx * 3, ddy), lookup_grad(levels, centre, ddx * 3, ddy)) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(64, 96), (301, 410), (1080, 1920)])
def test_a_change_is_brought_to_the_texture_units(size):
    from texturevlm.types import Texture

    height, width = size
    texture = Texture(torch.rand(2, 3, *size, device="cuda")).mipmapped().on_device(half=False)
    boxes = torch.tensor([[[5, 7, 30, 21], [0, 0, 0, 0]], [[width - 9, height - 3, width + 5, height], [40, 1, 41, 2]]])
    centre = torch.rand(2, 200, 2, device="cuda") * torch.tensor([width, height], device="cuda")
    lod = torch.rand(2, 200, device="cuda") * len(texture.levels)
    for image, of_image in enumerate(boxes.tolist()):
        for x0, y0, x1, y1 in of_image:
            texture.levels[0][image, :, y0:y1, x0:x1] = 0.0
    stale = lookup(texture.resident, centre, lod)
    texture.update_region(boxes.cuda())
    wanted = lookup(Texture(texture.levels).on_device(half=False).resident, centre, lod)
    assert torch.equal(lookup(texture.resident, centre, lod), wanted) and not torch.equal(stale, wanted)
    texture.levels[0][:, :, height // 2 :, : width // 2] = 1.0  # not said: the texture keeps what it has
    texture.resident.fill(texture.levels, boxes.cuda()[:, :1])
    assert torch.equal(lookup(texture.resident, centre, lod), wanted)


@pytest.mark.gpu
def test_names_beyond_2048_survive_a_texture():
    from texturevlm.ops.device_texture import DeviceTexture

    names = torch.arange(64 * 64, device="cuda", dtype=torch.float32).view(1, 1, 64, 64) * 17
    levels = mipmap(names, reduce="nearest")
    points = torch.stack(torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="xy"), -1)
    points = points.reshape(1, -1, 2).to("cuda")
    got = lookup(DeviceTexture(levels, nearest=[0]), points, torch.zeros(1, 64 * 64, device="cuda"))
    assert torch.equal(got[0, :, 0], names.flatten())
    with pytest.raises(ValueError, match=r"DeviceTexture: half must not be given with labels"):
        DeviceTexture(levels, half=True, nearest=[0])


@pytest.mark.gpu
def test_device_texture_refuses_what_it_cannot_do():
    from texturevlm.ops.device_texture import DeviceTexture

    levels = mipmap(torch.rand(1, 3, 16, 16, device="cuda"))
    with pytest.raises(ValueError, match=r"DeviceTexture: pack must be one of 1, 2, 4, got '3'"):
        DeviceTexture(levels, pack=3)
    with pytest.raises(ValueError, match=r"backend 'texture' cannot run here: the tensor is on cpu"):
        DeviceTexture([level.cpu() for level in levels])
    with pytest.raises(ValueError, match=r"DeviceTexture: layers of the batch must be between 1 and 2048, got 2049"):
        DeviceTexture(mipmap(torch.rand(2049, 1, 2, 2, device="cuda")))
    with pytest.raises(ValueError, match=r"DeviceTexture.fill: levels must be 5 levels of \(1, 3, 16, 16\)"):
        DeviceTexture(levels).fill(levels[:3])
    footprint = torch.zeros(1, 1, 2, device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match=r"gradients need the levels"):
        sample_patches(DeviceTexture(levels), footprint, footprint, footprint, patch=2)
