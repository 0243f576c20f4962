"""Tags: the byte by which the other end of our queue pairs says, in endpoint requests, who it is.

Endpoint requests have no field for a queue pair, and several peers may share an address. What we
tell a peer to put into its request ids must be another byte than what we told its neighbours, but
may be the same for all its queue pairs, of which there may be more than there are bytes.
"""

from __future__ import annotations

TAGS = 256


class Tags:
    """Gives out tags by who shall use them; who is given one again gets the same."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}
        """By who uses it: the tag, and for how many queue pairs."""
        self._users = [0] * TAGS
        self._last = -1

    def take(self, user: str) -> int:
        """Return the tag of a user; of a new one the next that is free, or has the fewest users."""
        tag, count = self._held.get(user, (-1, 0))
        if not count:
            following = (*range(self._last + 1, TAGS), *range(self._last + 1))
            tag = self._last = min(following, key=self._users.__getitem__)
            self._users[tag] += 1
        self._held[user] = tag, count + 1
        return tag

    def give_back(self, user: str) -> None:
        """A queue pair of that user is gone; his tag is free when it was the last."""
        tag, count = self._held.pop(user)
        if count > 1:
            self._held[user] = tag, count - 1
        else:
            self._users[tag] -= 1
