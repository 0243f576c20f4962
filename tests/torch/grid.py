"""Every operation of torch.distributed, done by the group under test and by gloo, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
"""Of those that gloo reduces; the tests of mrc.collectives have all."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIZES = (0, 1, 7, 1000)
OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
BITS = {"and": dist.ReduceOp.BAND, "or": dist.ReduceOp.BOR, "xor": dist.ReduceOp.BXOR}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}
COUNT = [0]
"""Comparisons made."""


def differences(gloo: dist.ProcessGroup) -> list[str]:
    """Return which operations gave something else than gloo's, or numpy-like arithmetic's."""
    wrong = []
    for name, do in cases():
        torch.manual_seed(hash_of(name) + dist.get_rank())
        ours = do(dist.group.WORLD)
        torch.manual_seed(hash_of(name) + dist.get_rank())
        theirs = do(gloo)
        COUNT[0] += 1
        if not alike(ours, theirs):
            wrong.append(f"{name}: {ours!s:.100} not {theirs!s:.100}")
    return wrong


def hash_of(name: str) -> int:
    """Return a number that is the same in all processes."""
    return sum(ord(character) * (i + 1) for i, character in enumerate(name))


def alike(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Compare: floats within the usual tolerance, all else bit for bit."""
    if len(ours) != len(theirs):
        return False
    for one, other in zip(ours, theirs, strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        tolerance = TOLERANCE.get(one.dtype, 0)
        if not torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance):
            return False
    return True


def numbers(size: int, dtype: torch.dtype) -> Tensor:
    """Return some numbers whose products stay in range."""
    if dtype is torch.bool:
        return torch.rand(size) < 0.5
    if dtype.is_floating_point:
        return (torch.rand(size) + 0.5).to(dtype)
    return torch.randint(0, 5, (size,)).to(dtype)


Do = Callable[[Any], list[Tensor]]


def cases() -> Iterator[tuple[str, Do]]:
    """Yield a name and what to do with a group, for everything there is."""
    # Of many ranks it is their number that matters, and the time it takes.
    for size in SIZES if dist.get_world_size() < 5 else (1, 7):
        for dtype in (*INTEGERS, *FLOATS):
            for name, op in OPS.items():
                yield f"all_reduce {name} {dtype} {size}", all_reduced(size, dtype, op)
            if dtype in INTEGERS:
                for name, op in BITS.items():
                    yield f"all_reduce {name} {dtype} {size}", all_reduced(size, dtype, op)
            yield f"reduce {dtype} {size}", reduced(size, dtype)
            yield f"reduce_scatter {dtype} {size}", reduce_scattered(size, dtype)
        for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float32):
            for root in range(dist.get_world_size()):
                yield f"broadcast {dtype} {size} {root}", broadcast(size, dtype, root)
                yield f"gather {dtype} {size} {root}", gathered(size, dtype, root)
                yield f"scatter {dtype} {size} {root}", scattered(size, dtype, root)
            for each in (all_gathered, into_tensor, all_to_all, exchanged, ring):
                yield f"{each.__name__} {dtype} {size}", each(size, dtype)
    yield from odd_ones()


def all_reduced(size: int, dtype: torch.dtype, op: Any) -> Do:
    """Reduce on all ranks."""

    def do(group: Any) -> list[Tensor]:
        tensor = numbers(size, dtype)
        dist.all_reduce(tensor, op, group=group)
        return [tensor]

    return do


def reduced(size: int, dtype: torch.dtype) -> Do:
    """Reduce to the last rank; what the others have then is nobody's business."""

    def do(group: Any) -> list[Tensor]:
        tensor, root = numbers(size, dtype), dist.get_world_size() - 1
        dist.reduce(tensor, root, group=group)
        return [tensor] if dist.get_rank() == root else []

    return do


def reduce_scattered(size: int, dtype: torch.dtype) -> Do:
    """Reduce, a block for each rank; gloo does it by reducing everything."""

    def do(group: Any) -> list[Tensor]:
        whole = numbers(size * dist.get_world_size(), dtype)
        if not is_ours(group):
            dist.all_reduce(whole, group=group)
            mine = whole[size * dist.get_rank() :][:size]
            return [mine, mine]
        one, other = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
        dist.reduce_scatter_tensor(one, whole, group=group)
        dist.reduce_scatter(other, blocks(whole, size), group=group)
        return [one, other]

    return do


def blocks(whole: Tensor, size: int) -> list[Tensor]:
    """Cut a tensor into a block for each rank."""
    return list(torch.split_with_sizes(whole, [size] * parts()))


def parts() -> int:
    """Return how many ranks there are."""
    return dist.get_world_size()


def broadcast(size: int, dtype: torch.dtype, root: int) -> Do:
    """Give all what one has."""

    def do(group: Any) -> list[Tensor]:
        tensor = numbers(size, dtype)
        dist.broadcast(tensor, root, group=group)
        return [tensor]

    return do


def gathered(size: int, dtype: torch.dtype, root: int) -> Do:
    """Give one what all have."""

    def do(group: Any) -> list[Tensor]:
        mine = dist.get_rank() == root
        into = [torch.empty(size, dtype=dtype) for _ in range(parts())] if mine else None
        dist.gather(numbers(size, dtype), into, root, group=group)
        return into or []

    return do


def scattered(size: int, dtype: torch.dtype, root: int) -> Do:
    """Give all what one has, a block each."""

    def do(group: Any) -> list[Tensor]:
        given = [numbers(size, dtype) for _ in range(parts())]
        tensor = torch.empty(size, dtype=dtype)
        dist.scatter(tensor, given if dist.get_rank() == root else None, root, group=group)
        return [tensor]

    return do


def all_gathered(size: int, dtype: torch.dtype) -> Do:
    """Give all what all have."""

    def do(group: Any) -> list[Tensor]:
        into = [torch.empty(size, dtype=dtype) for _ in range(parts())]
        dist.all_gather(into, numbers(size, dtype), group=group)
        return into

    return do


def into_tensor(size: int, dtype: torch.dtype) -> Do:
    """Give all what all have, in one tensor."""

    def do(group: Any) -> list[Tensor]:
        into = torch.empty(size * parts(), dtype=dtype)
        dist.all_gather_into_tensor(into, numbers(size, dtype), group=group)
        return [into]

    return do


def all_to_all(size: int, dtype: torch.dtype) -> Do:
    """Give each rank another part: even ones, uneven ones, and those of lists."""

    def do(group: Any) -> list[Tensor]:
        rank, ranks = dist.get_rank(), parts()
        even = torch.empty(size * ranks, dtype=dtype)
        dist.all_to_all_single(even, numbers(size * ranks, dtype), group=group)
        given = [rank + other for other in range(ranks)]
        uneven = torch.empty(sum(given), max(size, 1), dtype=dtype)
        source = numbers(sum(given) * max(size, 1), dtype).view(uneven.shape)
        dist.all_to_all_single(uneven, source, given, given, group=group)
        if not is_ours(group):
            # gloo has no all_to_all of lists.
            torch.manual_seed(1)
            dist.all_to_all_single(even, numbers(size * ranks, dtype), group=group)
            return [uneven, *blocks(even, size)]
        torch.manual_seed(1)
        whole = numbers(size * ranks, dtype)
        listed = [torch.empty(size, dtype=dtype) for _ in range(ranks)]
        dist.all_to_all(listed, blocks(whole, size), group=group)
        return [uneven, *listed]

    return do


def exchanged(size: int, dtype: torch.dtype) -> Do:
    """Send to the next rank and receive from the one before, both at once."""

    def do(group: Any) -> list[Tensor]:
        rank, ranks = dist.get_rank(), parts()
        tensor = torch.empty(size, dtype=dtype)
        if ranks == 1:
            return []
        to, source = (rank + 1) % ranks, (rank - 1) % ranks
        each = [
            dist.P2POp(dist.isend, numbers(size, dtype), to, group=group, tag=3),
            dist.P2POp(dist.irecv, tensor, source, group=group, tag=3),
        ]
        for work in dist.batch_isend_irecv(each):
            work.wait()
        return [tensor]

    return do


def ring(size: int, dtype: torch.dtype) -> Do:
    """Send on what comes, once round."""

    def do(group: Any) -> list[Tensor]:
        rank, ranks = dist.get_rank(), parts()
        tensor = numbers(size, dtype)
        if ranks == 1:
            return [tensor]
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, ranks - 1, group=group)
        else:
            dist.recv(tensor, rank - 1, group=group)
            dist.send(tensor, (rank + 1) % ranks, group=group)
        return [tensor]

    return do


