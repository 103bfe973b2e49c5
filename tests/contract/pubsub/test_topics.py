"""Topics: creating, reading, changing, listing and deleting them."""

from __future__ import annotations

import datetime

import pytest
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from tests.support.pubsub_service import PROJECT, Service, fields_of

TOPIC = f"{PROJECT}/topics/orders"


def update(service: Service, topic: dict[str, object], *paths: str) -> types.Topic:
    mask = field_mask_pb2.FieldMask(paths=paths)
    return service.publisher.update_topic(request={"topic": topic, "update_mask": mask})


def test_topic_is_read_back_as_it_was_created(service: Service) -> None:
    """A topic keeps its labels and its retention."""
    created = service.publisher.create_topic(
        request={
            "name": TOPIC,
            "labels": {"team": "pens", "stage": ""},
            "message_retention_duration": datetime.timedelta(hours=2),
        }
    )
    found = service.publisher.get_topic(topic=TOPIC)
    assert found == created
    assert found.name == TOPIC
    assert dict(found.labels) == {"team": "pens", "stage": ""}
    assert found.message_retention_duration == datetime.timedelta(hours=2)


def test_topic_that_exists_is_not_created_again(service: Service) -> None:
    """The second creation of a name fails with ALREADY_EXISTS."""
    service.topic()
    with pytest.raises(exceptions.AlreadyExists, match=r"resource=orders"):
        service.topic()


def test_deleted_topic_is_not_found(service: Service) -> None:
    """After its deletion a topic is unknown to all methods, and its name is free."""
    topic = service.topic()
    service.publisher.delete_topic(topic=topic)
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=orders\)"):
        service.publisher.get_topic(topic=topic)
    with pytest.raises(exceptions.NotFound):
        service.publisher.delete_topic(topic=topic)
    with pytest.raises(exceptions.NotFound):
        service.publish(topic, b"x")
    with pytest.raises(exceptions.NotFound):
        service.subscription(topic)
    service.topic()


def test_update_changes_what_the_mask_names_and_nothing_else(service: Service) -> None:
    """An update replaces the masked fields whole and leaves the others."""
    topic = service.topic(
        labels={"a": "1", "b": "2"}, message_retention_duration=datetime.timedelta(hours=1)
    )
    retention = datetime.timedelta(hours=3)
    changed = {"name": topic, "labels": {"c": "3"}, "message_retention_duration": retention}
    updated = update(service, changed, "labels")
    assert dict(updated.labels) == {"c": "3"}
    assert updated.message_retention_duration == datetime.timedelta(hours=1)
    updated = update(service, changed, "labels", "message_retention_duration")
    assert updated.message_retention_duration == retention
    assert service.publisher.get_topic(topic=topic) == updated
    cleared = update(service, {"name": topic}, "message_retention_duration", "labels")
    assert not cleared.message_retention_duration
    assert not cleared.labels


@pytest.mark.parametrize(
    "paths", [(), ("nosuch",), ("name",), ("labels.a",), ("schema_settings.nosuch",)]
)
def test_update_with_a_wrong_mask_is_refused(service: Service, paths: tuple[str, ...]) -> None:
    """A mask that is empty, or names what is unknown or fixed, is INVALID_ARGUMENT."""
    topic = service.topic(labels={"a": "1"})
    with pytest.raises(exceptions.InvalidArgument) as caught:
        update(service, {"name": topic, "labels": {"a": "2"}}, *paths)
    assert fields_of(caught.value) == ["update_mask"]
    assert dict(service.publisher.get_topic(topic=topic).labels) == {"a": "1"}


def test_refused_update_changes_nothing(service: Service) -> None:
    """A value out of bounds is refused, and the topic stays as it was."""
    topic = service.topic()
    short = {"name": topic, "message_retention_duration": datetime.timedelta(seconds=1)}
    with pytest.raises(exceptions.InvalidArgument) as caught:
        update(service, short, "message_retention_duration")
    assert fields_of(caught.value) == ["message_retention_duration"]
    assert not service.publisher.get_topic(topic=topic).message_retention_duration


