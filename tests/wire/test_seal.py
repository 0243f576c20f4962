"""The seal: what it hides, what it protects, what it refuses, and when keys change."""

from __future__ import annotations

import hmac
import random
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from mrc.wire import seal as seal_module
from mrc.wire.fields import BadPacket
from mrc.wire.runs import COUNTER_BYTES, OVERHEAD_BYTES, SEAL_BYTES, TAG_BYTES, RunBuffer
from mrc.wire.seal import (
    REPLAY_WINDOW_PACKETS,
    SECRET_BYTES,
    Cipher,
    Replayed,
    ReplayWindow,
    Seal,
    Unauthentic,
    make_seal,
)
from mrc.wire.writes import HEADER_BYTES

SECRETS = bytes(range(32)), bytes(range(32, 64))
HEADER = bytes(range(36))
PLAIN = b"what nobody on the way may read."
CIPHERS = list(Cipher)


def both(cipher: Cipher = Cipher.AES_256_GCM) -> tuple[Seal, Seal]:
    """Return the two sides of one queue pair."""
    connecting = make_seal(cipher, SECRETS, connecting=True)
    return connecting, make_seal(cipher, SECRETS, connecting=False)


def packet(side: Seal, plain: bytes = PLAIN) -> bytes:
    """Return a packet sealed by a side."""
    return HEADER + side.sealer.seal(HEADER, plain)


# One packet.


GOLDEN = {
    Cipher.AES_256_GCM: (
        "bc8c48158c1b38461d6f09fcd4a94254ab53e341f457975129571d85465fb829"
        "f80f7f8374f2a198f0221d74c33e202c0000000000000000"
    ),
    Cipher.CHACHA20_POLY1305: (
        "379e7ce8a3984795364e67c746ba15936fc29be034ff71c1f7dcf1a8e8422646"
        "5f79586be9a047c61d635ec7bf5dbf710000000000000000"
    ),
}


@pytest.mark.parametrize("cipher", CIPHERS)
def test_golden_bytes(cipher: Cipher) -> None:
    """Keys, nonce, tag and layout are these bytes, whoever implements them."""
    assert both(cipher)[0].sealer.seal(HEADER, PLAIN).hex() == GOLDEN[cipher]


def expand(secret: bytes, info: bytes, size: int) -> bytes:
    """HKDF-Expand of RFC 5869, by itself."""
    block = out = b""
    while len(out) < size:
        block = hmac.digest(secret, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


def test_keys_are_derived_as_documented() -> None:
    """From the secrets to the nonce with nothing but RFC 5869 and AES-GCM."""
    extracted = hmac.digest(bytes(32), b"".join(SECRETS), "sha256")
    forth = expand(extracted, b"mrc seal 1 aes-256-gcm", 64)[:32]
    epoch = expand(forth, b"mrc epoch", 68)
    nonce = epoch[64:] + bytes(COUNTER_BYTES)
    box = AESGCM(epoch[:32]).encrypt(nonce, PLAIN, HEADER)
    assert (box + bytes(COUNTER_BYTES)).hex() == GOLDEN[Cipher.AES_256_GCM]


@pytest.mark.parametrize("cipher", CIPHERS)
def test_each_side_opens_what_the_other_sealed(cipher: Cipher) -> None:
    """A packet comes out as it went in, in both directions."""
    for sender, receiver in (both(cipher), both(cipher)[::-1]):
        assert receiver.opener.open_untrusted(packet(sender), len(HEADER)) == PLAIN


def test_layout() -> None:
    """Header readable, payload of its size, a tag of 16 bytes, the counter behind it."""
    sender, _ = both()
    packet(sender)
    second = packet(sender)
    assert second.startswith(HEADER)
    assert len(second) == len(HEADER) + len(PLAIN) + TAG_BYTES + COUNTER_BYTES
    assert second.endswith((1).to_bytes(COUNTER_BYTES, "big"))
    assert PLAIN[:8] not in second


def test_nobody_opens_his_own() -> None:
    """The two directions have keys of their own: a packet sent back does not open."""
    sender, _ = both()
    with pytest.raises(Unauthentic):
        sender.opener.open_untrusted(packet(sender), len(HEADER))


def test_secrets_of_both_sides_count() -> None:
    """Keys differ when either side's contribution does."""
    sender, _ = both()
    sealed = packet(sender)
    for other in ((SECRETS[0], bytes(SECRET_BYTES)), (bytes(SECRET_BYTES), SECRETS[1])):
        receiver = make_seal(Cipher.AES_256_GCM, other, connecting=False)
        with pytest.raises(Unauthentic):
            receiver.opener.open_untrusted(sealed, len(HEADER))


@given(bit=st.integers(0, 8 * (len(HEADER) + len(PLAIN) + SEAL_BYTES) - 1))
def test_any_changed_bit_is_seen(bit: int) -> None:
    """Header, payload, tag and counter: no bit may change."""
    sender, receiver = both()
    damaged = bytearray(packet(sender))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Unauthentic):
        receiver.opener.open_untrusted(damaged, len(HEADER))


