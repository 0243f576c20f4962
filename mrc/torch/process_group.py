"""A torch process group whose operations are those of an `mrc.collectives` communicator.

Every method takes what torch's C++ and Python call it with, and returns a `Work` at once; the
operations of a group run one after the other in the order of the calls, in the loop's thread.
"""

# torch's stubs have overloads by which nothing calls a group that is written in Python.
# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from mrc.collectives import Communicator
from mrc.collectives import Work as Operation
from mrc.collectives.failures import CommunicatorClosed
from mrc.errors import ConfigError
from mrc.torch.tensors import Flat, check_alike, check_types, reduction_of
from mrc.torch.work import MrcWork
from mrc.torch.worlds import WORLDS, Group

Begin = Callable[[Communicator, float | None], Operation[Any]]
"""Begins an operation, with its time limit in seconds; None: that of the group."""


class ProcessGroupMrc(dist.ProcessGroup):
    """The ranks of one group; made by `init_process_group` and `new_group`.

    Raises:
        MrcError: on creation: not all ranks came in time, or one cannot be reached.
        ConfigError: from an operation: tensors that it cannot take.
    """

    def __init__(self, group: Group, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the stub knows one form
        self._group = group
        self._name = self._description = ""

    @classmethod
    def create(cls, options: Any, _backend_options: Any = None) -> Self:
        """Make the group that torch asks for; all its ranks call this."""
        return cls(WORLDS.enter(options), options.group_rank, options.group_size)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name of the backend."""
        return "mrc"

    # torch's base class asks the C++ backends of a group for devices and name; this one has none.

    @property
    def _device_types(self) -> list[torch.device]:
        """Where its tensors are, which checkpoints ask."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Self:
        """Return what works on the tensors of a device.

        Raises:
            RuntimeError: nothing does; torch's own kind, which its callers expect.
        """
        if device.type != "cpu":
            raise RuntimeError(f"backend mrc takes tensors on the CPU, not on {device}")
        return self

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name by which torch finds the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Take a name from torch."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return what the user called the group."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802 - torch's name
        """Take a description from torch."""
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """Let operations that say nothing else take that long."""
        communicator, seconds = self._group.communicator, timeout.total_seconds()

        def changed() -> None:
            communicator.timeout_s = seconds

        self._group.thread.soon(changed)

    # Operations of all ranks.

    def allreduce(self, tensors: Sequence[Tensor], opts: Any) -> MrcWork:
        """Reduce a tensor in place, on all ranks."""
        return self._all_reduce("all_reduce", [_only("all_reduce", tensors)], opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any) -> MrcWork:
        """Reduce several tensors of one type, together."""
        return self._all_reduce("all_reduce_coalesced", tensors, opts)

    def _all_reduce(self, what: str, tensors: Sequence[Tensor], opts: Any) -> MrcWork:
        flat = Flat(tensors)
        op, dtype = reduction_of(opts.reduceOp, tensors[0])
        return self._begin(
            what,
            lambda c, s: c.all_reduce(flat.bytes, op, dtype=dtype, timeout_s=s),
            tensors,
            opts,
            flat.give_back,
        )

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> MrcWork:
        """Reduce a tensor in place, at the root."""
        tensor = _only("reduce", tensors)
        flat, root = Flat([tensor]), opts.rootRank
        op, dtype = reduction_of(opts.reduceOp, tensor)
        return self._begin(
            "reduce",
            lambda c, s: c.reduce(flat.bytes, op, root=root, dtype=dtype, timeout_s=s),
            tensors,
            opts,
            flat.give_back if self.rank() == root else _nothing,
        )

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> MrcWork:
        """Give all ranks the tensor of the root."""
        flat, root = Flat([_only("broadcast", tensors)]), opts.rootRank
        return self._begin(
            "broadcast",
            lambda c, s: c.broadcast(flat.bytes, root=root, timeout_s=s),
            tensors,
            opts,
            flat.give_back if self.rank() != root else _nothing,
        )

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        """Give all ranks the tensors of all, in order."""
        source, into = _only("all_gather", inputs), _only("all_gather", outputs)
        check_alike("all_gather", into, [source])
        return self._all_gather("all_gather", into, [source], opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        """Give all ranks several tensors of all: those of rank r are ``outputs[r]``."""
        into = [tensor for each in outputs for tensor in each]
        check_alike("all_gather_coalesced", into, inputs)
        return self._all_gather("all_gather_coalesced", into, inputs, opts)

    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any) -> MrcWork:
        """Give all ranks the tensors of all, one behind the other."""
        return self._all_gather("all_gather_into_tensor", [output], [source], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        """Do `_allgather_base` for several pairs of tensors."""
        works = [
            self._allgather_base(output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._together("all_gather_into_tensor_coalesced", works, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _all_gather(
        self, what: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        check_types(what, outputs, inputs)
        source, target = Flat(inputs), Flat(outputs, filled=False)
        return self._begin(
            what,
            lambda c, s: c.all_gather(source.bytes, target.bytes, timeout_s=s),
            outputs,
            opts,
            target.give_back,
        )

    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        """Give the root the tensors of all, in order."""
        given, root = _only("gather", inputs), opts.rootRank
        into = _only("gather", outputs) if self.rank() == root else []
        check_alike("gather", into, [given])
        source = Flat([given])
        target = Flat(into, filled=False) if into else None
        return self._begin(
            "gather",
            lambda c, s: c.gather(
                source.bytes, None if target is None else target.bytes, root=root, timeout_s=s
            ),
            into,
            opts,
            _nothing if target is None else target.give_back,
        )

    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> MrcWork:
        """Give rank r tensor r of the root."""
        into, root = _only("scatter", outputs), opts.rootRank
        given = _only("scatter", inputs) if self.rank() == root else []
        check_alike("scatter", given, [into])
        target = Flat([into], filled=False)
        source = Flat(given) if given else None
        return self._begin(
            "scatter",
            lambda c, s: c.scatter(
                None if source is None else source.bytes, target.bytes, root=root, timeout_s=s
            ),
            outputs,
            opts,
            target.give_back,
        )

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> MrcWork:
        """Reduce the tensors of all ranks; rank r gets number r."""
        output, given = _only("reduce_scatter", outputs), _only("reduce_scatter", inputs)
        check_alike("reduce_scatter", given, [output])
        return self._reduce_scatter("reduce_scatter", output, given, opts)

    def _reduce_scatter_base(self, output: Tensor, source: Tensor, opts: Any) -> MrcWork:
        """Reduce the tensors of all ranks; rank r gets block r."""
        return self._reduce_scatter("reduce_scatter_tensor", output, [source], opts)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        """Do `_reduce_scatter_base` for several pairs of tensors."""
        works = [
            self._reduce_scatter_base(output, source, opts)
            for output, source in zip(outputs, inputs, strict=True)
        ]
        return self._together("reduce_scatter_tensor_coalesced", works, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduce_scatter(
        self, what: str, output: Tensor, inputs: Sequence[Tensor], opts: Any
    ) -> MrcWork:
        check_types(what, [output], inputs)
        source, target = Flat(inputs), Flat([output], filled=False)
        op, dtype = reduction_of(opts.reduceOp, output)
        return self._begin(
            what,
            lambda c, s: c.reduce_scatter(source.bytes, target.bytes, op, dtype=dtype, timeout_s=s),
            [output],
            opts,
            target.give_back,
        )

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any) -> MrcWork:
        """Give rank r tensor r of all ranks, which may differ in size."""
        counts = [[tensor.numel() for tensor in each] for each in (inputs, outputs)]
        return self._all_to_all("all_to_all", outputs, inputs, counts, opts)

    def alltoall_base(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any,
    ) -> MrcWork:
        """Give rank r part r of the tensors of all; parts are cut along the first dimension."""
        counts = [
            self._split("input", source, input_splits),
            self._split("output", output, output_splits),
        ]
        return self._all_to_all("all_to_all_single", [output], [source], counts, opts)

    all_to_all_single = alltoall_base

    def _split(self, what: str, tensor: Tensor, splits: Sequence[int]) -> list[int]:
        """Return how many elements there are for, or from, each rank."""
        length = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if length % self.size():
                raise ConfigError(
                    f"all_to_all_single: {length} rows of {what} for {self.size()} ranks; give"
                    " the split sizes"
                )
            splits = [length // self.size()] * self.size()
        if sum(splits) != length:
            raise ConfigError(f"all_to_all_single: {what} splits {list(splits)} of {length} rows")
        return [rows * (tensor.numel() // length if length else 0) for rows in splits]

    def _all_to_all(
        self,
        what: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        counts: Sequence[Sequence[int]],
        opts: Any,
    ) -> MrcWork:
        source, target = Flat(inputs), Flat(outputs, filled=False)
        given, got = ([n * source.element_bytes for n in each] for each in counts)
        return self._begin(
            what,
            lambda c, s: c.all_to_all(
                source.bytes, target.bytes, source_counts=given, target_counts=got, timeout_s=s
            ),
            outputs,
            opts,
            target.give_back,
        )

    def barrier(self, opts: Any = None) -> MrcWork:
        """Be over when all ranks have come here."""
        return self._begin("barrier", lambda c, s: c.barrier(timeout_s=s), [], opts, _nothing)

    # Operations of two ranks.

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> MrcWork:
        """Send a tensor to a rank."""
        flat = Flat([_only("send", tensors)])
        return self._begin(
            f"send to rank {to}", lambda c, _: c.send(flat.bytes, to, tag=tag), tensors, None
        )

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> MrcWork:
        """Receive a tensor from a rank."""
        flat = Flat([_only("recv", tensors)], filled=False)
        return self._begin(
            f"recv from rank {source}",
            lambda c, _: c.receive(flat.bytes, source, tag=tag),
            tensors,
            None,
            flat.give_back,
        )

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> MrcWork:
        """Refuse: nothing is sent before the receiver has told that one rank where to.

        Raises:
            ConfigError: always.
        """
        del tensors, tag
        raise ConfigError("recv from any source: backend mrc needs src, as NCCL does")

    # The end.

    def shutdown(self) -> None:
        """Wait for what is under way, and let go of the group. Twice is once."""
        WORLDS.leave(self._group, gently=True)

    def abort(self) -> None:
        """Let go of the group at once."""
        WORLDS.leave(self._group, gently=False)

    # Beginning.

    def _begin(
        self,
        what: str,
        begin: Begin,
        tensors: Sequence[Tensor],
        opts: Any,
        then: Callable[[], None] = lambda: None,
    ) -> MrcWork:
        """Let an operation begin when its turn has come.

        Args:
            what: it is.
            begin: begins it, in the loop's thread.
            tensors: its results.
            opts: of the call, for the time limit.
            then: what to do with the results when they are there.
        """
        work = MrcWork(what, tensors)
        communicator, timeout_s = self._group.communicator, _timeout_s(opts)

        def begun() -> None:
            try:
                operation = begin(communicator, timeout_s)
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                work.finish(error, then)
                return
            operation.add_done_callback(lambda done: work.finish(_error_of(done), then))

        self._group.thread.soon(begun)
        return work

    def _together(self, what: str, works: Sequence[MrcWork], tensors: Sequence[Tensor]) -> MrcWork:
        """Return the handle of several operations: they end in order, so the last one's tells."""
        work = MrcWork(what, tensors)
        failed = next((each.exception() for each in works if each.exception()), None)
        if not works or failed is not None:
            work.finish(failed, _nothing)
            return work

        def ended(_: Any) -> None:
            errors = [error for each in works if (error := each.exception()) is not None]
            work.finish(errors[0] if errors else None, _nothing)

        works[-1].get_future().add_done_callback(ended)
        return work


def _nothing() -> None:
    """Do nothing when it is over."""


def _only(what: str, each: Sequence[Any]) -> Any:
    """Return the only one of a list: torch passes one a device, and there is one."""
    if len(each) != 1:
        raise ConfigError(f"{what} of {len(each)} tensors at once: backend mrc takes one")
    return each[0]


def _timeout_s(opts: Any) -> float | None:
    """Return the time limit that a call says; torch leaves it negative where none was given."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


def _error_of(done: Operation[Any]) -> BaseException | None:
    """Return what went wrong with an operation that is over."""
    try:
        done.result()
    except asyncio.CancelledError:
        return CommunicatorClosed("the group was destroyed meanwhile")
    except Exception as error:  # noqa: BLE001 - whoever waits is told
        return error
    return None
