"""The memory of tensors, as collectives want it: flat, and without copying where that can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from mrc.collectives import ReduceOp
from mrc.errors import ConfigError

_DTYPES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_OPS = {
    dist.ReduceOp.SUM: ReduceOp.SUM,
    dist.ReduceOp.PRODUCT: ReduceOp.PRODUCT,
    dist.ReduceOp.MIN: ReduceOp.MIN,
    dist.ReduceOp.MAX: ReduceOp.MAX,
    dist.ReduceOp.AVG: ReduceOp.AVERAGE,
    dist.ReduceOp.BAND: ReduceOp.BIT_AND,
    dist.ReduceOp.BOR: ReduceOp.BIT_OR,
    dist.ReduceOp.BXOR: ReduceOp.BIT_XOR,
}


def check(tensor: Tensor) -> None:
    """Refuse what cannot be sent.

    Raises:
        ConfigError: not on the CPU, sparse, quantized or complex.
    """
    if tensor.device.type != "cpu":
        raise ConfigError(
            f"a tensor on {tensor.device}: backend mrc takes those on the CPU; give the others a"
            " group with another backend (new_group), or copy with .cpu()"
        )
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a {tensor.layout} tensor: backend mrc takes dense ones (.to_dense())")
    if tensor.is_quantized:
        raise ConfigError("a quantized tensor: backend mrc takes plain ones (.dequantize())")
    if tensor.is_complex():
        raise ConfigError(f"a {tensor.dtype} tensor: backend mrc takes real ones (view_as_real)")


def reduction_of(op: Any, tensor: Tensor) -> tuple[ReduceOp, str]:
    """Return how a tensor is reduced, and what its elements are.

    Raises:
        ConfigError: there is no such reduction, or not of such elements.
    """
    found = next((ours for theirs, ours in _OPS.items() if op == theirs), None)
    if found is None:
        raise ConfigError(f"ReduceOp {_name(op)}: backend mrc has {', '.join(map(_name, _OPS))}")
    if tensor.dtype not in _DTYPES:
        raise ConfigError(
            f"elements of {tensor.dtype} cannot be reduced; convert them (.to(torch.float32))"
        )
    return found, _DTYPES[tensor.dtype]


def check_alike(what: str, whole: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Refuse a list whose sizes are not those of the other again and again: it is cut by rank.

    Raises:
        ConfigError: they differ.
    """
    sizes, wanted = [[tensor.numel() for tensor in each] for each in (whole, parts)]
    if wanted and sizes != wanted * (len(sizes) // len(wanted)):
        raise ConfigError(
            f"{what}: tensors of {sizes!r:.80} elements where all have {wanted!r:.80}; pad them, or"
            " take all_to_all, whose parts may differ"
        )


def check_types(what: str, *lists: Sequence[Tensor]) -> None:
    """Refuse tensors of several element types.

    Raises:
        ConfigError: they are.
    """
    types = {str(tensor.dtype) for each in lists for tensor in each}
    if len(types) > 1:
        raise ConfigError(f"{what}: tensors of {' and '.join(sorted(types))}; make them one (.to)")


def _name(op: Any) -> str:
    kinds = dist.ReduceOp.RedOpType.__members__.items()
    return next((name for name, kind in kinds if op == kind), str(op))


class _Bytes:
    """What numpy makes an array of that keeps a tensor's memory.

    `Tensor.numpy` would forbid to resize that memory for ever, which FSDP does.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.numel() * tensor.element_size(),),
            "data": (tensor.data_ptr(), False),
        }


class Flat:
    """One or more tensors as one stretch of memory.

    A contiguous tensor is used where it is; of others, and of several, a copy is made, which
    `give_back` copies back.

    Args:
        tensors: of one element type.
        filled: their contents are needed.

    Raises:
        ConfigError: they cannot be sent, or differ in type.
    """

    def __init__(self, tensors: Sequence[Tensor], *, filled: bool = True) -> None:
        for tensor in tensors:
            check(tensor)
        types = {tensor.dtype for tensor in tensors}
        if len(types) != 1:
            names = ", ".join(sorted(map(str, types)))
            raise ConfigError(f"tensors of one type are wanted together, not of: {names or 'none'}")
        self.tensors = [tensor.detach() for tensor in tensors]
        self.dtype = tensors[0].dtype
        first = self.tensors[0]
        if len(tensors) == 1 and first.is_contiguous() and not first.is_neg():
            self._memory, self._copied = first.reshape(-1), False
            return
        self._copied = True
        self._memory = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=self.dtype)
        if filled:
            for tensor, part in self._parts():
                part.copy_(tensor)

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        sizes = [tensor.numel() for tensor in self.tensors]
        parts = torch.split_with_sizes(self._memory, sizes)
        return [
            (tensor, part.view(tensor.shape))
            for tensor, part in zip(self.tensors, parts, strict=True)
        ]

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The memory."""
        return np.asarray(_Bytes(self._memory))

    @property
    def element_bytes(self) -> int:
        """Size of one element."""
        return self._memory.element_size()

    def give_back(self) -> None:
        """Put what is there now into the tensors, if it is a copy."""
        if not self._copied:
            return
        # A tensor made in inference mode may be written to in that mode alone, and this is the
        # loop's thread, which has a mode of its own. To all other tensors it makes no difference.
        with torch.inference_mode():
            for tensor, part in self._parts():
                tensor.copy_(part)