def odd_ones() -> Iterator[tuple[str, Do]]:
    """Yield what is not of one plain tensor."""

    def no_dimensions(group: Any) -> list[Tensor]:
        tensor = torch.tensor(dist.get_rank() + 1.5)
        dist.all_reduce(tensor, group=group)
        return [tensor]

    def complex_sum(group: Any) -> list[Tensor]:
        """Torch itself makes a sum of twice as many floats of it."""
        tensor = torch.complex(numbers(5, torch.float32), numbers(5, torch.float32) + 1)
        dist.all_reduce(tensor, group=group)
        return [torch.view_as_real(tensor)]

    def strided(group: Any) -> list[Tensor]:
        whole = numbers(24, torch.float32).view(4, 6)
        dist.all_reduce(whole.t(), group=group) if is_ours(group) else dist.all_reduce(
            whole, group=group
        )
        return [whole]

    def columns(group: Any) -> list[Tensor]:
        whole = numbers(24, torch.float32).view(4, 6)
        column = whole[:, 2] if is_ours(group) else whole[:, 2].contiguous()
        dist.broadcast(column, 0, group=group)
        return [column.contiguous()]

    def leaf(group: Any) -> list[Tensor]:
        tensor = numbers(5, torch.float32).requires_grad_()
        with torch.no_grad():
            dist.all_reduce(tensor, group=group)
        return [tensor.detach()]

    def objects(group: Any) -> list[Tensor]:
        said: list[Any] = [None] * parts()
        dist.all_gather_object(said, {"rank": dist.get_rank(), "text": "x" * 1000}, group=group)
        told: list[Any] = [said, dist.get_rank()]
        dist.broadcast_object_list(told, 0, group=group)
        return [torch.tensor([each["rank"] for each in told[0]]), torch.tensor(told[1])]

    def objects_of_one(group: Any) -> list[Tensor]:
        rank, ranks = dist.get_rank(), parts()
        all_of_them: list[Any] | None = [None] * ranks if rank == 0 else None
        dist.gather_object({"rank": rank}, all_of_them, 0, group=group)
        given: list[Any] = [None]
        dist.scatter_object_list(given, [f"for {each}" for each in range(ranks)], 0, group=group)
        passed: list[Any] = [rank]
        if ranks > 1 and rank == 0:
            dist.send_object_list(passed, 1, group=group)
        elif rank == 1:
            dist.recv_object_list(passed, 0, group=group)
        said = [each["rank"] for each in all_of_them or []]
        return [torch.tensor(said), torch.tensor([int(given[0].split()[-1]), passed[0]])]

    for each in (no_dimensions, complex_sum, strided, columns, leaf, objects, objects_of_one):
        yield each.__name__, each
    yield from coalesced_ones()
    yield from functional_ones()


