"""A double of a CUDA graph on a CPU, to run what is captured as captured code.

A replay calls the function again, and everything that a real graph would have frozen must be as it was captured: the
same operations and launches in the same order, with the same numbers, on the same shapes, and tensors from outside at
the same addresses. What would wait for a GPU raises `HostRead`, with the line. After a capture, outputs hold nothing
until they are replayed; a replay overwrites what the last one made.
"""

import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from texturevlm.cuda.compiler import PACKAGE_FOLDER

# Names of torch's functions and of Tensor's methods that read a tensor on the host, or make one from what the host has.
READS = {
    *("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__"),
    *("cpu", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "is_nonzero"),
    *("equal", "allclose", "bincount", "histogram"),
}
WRITES = {"tensor", "as_tensor", "from_numpy", "frombuffer"}
# The same among the operations that these, indexing and C++ end in.
READING = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("equal", "bincount", "is_nonzero"),
}
FRESH = {torch.bool: True, torch.uint8: 0xAB, torch.int8: 0x7B}  # what poisons memory; NaN, or a large number


class HostRead(AssertionError):
    """A captured function read a tensor on the host, or a table from it: a GPU would wait, or refuse the capture."""


class NotReplayed(AssertionError):
    """A captured function did something else the second time: a graph would have gone on doing the first."""


