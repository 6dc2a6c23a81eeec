"""Allocators that lost by the project's own table (docs/findings.md), with what only they need.

The core finds them by name through the entry points of lab/pyproject.toml. Importing this room adds its kernels.
"""

from pathlib import Path

from texturevlm.cuda.compiler import add_sources

add_sources(Path(__file__).parent)
