"""Resource names and labels: the service's rules."""

from __future__ import annotations

import pytest

from penstock.emulator.pubsub.names import check_labels, check_name, check_project
from penstock.emulator.pubsub.rpc import Code, RpcError


@pytest.mark.parametrize(
    "name",
    [
        "projects/p/topics/abc",
        "projects/my-project:1/topics/a-._~+%9",
        "projects/p/topics/" + "a" * 255,
        "projects/p/topics/Goog",
        "projects/p/topics/googly"[:-2].replace("goog", "go-og"),
    ],
)
def test_good_name_passes(name: str) -> None:
    check_name(name, "topics")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "abc",
        "projects/p/topics/ab",
        "projects/p/topics/" + "a" * 256,
        "projects/p/topics/1abc",
        "projects/p/topics/goog-x",
        "projects/p/topics/a b",
        "projects/p/topics/a\u00e9c",
        "projects/p/topics/abc/def",
        "projects//topics/abc",
        "projects/p/subscriptions/abc",
        "/projects/p/topics/abc",
        "projects/p/topics/abc\n",
        "_deleted-topic_",
    ],
)
def test_bad_name_is_refused_with_its_field(name: str) -> None:
    with pytest.raises(RpcError) as caught:
        check_name(name, "topics", "some_field")
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.details[0].field_violations[0].field == "some_field"


@pytest.mark.parametrize("name", ["", "p", "projects/", "projects/p/", "projects/p/q"])
def test_bad_project_is_refused(name: str) -> None:
    check_project("projects/p")
    with pytest.raises(RpcError):
        check_project(name)


@pytest.mark.parametrize(
    "labels", [{}, {"a": ""}, {"k" * 63: "v" * 63}, {"a_-1": "1_-"}, {"\u00e9t\u00e9": "\u65e5"}]
)
def test_good_labels_pass(labels: dict[str, str]) -> None:
    check_labels(labels)


@pytest.mark.parametrize(
    "labels",
    [
        {"A": ""},
        {"": ""},
        {"a": "A"},
        {"1": ""},
        {"_a": ""},
        {"a b": ""},
        {"k" * 64: ""},
        {"\u00c9": ""},
    ],
)
def test_bad_labels_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(RpcError, match="labels"):
        check_labels(labels)
