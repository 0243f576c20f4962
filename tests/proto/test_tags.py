"""Tags: who shares one, who does not, and what happens when there are more users than tags."""

from __future__ import annotations

from mrc.proto.tags import TAGS, Tags


def test_a_user_keeps_its_tag_and_neighbours_have_others() -> None:
    """Queue pairs of one peer share a tag, those of another have another."""
    tags = Tags()
    assert [tags.take(user) for user in ("a", "b", "a", "c", "b")] == [0, 1, 0, 2, 1]


def test_a_tag_is_free_when_its_last_queue_pair_is_gone() -> None:
    """It is given out again only after all others, so that late answers find nobody else."""
    tags = Tags()
    for user in ("a", "a", "b"):
        tags.take(user)
    tags.give_back("a")
    assert tags.take("a") == 0
    tags.give_back("a")
    tags.give_back("a")
    assert [tags.take(f"c{i}") for i in range(TAGS - 1)] == [*range(2, TAGS), 0]


def test_with_more_users_than_tags_each_has_as_few_as_possible() -> None:
    """Nobody is refused: peers at other addresses are told apart by those."""
    tags = Tags()
    given = [tags.take(str(user)) for user in range(2 * TAGS)]
    assert sorted(given) == sorted([*range(TAGS)] * 2)