@given(data=st.binary(max_size=200), header_bytes=st.integers(0, 64))
def test_junk_raises_only_bad_packet(data: bytes, header_bytes: int) -> None:
    """Whatever comes, one exception says that it is none of ours."""
    with pytest.raises(BadPacket):
        both()[1].opener.open_untrusted(data, header_bytes)


def test_an_altered_packet_does_not_spend_its_counter() -> None:
    """Who alters a packet cannot keep the true one out."""
    sender, receiver = both()
    true = packet(sender)
    with pytest.raises(Unauthentic):
        receiver.opener.open_untrusted(true[:-30] + bytes(30), len(HEADER))
    with pytest.raises(Unauthentic):
        receiver.opener.open_untrusted(b"\xff" + true[1:], len(HEADER))
    assert receiver.opener.open_untrusted(true, len(HEADER)) == PLAIN


# Runs.

PAYLOAD_BYTES = 256
SEGMENT_BYTES = PAYLOAD_BYTES + OVERHEAD_BYTES + SEAL_BYTES


def sealed_run(side: Seal, count: int, buffer: RunBuffer) -> bytes:
    """Seal a run of `count` packets with random headers into a buffer; return its payloads."""
    rng = random.Random(count)
    views = buffer.views(SEGMENT_BYTES, sealed=True)
    for header in views.headers[:count]:
        header[:] = rng.randbytes(HEADER_BYTES)
    plain = rng.randbytes(count * PAYLOAD_BYTES)
    rows = [memoryview(plain)[i * PAYLOAD_BYTES : (i + 1) * PAYLOAD_BYTES] for i in range(count)]
    side.sealer.seal_rows(views, rows)
    return plain


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("count", [1, 2, 15, 64])
def test_a_run_opens_at_once(cipher: Cipher, count: int) -> None:
    """All payloads of a run come out in one array."""
    (sender, receiver), buffer = both(cipher), RunBuffer()
    plain = sealed_run(sender, count, buffer)
    opened = receiver.opener.open_rows_untrusted(buffer.views(SEGMENT_BYTES, sealed=True), 0, count)
    assert opened is not None
    assert opened.tobytes() == plain


def test_rows_of_a_run_are_packets() -> None:
    """Sealed as a run and opened one by one: the bytes are the same."""
    (sender, receiver), buffer = both(), RunBuffer()
    plain = sealed_run(sender, 3, buffer)
    for i in range(3):
        row = buffer.memory[i * SEGMENT_BYTES : (i + 1) * SEGMENT_BYTES - 4]
        opened = receiver.opener.open_untrusted(row, HEADER_BYTES)
        assert opened == plain[i * PAYLOAD_BYTES : (i + 1) * PAYLOAD_BYTES]


@pytest.mark.parametrize("place", ["header", "payload", "tag", "counter"])
def test_a_run_with_one_bad_row_changes_nothing(place: str) -> None:
    """None comes back, what arrived is as it was, and the other rows open one by one."""
    (sender, receiver), buffer = both(), RunBuffer()
    plain = sealed_run(sender, 4, buffer)
    offset = {"header": 3, "payload": 40, "tag": SEGMENT_BYTES - 16, "counter": SEGMENT_BYTES - 5}
    buffer.bytes[2 * SEGMENT_BYTES + offset[place]] ^= 1
    arrived = bytes(buffer.memory[: 4 * SEGMENT_BYTES])
    views = buffer.views(SEGMENT_BYTES, sealed=True)
    assert receiver.opener.open_rows_untrusted(views, 0, 4) is None
    assert bytes(buffer.memory[: 4 * SEGMENT_BYTES]) == arrived
    for i in range(4):
        row = buffer.memory[i * SEGMENT_BYTES : (i + 1) * SEGMENT_BYTES - 4]
        if i == 2:
            with pytest.raises(BadPacket):
                receiver.opener.open_untrusted(row, HEADER_BYTES)
        else:
            opened = receiver.opener.open_untrusted(row, HEADER_BYTES)
            assert opened == plain[i * PAYLOAD_BYTES : (i + 1) * PAYLOAD_BYTES]


def test_a_run_seen_before_does_not_open() -> None:
    """A replayed run is refused as a whole, and so is each of its packets."""
    (sender, receiver), buffer = both(), RunBuffer()
    sealed_run(sender, 4, buffer)
    views = buffer.views(SEGMENT_BYTES, sealed=True)
    assert receiver.opener.open_rows_untrusted(views, 1, 3) is not None
    assert receiver.opener.open_rows_untrusted(views, 0, 4) is None
    with pytest.raises(Replayed):
        receiver.opener.open_untrusted(buffer.memory[SEGMENT_BYTES : 2 * SEGMENT_BYTES - 4], 36)