def is_ours(group: Any) -> bool:
    """Tell whether it is the group under test: gloo lacks some forms, and others take their place.

    What it lacks is a list of `all_to_all`, `reduce_scatter`, and tensors that are not contiguous.
    """
    return group is dist.group.WORLD


def reduced_one_by_one(tensors: list[Tensor], group: Any) -> list[Tensor]:
    """Reduce, a tensor after the other."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
    return tensors


def coalesced_ones() -> Iterator[tuple[str, Do]]:
    """Yield several operations begun as one."""

    def reduced_together(group: Any) -> list[Tensor]:
        tensors = [numbers(size, torch.float32) for size in (3, 0, 5)]
        if not is_ours(group):
            return reduced_one_by_one(tensors, group)
        dist.all_reduce_coalesced(tensors, group=group)
        return tensors

    def reduced_by_manager(group: Any) -> list[Tensor]:
        tensors = [numbers(size, torch.int64) for size in (4, 1)]
        if not is_ours(group):
            return reduced_one_by_one(tensors, group)
        with _coalescing_manager(group, async_ops=True) as together:
            reduced_one_by_one(tensors, group)
        together.wait()
        return tensors

    def gathered_by_manager(group: Any) -> list[Tensor]:
        sources = [numbers(size, torch.float32) for size in (3, 0, 2)]
        into = [torch.empty(source.numel() * parts()) for source in sources]
        with _coalescing_manager(group) if is_ours(group) else nullcontext():
            for target, source in zip(into, sources, strict=True):
                dist.all_gather_into_tensor(target, source, group=group)
        return into

    yield "reduced_together", reduced_together
    yield "reduced_by_manager", reduced_by_manager
    yield "gathered_by_manager", gathered_by_manager
    yield "scattered_by_manager", scattered_by_manager
    yield "gathered_coalesced", gathered_coalesced


def scattered_by_manager(group: Any) -> list[Tensor]:
    """Reduce blocks of several tensors."""
    sources = [numbers(size * parts(), torch.int32) for size in (3, 1)]
    if not is_ours(group):
        reduced_one_by_one(sources, group)
        return [source.chunk(parts())[dist.get_rank()] for source in sources]
    into = [torch.empty(source.numel() // parts(), dtype=torch.int32) for source in sources]
    with _coalescing_manager(group):
        for target, source in zip(into, sources, strict=True):
            dist.reduce_scatter_tensor(target, source, group=group)
    return into


def gathered_coalesced(group: Any) -> list[Tensor]:
    """Give all several tensors of all, which differ in size."""
    sources = [numbers(size, torch.float64) for size in (2, 5)]
    into = [[torch.empty_like(source) for source in sources] for _ in range(parts())]
    if is_ours(group):
        dist.all_gather_coalesced(into, sources, group=group)
    else:
        for i, source in enumerate(sources):
            dist.all_gather([each[i] for each in into], source, group=group)
    return [tensor for each in into for tensor in each]


def functional_ones() -> Iterator[tuple[str, Do]]:
    """Yield the forms that return new tensors, as DTensor uses them; and scattered memory."""

    def functions(group: Any) -> list[Tensor]:
        tensor = numbers(4 * parts(), torch.float32)
        return [
            functional.all_reduce(tensor, "sum", group).clone(),
            functional.all_gather_single(tensor, 0, group).clone(),
            functional.broadcast(tensor, 0, group).clone(),
            functional.all_to_all_single(tensor, None, None, group).clone(),
        ]

    def function_of_blocks(group: Any) -> list[Tensor]:
        tensor = numbers(4 * parts(), torch.float32)
        if is_ours(group):
            return [functional.reduce_scatter_single(tensor, "avg", 0, group).clone()]
        dist.all_reduce(tensor, group=group)
        return [(tensor / parts()).chunk(parts())[dist.get_rank()]]

    def scattered_memory(group: Any) -> list[Tensor]:
        """Columns in and out."""
        ours, ranks = is_ours(group), parts()
        source = numbers(6 * ranks, torch.float32).view(6, ranks)[:, 0]
        into = [torch.zeros(6, 2)[:, 1] for _ in range(ranks)]
        whole = torch.zeros(6 * ranks, 2)[:, 0]
        if ours:
            dist.all_gather(into, source, group=group)
            dist.all_gather_into_tensor(whole, source, group=group)
            return [*(each.contiguous() for each in into), whole.contiguous()]
        into = [torch.empty(6) for _ in range(ranks)]
        dist.all_gather(into, source.contiguous(), group=group)
        return [*into, torch.cat(into)]

    def no_tensors_of_one_rank_alone(group: Any) -> list[Tensor]:
        """A barrier that is waited for later, between others."""
        work = dist.barrier(group=group, async_op=True)
        tensor = numbers(2, torch.int64)
        dist.all_reduce(tensor, group=group)
        assert work is not None
        work.wait()
        return [tensor]

    @torch.inference_mode()
    def inference(group: Any) -> list[Tensor]:
        """Tensors that nobody may write to in another mode, such as that of the loop's thread."""
        into = [torch.empty(3) for _ in range(parts())]
        dist.all_gather(into, numbers(3, torch.float32), group=group)
        said: list[Any] = [None] * parts()
        dist.all_gather_object(said, dist.get_rank(), group=group)
        return [*into, torch.tensor(said)]

    for each in (
        functions,
        function_of_blocks,
        scattered_memory,
        no_tensors_of_one_rank_alone,
        inference,
    ):
        yield each.__name__, each


