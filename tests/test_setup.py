"""Set-up: the Makefile asks for the build of torch that fits the machine; a wheel contains all that runs."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def commands(tmp_path: Path, nvidia_smi: str, target: str) -> str:
    """What make would run, on a machine with this nvidia-smi."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    call = ["make", "-n", "-B", target]
    return subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("target", "version"), [(".venv/ready", "2.13.0"), (".venv-oldest/ready", "2.11.0")])
@pytest.mark.parametrize("nvidia_smi", ["exit 9", "echo no devices were found"])
def test_without_a_gpu_the_cpu_build_is_asked_for_and_the_plain_pin_is_the_way_out(
    tmp_path, nvidia_smi, target, version
):
    (line,) = [line for line in commands(tmp_path, nvidia_smi, target).splitlines() if "+cpu" in line]
    first, second = line.split("||")
    assert f'"torch=={version}+cpu"' in first and "https://download.pytorch.org/whl/cpu" in first
    assert f'"torch=={version}"' in second and "download.pytorch.org" not in second


def test_with_a_gpu_the_cuda_build_is_installed(tmp_path):
    found = commands(tmp_path, "echo 'GPU 0: NVIDIA H200'", ".venv/ready")
    assert '"torch==2.13.0"' in found and "+cpu" not in found and "download.pytorch.org" not in found


def test_versions_agree():
    """The Makefile tests the lowest versions that pyproject admits and the one that constraints.txt pins."""
    makefile, project = (ROOT / "Makefile").read_text(), (ROOT / "pyproject.toml").read_text()
    assert "TORCH := 2.13.0\n" in makefile and "torch==2.13.0" in (ROOT / "constraints.txt").read_text()
    assert "OLDEST_TORCH := 2.11.0" in makefile and '"torch>=2.11"' in project
    assert "OLDEST_TRANSFORMERS := 5.10.1" in makefile and '"transformers>=5.10,<6"' in project


def test_a_wheel_contains_kernels_weights_and_types(tmp_path):
    source = tmp_path / "source"  # a build leaves files behind
    shutil.copytree(ROOT / "texturevlm", source / "texturevlm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    call = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    subprocess.run(call, check=True, cwd=source, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "texturevlm"
    wanted = {
        path
        for suffix in ("py", "cu", "cuh", "json", "jinja", "npz", "safetensors")
        for path in package.rglob(f"*.{suffix}")
    }
    wanted.add(package / "py.typed")
    assert {str(path.relative_to(ROOT)) for path in wanted} <= names
    assert not any(name.startswith(("tests/", "lab/texturevlm_lab/studies/")) for name in names)
