"""A guard that raises where device code would make the host wait for a device that works by itself.

On a CPU nothing waits, so what would is refused by name: numbers that are read from a tensor,
results whose shape depends on values, copies to the host, and copies to a device that are not
started and left alone.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.kernels.kernelset import KernelSet


class Waited(AssertionError):
    """The host would have waited."""


# Ops that look at values to know what to return, by name without the overload.
_OPS = """_local_scalar_dense item is_nonzero nonzero masked_select equal allclose unique _unique
_unique2 unique_dim unique_consecutive unique_dim_consecutive bincount one_hot argwhere""".split()
# Of these only with a mask of booleans, or with a tensor that says how often.
_INDEXING = "index index_put index_put_ _index_put_impl_ _unsafe_index".split()
# Python's own ways to values: no op, or not always.
_METHODS = """item tolist numpy cpu cuda __array__ __bool__ __int__ __float__ __index__ __complex__
__contains__ __format__ __repr__ is_nonzero""".split()
_MAKERS = ("tensor", "as_tensor", "asarray")

_state = threading.local()


def _is_on() -> bool:
    return getattr(_state, "is_on", False)


@contextmanager
def _set(is_on: bool) -> Iterator[None]:
    before = _is_on()
    _state.is_on = is_on
    try:
        yield
    finally:
        _state.is_on = before


def _refuse(what: str) -> None:
    with _set(False):
        raise Waited(f"{what}: the host would wait for the device")


class _Watch(TorchDispatchMode):
    """Looks at every op of this thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_on():
            _state.num_ops = getattr(_state, "num_ops", 0) + 1
            name = func._schema.name.split("::")[1]
            if name in _OPS or (name == "where" and len(args) == 1):
                _refuse(name)
            if name == "repeat_interleave" and any(isinstance(one, Tensor) for one in args[1:2]):
                _refuse(name)
            if name in _INDEXING and any(
                one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1]
            ):
                _refuse(f"{name} with a mask")
        return func(*args, **(kwargs or {}))


def _refusing(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def method(self: Tensor, *args: Any, **options: Any) -> Any:
        if _is_on():
            _refuse(name)
        return inner(self, *args, **options)

    return method


def _to(inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def to(self: Tensor, *args: Any, **options: Any) -> Any:
        goes = [one for one in (*args, *options.values()) if not isinstance(one, torch.dtype)]
        is_copy = any(isinstance(one, str | torch.device | Tensor) for one in goes)
        if _is_on() and is_copy and not options.get("non_blocking"):
            _refuse("to another device")
        return inner(self, *args, **options)

    return to


def _making(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def make(data: Any, *args: Any, **options: Any) -> Any:
        if _is_on() and (options.get("device") is not None or isinstance(data, Tensor)):
            _refuse(f"{name} on a device, from the host's memory")
        return inner(data, *args, **options)

    return make


@contextmanager
def watching() -> Iterator[None]:
    """In the block, functions that are `guarded` raise Waited where the host would wait."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _METHODS:
            patch.setattr(Tensor, name, _refusing(name, getattr(Tensor, name)))
        patch.setattr(Tensor, "to", _to(Tensor.to))
        for name in _MAKERS:
            patch.setattr(torch, name, _making(name, getattr(torch, name)))
        yield


def guarded(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A function of device code, watched in whatever thread it runs."""

    @wraps(inner)
    def watched(*args: Any, **options: Any) -> Any:
        with _Watch(), _set(True):
            return inner(*args, **options)

    return watched


def unguarded(inner: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may do what it wants, such as an op of a CPU."""

    @wraps(inner)
    def free(*args: Any, **options: Any) -> Any:
        with _set(False):
            return inner(*args, **options)

    return free


def unguarded_kernels(kernels: KernelSet) -> KernelSet:
    """The same ops, which may do what suits their backend."""
    ops = {one.name: getattr(kernels, one.name) for one in fields(kernels) if one.name != "name"}
    return replace(kernels, **{name: unguarded(op) for name, op in ops.items()})
