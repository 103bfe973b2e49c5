"""A spool on a disk: created once, bound to its query, refused to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import SpoolError
from penstock.pubsub.spool.format import BrokenObjectError, SpoolKey
from penstock.pubsub.spool.store import SpoolStore
from tests.unit.pubsub.agent.test_reservoir import received

SUBSCRIPTION = "projects/p/subscriptions/s"
KEY = SpoolKey(1, 0)


@pytest.fixture
def store(tmp_path: Path) -> SpoolStore:
    return SpoolStore(str(tmp_path / "spool"))


def test_the_first_writer_wins(store: SpoolStore) -> None:
    first, second = [received([1, 2]).rows], [received([3]).rows]
    assert store.create("id", KEY, first)
    assert store.create("id", KEY, second) is None
    stored = store.read("id", KEY)
    assert stored is not None
    assert stored[0].column("message_id").to_pylist() == ["1", "2"]


def test_what_is_not_there_is_none(store: SpoolStore) -> None:
    assert store.read("id", KEY) is None
    assert list(store.list("id")) == []
    store.delete("id", [KEY])


def test_objects_are_listed_and_removed(store: SpoolStore) -> None:
    keys = [SpoolKey(tick, index) for tick in (1, 2) for index in (0, 1)]
    sizes = {key: store.create("id", key, []) for key in keys}
    store.create("other", KEY, [])
    assert {found.key: found.size for found in store.list("id")} == sizes
    store.delete("id", keys[:3])
    assert [found.key for found in store.list("id")] == keys[3:]


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    SpoolStore(f"file://{tmp_path}/here").create("id", KEY, [])
    assert (tmp_path / "here" / "id" / KEY.name).is_file()


def test_a_known_spool_is_opened_again(store: SpoolStore) -> None:
    spool = store.open_new(SUBSCRIPTION)
    store.create(spool, KEY, [])
    SpoolStore(store.location).open_known(SUBSCRIPTION, spool)


def test_a_spool_of_another_query_is_refused(store: SpoolStore) -> None:
    spool = store.open_new(SUBSCRIPTION)
    with pytest.raises(SpoolError, match=r"SPOOL_OTHER.*another query"):
        store.open_known(SUBSCRIPTION, "another")
    store.create(spool, KEY, [])
    with pytest.raises(SpoolError, match=r"SPOOL_IN_USE.*checkpoint"):
        store.open_new(SUBSCRIPTION)


def test_a_spool_that_nothing_was_written_to_can_be_begun_again(store: SpoolStore) -> None:
    """A query that died before its first batch leaves a manifest alone."""
    assert store.open_new(SUBSCRIPTION) != store.open_new(SUBSCRIPTION)


def test_a_spool_of_another_subscription_is_refused(store: SpoolStore) -> None:
    spool = store.open_new(SUBSCRIPTION)
    with pytest.raises(SpoolError, match="SPOOL_SUBSCRIPTION"):
        store.open_known("projects/p/subscriptions/t", spool)
    with pytest.raises(SpoolError, match="SPOOL_SUBSCRIPTION"):
        store.open_new("projects/p/subscriptions/t")


def test_a_location_without_a_manifest_is_not_the_known_one(store: SpoolStore) -> None:
    with pytest.raises(SpoolError, match="is empty"):
        store.open_known(SUBSCRIPTION, "id")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v": 9, "id": "x", "subscription": "y"}'])
def test_a_manifest_of_something_else_is_refused(store: SpoolStore, content: str) -> None:
    (Path(store.location) / "spool.json").write_text(content)
    with pytest.raises(SpoolError, match="SPOOL_MANIFEST"):
        store.open_new(SUBSCRIPTION)


def test_a_half_written_object_is_broken(store: SpoolStore) -> None:
    store.create("id", KEY, [received([1]).rows])
    path = Path(store.location) / "id" / KEY.name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BrokenObjectError):
        store.read("id", KEY)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("in the way")
    with pytest.raises(SpoolError, match=r"SPOOL_STORE.*spool"):
        SpoolStore(str(tmp_path / "spool")).open_new(SUBSCRIPTION)