class Watch(TorchFunctionMode):
    """Inside, reading on the host raises, and everything that is done is noted.

    steps:  what was done, in order, as text; tensors by what made them, those from outside by their address
    made:   the memory that was taken, and its type
    """

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.made: list[tuple[StorageWeakRef, torch.dtype]] = []
        self._own: dict[int, tuple[int, int]] = {}  # by its address: which one it is of what was made, and its bytes
        self._operations = Operations(self)

    def __enter__(self) -> "Watch":
        super().__enter__()
        self._operations.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._operations.__exit__(*error)
        super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        to_host = name == "to" and "cpu" in [one for one in (*args[1:], *kwargs.values()) if isinstance(one, str)]
        if name in READS or to_host or (name == "repeat_interleave" and counts_unknown(args, kwargs)):
            raise HostRead(f"{name} at {place()}")
        if name in WRITES:
            raise HostRead(f"torch.{name} at {place()}: keep it from before the capture")
        return function(*args, **kwargs)

    def operation(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run one of torch's operations, and note it."""
        name = function.overloadpacket.__name__
        if name in READING or (name.startswith("index") and is_masked(name, args)):
            raise HostRead(f"{name} at {place()}")
        if name == "lift_fresh" and args[0].dim():  # one number is no memory
            raise HostRead(f"a table from the host at {place()}: keep it from before the capture")
        self.steps.append(f"{function} {tree_map(self._named, (args, kwargs))}")
        known, out = storages((args, kwargs)), function(*args, **kwargs)
        for start, one in storages(out).items():
            if start not in known:
                storage = one.untyped_storage()
                self._own[start] = len(self.made), storage.nbytes()
                self.made.append((StorageWeakRef(storage), one.dtype))
        return out

    def launch(self, source: str, name: str, blocks: Any, parameters: bytes, options: dict[str, Any]) -> None:
        """Note the launch of a kernel."""
        whole = parameters + bytes(-len(parameters) % 8)
        words = [self._owner(word) if is_address(word) else word for (word,) in struct.iter_unpack("=Q", whole)]
        self.steps.append(f"{source} {name} {blocks} {sorted(options.items())} {words}")

    def _named(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        where = self._owner(value.untyped_storage().data_ptr())
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.storage_offset()} {where}"

    def _owner(self, address: int) -> str:
        """What lies at an address: which one of what was made, the last one that lay there, or what is from outside."""
        inside = [(number, start) for start, (number, size) in self._own.items() if 0 <= address - start < max(1, size)]
        return f"made {max(inside)[0]} +{address - max(inside)[1]}" if inside else f"outside {address:#x}"


class Operations(TorchDispatchMode):
    """Below autograd and below what is written in C++: tells a watch what is done."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return self.watch.operation(function, args, kwargs or {})


class GraphOnCpu:
    """Stands for `CudaGraph` on a CPU; made by `Captures`."""

    def __init__(self, captures: "Captures") -> None:
        self.captures = captures
        self._made: list[tuple[StorageWeakRef, torch.dtype]] = []  # by the last run

    def current(self) -> Any:
        return nullcontext()

    def buffer(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def warm_up(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        function(*inputs)  # once is enough to fill caches

    def capture(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        self.function, self.inputs = function, inputs
        with self.captures.watching() as watch:
            self.outputs = function(*inputs)
        self.steps, self._made = watch.steps, watch.made
        self.captures.functions.append(name_of(function))
        poison(self._made)
        return self.outputs

    def replay(self) -> None:
        with self.captures.watching() as watch:
            found = self.function(*self.inputs)
        for number, (step, captured) in enumerate(zip(watch.steps, self.steps)):
            if step != captured:
                raise NotReplayed(f"{name_of(self.function)}, step {number}:\n  captured {captured}\n  now      {step}")
        if len(watch.steps) != len(self.steps):
            raise NotReplayed(f"{name_of(self.function)}: {len(self.steps)} steps captured, {len(watch.steps)} now")
        values = [one.clone() for one in found]
        poison(self._made)
        self._made = watch.made
        for output, value in zip(self.outputs, values, strict=True):
            output.copy_(value)
        self.captures.replays.append(name_of(self.function))

    def finish(self) -> None:
        pass


class Captures:
    """What was captured on a CPU, and what is watched now.

    functions: the names of what was captured; replays: of what was replayed
    """

    def __init__(self) -> None:
        self.functions, self.replays = list[str](), list[str]()
        self.watches: list[Watch] = []

    def __call__(self, device: torch.device) -> GraphOnCpu:
        return GraphOnCpu(self)

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        with Watch() as watch:
            self.watches.append(watch)
            try:
                yield watch
            finally:
                self.watches.remove(watch)

    def launched(self, source: str, name: str, blocks: Any, parameters: bytes, options: dict[str, Any]) -> None:
        for watch in self.watches:
            watch.launch(source, name, blocks, parameters, options)


def poison(made: Sequence[tuple[StorageWeakRef, torch.dtype]]) -> None:
    """Overwrite what is still alive of what a run made: the memory of a graph, which the next replay uses again."""
    for reference, dtype in made:
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is not None and storage.nbytes():
            value = float("nan") if dtype.is_floating_point else FRESH.get(dtype, 0x7BAD)
            torch.empty(0, dtype=dtype).set_(storage).fill_(value)


def place() -> str:
    """The innermost line of the package that runs now."""
    lines = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(PACKAGE_FOLDER))]
    return f"{lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}" if lines else "a line outside of the package"


def name_of(function: Any) -> str:
    """Of what a function or a part of one runs, without the module."""
    return name_of(function.func) if hasattr(function, "func") else function.__qualname__


def is_address(word: int) -> bool:
    """Whether 8 bytes of a kernel's parameters are an address in this process; two small numbers are not."""
    return 0x5000 <= word >> 32 < 0x8000


def is_masked(name: str, args: Any) -> bool:
    """Whether an index is a mask, so that the number of places is read back; one value may fill a mask."""
    one_value = name.startswith("index_put") and isinstance(args[2], Tensor) and args[2].numel() == 1
    masks = [one for one in tree_leaves(args[1]) if isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8)]
    return bool(masks) and not one_value


def counts_unknown(args: Any, kwargs: Any) -> bool:
    """Whether the length of what `repeat_interleave` makes is read back."""
    counts = args[1] if len(args) > 1 else kwargs.get("repeats")
    return isinstance(counts, Tensor) and kwargs.get("output_size") is None


def storages(parts: Any) -> dict[int, Tensor]:
    """The tensors among parts, by where their memory begins."""
    return {one.untyped_storage().data_ptr(): one for one in tree_leaves(parts) if isinstance(one, Tensor)}