def lacking() -> list[str]:
    """Return which operations that gloo lacks give something else than computed here."""
    rank, ranks = dist.get_rank(), parts()
    wrong = []

    def expect(what: str, got: Tensor, wanted: Tensor) -> None:
        COUNT[0] += 1
        if got.dtype != wanted.dtype or not torch.equal(got, wanted):
            wrong.append(f"{what}: {got} not {wanted}")

    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        tensor = torch.full((5,), 2 * rank).to(dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        expect(f"average {dtype}", tensor, torch.full((5,), ranks - 1).to(dtype))
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.uint64):
        tensor = torch.full((3,), rank + 1).to(dtype)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        expect(f"maximum {dtype}", tensor, torch.full((3,), ranks).to(dtype))
    for op, wanted in ((dist.ReduceOp.SUM, True), (dist.ReduceOp.MIN, ranks == 1)):
        tensor = torch.tensor([rank == 0, False])
        dist.all_reduce(tensor, op)
        expect(f"{op} of bools", tensor, torch.tensor([wanted, False]))
    wide = torch.full((3,), 1.0 + rank).to(torch.float8_e5m2)
    dist.broadcast(wide, ranks - 1)
    expect("float8", wide.to(torch.float32), torch.full((3,), float(ranks)))
    return wrong
