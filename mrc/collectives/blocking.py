"""The communicator for scripts: the same calls, which return when they are over.

    with collectives.join_blocking() as communicator:
        communicator.all_reduce(gradient)
        work = communicator.begin.all_reduce(other)     # begins only
        work.wait()

The event loop runs in one thread, which computes nothing of the caller's and so keeps this rank
alive for the others while the caller computes. It ends with the communicator, or with the process.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, ParamSpec, Self, TypeVar

from mrc.collectives.bootstrap import Bootstrap
from mrc.collectives.communicator import Communicator
from mrc.collectives.failures import CommunicatorClosed
from mrc.collectives.joined import join
from mrc.collectives.loop_thread import CLOSE_TIMEOUT_S, LoopThread
from mrc.collectives.member import Work

P = ParamSpec("P")
T = TypeVar("T")


class BlockingWork(Generic[T]):
    """An operation under way in the other thread."""

    def __init__(self, thread: LoopThread, work: Work[T]) -> None:
        self._thread = thread
        self._work = work
        self.what = work.what

    def __repr__(self) -> str:
        return f"<blocking {self._work!r:.1000}>"

    def done(self) -> bool:
        """Tell whether it is over, well or not."""
        return self._work.done()

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for its result.

        Raises:
            MrcError: what went wrong.
            TimeoutError: it is not over within `timeout_s`; it goes on.
        """

        async def waited() -> T:
            return await self._work

        return self._thread.call(waited(), timeout_s)

    def add_done_callback(self, callback: Callable[[BlockingWork[T]], None]) -> None:
        """Call something, in the other thread, when it is over."""

        async def added() -> None:
            self._work.add_done_callback(lambda _: callback(self))

        self._thread.call(added())


def _begun(thread: LoopThread, make: Callable[[], Work[T]]) -> BlockingWork[T]:
    """Begin an operation in the thread, and return its handle."""

    async def begun() -> Work[T]:
        return make()

    return BlockingWork(thread, thread.call(begun()))


class Begin:
    """The operations of a communicator, each of which only begins."""

    def __init__(self, thread: LoopThread, communicator: Communicator) -> None:
        def begin(method: Callable[P, Work[T]]) -> Callable[P, BlockingWork[T]]:
            def begun(*args: P.args, **kwargs: P.kwargs) -> BlockingWork[T]:
                return _begun(thread, lambda: method(*args, **kwargs))

            begun.__name__, begun.__doc__ = method.__name__, method.__doc__
            return begun

        self.all_reduce = begin(communicator.all_reduce)
        self.reduce = begin(communicator.reduce)
        self.broadcast = begin(communicator.broadcast)
        self.reduce_scatter = begin(communicator.reduce_scatter)
        self.all_gather = begin(communicator.all_gather)
        self.gather = begin(communicator.gather)
        self.scatter = begin(communicator.scatter)
        self.all_to_all = begin(communicator.all_to_all)
        self.barrier = begin(communicator.barrier)
        self.send = begin(communicator.send)
        self.receive = begin(communicator.receive)


class BlockingCommunicator:
    """A `Communicator` whose operations return when they are over.

    Attributes:
        begin: the same operations, which return a `BlockingWork` at once.
        rank: of this one, in the group.
        size: of the group.
        ranks: numbers of its members in the whole job.
    """

    def __init__(
        self, thread: LoopThread, communicator: Communicator, *, owns_thread: bool
    ) -> None:
        def whole(method: Callable[P, BlockingWork[T]]) -> Callable[P, T]:
            def waited(*args: P.args, **kwargs: P.kwargs) -> T:
                return method(*args, **kwargs).wait()

            waited.__name__, waited.__doc__ = method.__name__, method.__doc__
            return waited

        self._thread = thread
        self._communicator = communicator
        self._owns_thread = owns_thread
        self.rank = communicator.rank
        self.size = communicator.size
        self.ranks = communicator.ranks
        begin = self.begin = Begin(thread, communicator)
        self.all_reduce = whole(begin.all_reduce)
        self.reduce = whole(begin.reduce)
        self.broadcast = whole(begin.broadcast)
        self.reduce_scatter = whole(begin.reduce_scatter)
        self.all_gather = whole(begin.all_gather)
        self.gather = whole(begin.gather)
        self.scatter = whole(begin.scatter)
        self.all_to_all = whole(begin.all_to_all)
        self.barrier = whole(begin.barrier)
        self.send = whole(begin.send)
        self.receive = whole(begin.receive)
        if owns_thread:
            _open.add(self)

    def __repr__(self) -> str:
        return f"<blocking {self._communicator!r:.1000}>"

    def split(self, color: int | None, key: int = 0) -> BlockingCommunicator | None:
        """Make a communicator of the ranks that say the same color; all must call it."""
        made = self._thread.call(self._communicator.split(color, key))
        return None if made is None else self._other(made)

    def subset(self, ranks: Sequence[int], name: str) -> BlockingCommunicator:
        """Make a communicator of some ranks, this one among them, without asking the others."""

        async def made() -> Communicator:
            return self._communicator.subset(ranks, name)

        return self._other(self._thread.call(made()))

    def survivors(self, *, timeout_s: float | None = None) -> BlockingCommunicator:
        """Make a communicator of the ranks that are left; all that are must call it."""
        return self._other(self._thread.call(self._communicator.survivors(timeout_s=timeout_s)))

    def _other(self, communicator: Communicator) -> BlockingCommunicator:
        return BlockingCommunicator(self._thread, communicator, owns_thread=False)

    def close(self) -> None:
        """Wait for what is under way, and let go of everything. Twice is once."""
        self._end(self._communicator.close)

    def abort(self) -> None:
        """End at once; what is under way is cancelled."""
        self._end(self._communicator.abort)

    def _end(
        self, ending: Callable[[], Coroutine[Any, Any, None]], timeout_s: float | None = None
    ) -> None:
        _open.discard(self)
        try:
            self._thread.call(ending(), timeout_s)
        except CommunicatorClosed:
            return
        finally:
            if self._owns_thread:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


_open: set[BlockingCommunicator] = set()
"""Also those that nobody holds any more: a thread that runs while the interpreter ends crashes."""


@atexit.register
def _close_at_exit() -> None:
    """Say goodbye for who forgot to: nobody should take the end of this process for death."""
    for communicator in list(_open):
        try:
            communicator._end(communicator._communicator.abort, CLOSE_TIMEOUT_S)  # noqa: SLF001
        except Exception:  # noqa: BLE001, S112 - the process ends, and nobody can be told
            continue


def join_blocking(bootstrap: Bootstrap | None = None, **settings: Any) -> BlockingCommunicator:
    """Join a job, and return the communicator of all its ranks.

    Args:
        bootstrap: None: from the environment, as torchrun sets it.
        settings: further arguments of `mrc.collectives.join`.

    Raises:
        ConfigError: a setting cannot be used.
        PeerError: not all ranks came in time.
    """

    async def joined() -> Communicator:
        return await join(bootstrap, **settings)

    thread = LoopThread()
    try:
        return BlockingCommunicator(thread, thread.call(joined()), owns_thread=True)
    except BaseException:
        thread.stop()
        raise
