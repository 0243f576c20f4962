"""What hostile tests on real sockets share with those of the engine: both loops, and queue pairs.

That nothing is left after a test is checked where `nothing_left` is imported, which is where there
are sockets: in every test of this folder the look for garbage would cost more than the tests.
"""

from tests.engine.conftest import connect, pytest_asyncio_loop_factories

__all__ = ["connect", "pytest_asyncio_loop_factories"]