@pytest.mark.parametrize("name", ["ab", "1abc", "goog-topic", "a" * 256, "a b c", "x/y/z", ""])
def test_bad_topic_name_is_refused(service: Service, name: str) -> None:
    """A name outside the service's rules is INVALID_ARGUMENT and names the field."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.topic(name)
    assert fields_of(caught.value) == ["name"]


@pytest.mark.parametrize("method", ["get_topic", "delete_topic", "list_topic_subscriptions"])
def test_malformed_name_is_not_just_unknown(service: Service, method: str) -> None:
    """A name that no topic can have is INVALID_ARGUMENT, not NOT_FOUND."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        getattr(service.publisher, method)(topic="orders")
    assert fields_of(caught.value) == ["topic"]


@pytest.mark.parametrize(
    "labels",
    [{"Upper": "x"}, {"key": "Upper"}, {"": "x"}, {"k" * 64: ""}, {"k": "v" * 64}, {"1k": ""}],
)
def test_bad_label_is_refused(service: Service, labels: dict[str, str]) -> None:
    """Labels outside the rules of Google Cloud are INVALID_ARGUMENT."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.topic(labels=labels)
    assert fields_of(caught.value) == ["labels"]


def test_more_than_64_labels_are_refused(service: Service) -> None:
    """64 labels are allowed, 65 are not."""
    service.topic("full", labels={f"k{n}": "" for n in range(64)})
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.topic("over", labels={f"k{n}": "" for n in range(65)})
    assert fields_of(caught.value) == ["labels"]


def test_topics_are_listed_in_pages_and_by_project(service: Service) -> None:
    """Pages together have every topic of the project once, and no other."""
    made = [service.topic(f"topic-{n:02}") for n in range(25)]
    service.publisher.create_topic(name="projects/contract-2/topics/other")
    pages = service.publisher.list_topics(request={"project": PROJECT, "page_size": 10}).pages
    listed = [[topic.name for topic in page.topics] for page in pages]
    assert [len(names) for names in listed] == [10, 10, 5]
    assert [name for names in listed for name in names] == made
    assert [t.name for t in service.publisher.list_topics(project=PROJECT)] == made
    assert list(service.publisher.list_topics(project="projects/empty")) == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"project": PROJECT, "page_size": -1}, "page_size"),
        ({"project": PROJECT, "page_token": "?"}, "page_token"),
        ({"project": PROJECT, "page_token": "LTU="}, "page_token"),
        ({"project": "contract"}, "project"),
    ],
)
def test_bad_list_request_is_refused(
    service: Service, request_: dict[str, object], field: str
) -> None:
    """A page size, token or project that cannot be is INVALID_ARGUMENT."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.publisher.list_topics(request=request_)
    assert fields_of(caught.value) == [field]


def test_topic_lists_its_subscriptions_and_snapshots(service: Service) -> None:
    """Subscriptions and snapshots are listed under their own topic, in pages."""
    topic, other = service.topic(), service.topic("other")
    made = [service.subscription(topic, f"sub-{n}") for n in range(3)]
    service.subscription(other, "elsewhere")
    pages = service.publisher.list_topic_subscriptions(
        request={"topic": topic, "page_size": 2}
    ).pages
    assert [list(page.subscriptions) for page in pages] == [made[:2], made[2:]]
    snapshot = f"{PROJECT}/snapshots/snap"
    service.subscriber.create_snapshot(name=snapshot, subscription=made[0])
    assert list(service.publisher.list_topic_snapshots(topic=topic)) == [snapshot]
    assert list(service.publisher.list_topic_snapshots(topic=other)) == []


@pytest.mark.parametrize("seconds", [599, 31 * 86400 + 1])
def test_topic_retention_has_bounds(service: Service, seconds: int) -> None:
    """A topic keeps messages for 10 minutes to 31 days."""
    with pytest.raises(exceptions.InvalidArgument) as caught:
        service.topic(message_retention_duration=datetime.timedelta(seconds=seconds))
    assert fields_of(caught.value) == ["message_retention_duration"]


def test_topic_with_an_unknown_schema_is_refused(service: Service) -> None:
    """A topic can only have a schema that exists."""
    settings = {"schema": f"{PROJECT}/schemas/none", "encoding": "JSON"}
    with pytest.raises(exceptions.NotFound):
        service.topic(schema_settings=settings)