def test_two_buffers_share_no_nonces() -> None:
    """Another thread's endpoint may seal between two rows of a run: each row still opens."""
    (sender, receiver), (other, _) = both(), both()
    buffer, others = RunBuffer(), RunBuffer()
    views = buffer.views(SEGMENT_BYTES, sealed=True)
    plain = memoryview(random.Random(5).randbytes(4 * PAYLOAD_BYTES))

    class Rows(list[memoryview]):
        def __iter__(self) -> Iterator[memoryview]:
            for row in super().__iter__():
                sealed_run(other, 64, others)
                yield row

    rows = [plain[i * PAYLOAD_BYTES : (i + 1) * PAYLOAD_BYTES] for i in range(4)]
    sender.sealer.seal_rows(views, Rows(rows))
    opened = receiver.opener.open_rows_untrusted(views, 0, 4)
    assert opened is not None
    assert opened.tobytes() == plain.tobytes()


# Replays.


@given(order=st.permutations(range(40)))
def test_each_counter_opens_once_in_any_order(order: list[int]) -> None:
    """Packets overtake each other: every one opens the first time, none a second time."""
    sender, receiver = both()
    packets = [packet(sender) for _ in order]
    for i in order:
        receiver.opener.open_untrusted(packets[i], len(HEADER))
    for i in order:
        with pytest.raises(Replayed):
            receiver.opener.open_untrusted(packets[i], len(HEADER))


@given(
    marks=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 64)), max_size=30),
    first=st.integers(0, 600),
    count=st.integers(1, 64),
)
def test_replay_window_is_a_set(marks: list[tuple[int, int]], first: int, count: int) -> None:
    """Within its width the window knows what a set of all counters seen would know."""
    window, seen = ReplayWindow(), set[int]()
    for start, length in marks:
        window.mark(start, length)
        seen |= set(range(start, start + length))
    assert window.is_fresh(first, count) == seen.isdisjoint(range(first, first + count))


def test_too_late_is_refused() -> None:
    """What is older than the window cannot be told from a replay."""
    window = ReplayWindow()
    window.mark(10 * REPLAY_WINDOW_PACKETS, 1)
    oldest = 9 * REPLAY_WINDOW_PACKETS + 1
    assert window.is_fresh(oldest, 1)
    assert not window.is_fresh(oldest - 1, 1)


# Epochs.


@pytest.fixture
def short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 16 packets."""
    monkeypatch.setattr(seal_module, "EPOCH_BITS", 4)
    monkeypatch.setattr(seal_module, "EPOCH_PACKETS", 16)


def counter_of(sealed: bytes) -> int:
    """Return the counter of a packet."""
    return int.from_bytes(sealed[-COUNTER_BYTES:], "big")


@pytest.mark.usefixtures("short_epochs")
def test_keys_are_renewed() -> None:
    """Epoch after epoch opens."""
    sender, receiver = both()
    boxes = set()
    for i in range(100):
        sealed = packet(sender)
        assert counter_of(sealed) == i
        assert receiver.opener.open_untrusted(sealed, len(HEADER)) == PLAIN
        boxes.add(sealed[len(HEADER) : -COUNTER_BYTES])
    assert len(boxes) == 100


@pytest.mark.usefixtures("short_epochs")
def test_a_late_packet_of_the_last_epoch_opens() -> None:
    """The key before the present one is kept for packets under way; the one before that is gone."""
    sender, receiver = both()
    packets = [packet(sender) for _ in range(33)]
    receiver.opener.open_untrusted(packets[16], len(HEADER))
    receiver.opener.open_untrusted(packets[0], len(HEADER))
    receiver.opener.open_untrusted(packets[32], len(HEADER))
    receiver.opener.open_untrusted(packets[17], len(HEADER))
    with pytest.raises(Unauthentic, match="epoch without a key"):
        receiver.opener.open_untrusted(packets[1], len(HEADER))


@pytest.mark.usefixtures("short_epochs")
def test_a_forged_counter_does_not_renew_keys() -> None:
    """Only a packet that opens moves the receiver on."""
    sender, receiver = both()
    first = packet(sender)
    for counter in (20, 40, (1 << 64) - 1):
        forged = first[:-COUNTER_BYTES] + counter.to_bytes(COUNTER_BYTES, "big")
        with pytest.raises(Unauthentic):
            receiver.opener.open_untrusted(forged, len(HEADER))
    assert receiver.opener.open_untrusted(first, len(HEADER)) == PLAIN


@pytest.mark.usefixtures("short_epochs")
def test_a_run_lies_within_one_epoch() -> None:
    """A run that does not fit into what is left of an epoch begins the next one."""
    (sender, receiver), buffer = both(), RunBuffer()
    views = buffer.views(SEGMENT_BYTES, sealed=True)
    for first in (0, 16, 32):
        plain = sealed_run(sender, 10, buffer)
        assert int(views.counters[0]) == first
        opened = receiver.opener.open_rows_untrusted(views, 0, 10)
        assert opened is not None
        assert opened.tobytes() == plain
