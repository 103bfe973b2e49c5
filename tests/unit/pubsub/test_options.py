"""Options of format("pubsub")."""

from __future__ import annotations

import base64
import json
import pickle

import pytest

from penstock.errors import OptionError
from penstock.pubsub.options import PubSubReadOptions, PubSubSinkOptions

KEY = json.dumps({"type": "service_account", "private_key": "SECRET-PEM"})
PARTS = {
    "clientEmail": "a@b.c",
    "clientId": "17",
    "privateKey": "SECRET-PEM\\nLINE",
    "privateKeyId": "SECRET-ID",
}


@pytest.fixture(autouse=True)
def _no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)


def sink(**raw: str) -> PubSubSinkOptions:
    return PubSubSinkOptions.parse({"projectId": "shop", "topicId": "orders", **raw})


def read(**raw: str) -> PubSubReadOptions:
    return PubSubReadOptions.parse({"projectId": "shop", "subscriptionId": "orders-sub", **raw})


def test_short_ids_are_completed_with_the_project() -> None:
    assert sink().topic == "projects/shop/topics/orders"
    assert read().subscription == "projects/shop/subscriptions/orders-sub"
    assert sink(deadLetterTopic="bad").dead_letter == "projects/shop/topics/bad"


def test_full_names_need_no_project() -> None:
    options = PubSubSinkOptions.parse({"topicId": "projects/example.com:p/topics/orders"})
    assert options.topic == "projects/example.com:p/topics/orders"
    full = PubSubReadOptions.parse({"subscriptionId": "projects/p1/subscriptions/s-1"})
    assert full.subscription == "projects/p1/subscriptions/s-1"


def test_a_short_id_without_project_says_so() -> None:
    with pytest.raises(OptionError, match=r"'topicId'.*projectId is not set"):
        PubSubSinkOptions.parse({"topicId": "orders"})


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "1abc",
        "goog-topic",
        "has space",
        "x" * 256,
        "projects/p/topics/goog",
        "projects/p/subscriptions/orders",
        "projects//topics/orders",
        "/topics/orders",
        "orders/",
    ],
)
def test_a_name_the_service_would_refuse_is_an_option_error(name: str) -> None:
    with pytest.raises(OptionError, match="topicId"):
        sink(topicId=name)


def test_the_topic_may_come_from_the_rows() -> None:
    assert PubSubSinkOptions.parse({"projectId": "shop"}).topic is None


def test_a_dead_letter_topic_must_be_another_topic() -> None:
    with pytest.raises(OptionError, match="topic of their own"):
        sink(deadLetterTopic="projects/shop/topics/orders")


@pytest.mark.parametrize(
    ("endpoint", "target", "is_plaintext"),
    [
        ("pubsub.example.com", "pubsub.example.com:443", False),
        ("pubsub.example.com:8443", "pubsub.example.com:8443", False),
        ("http://emulator:8085", "emulator:8085", True),
        ("https://127.0.0.1:8085", "127.0.0.1:8085", False),
        ("127.0.0.1:8085", "127.0.0.1:8085", True),
        ("localhost:8085", "localhost:8085", True),
        ("[::1]:8085", "[::1]:8085", True),
        ("https://eu-pubsub.googleapis.com/", "eu-pubsub.googleapis.com:443", False),
    ],
)
def test_tls_is_used_unless_the_endpoint_is_http_or_loopback(
    endpoint: str, target: str, is_plaintext: bool
) -> None:
    options = sink(endpoint=endpoint)
    assert options.target == target
    assert options.is_plaintext == is_plaintext


def test_without_an_endpoint_the_service_is_used_with_tls() -> None:
    assert sink().target == "pubsub.googleapis.com:443"
    assert not sink().is_plaintext


@pytest.mark.parametrize("endpoint", ["ftp://x:1", "http://a:b", "a b", "http://user@host:1"])
def test_an_endpoint_that_is_no_address_is_an_option_error(endpoint: str) -> None:
    with pytest.raises(OptionError, match="host:port"):
        sink(endpoint=endpoint)


def test_the_emulator_variable_is_captured_when_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "emulator.test:8085")
    options = sink()
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    carried = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own bytes
    assert carried.target == "emulator.test:8085"
    assert carried.is_plaintext


def test_the_endpoint_wins_over_the_emulator_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    assert sink(endpoint="https://real:443").target == "real:443"
    assert PubSubSinkOptions.parse({"ENDPOINT": "real", "projectId": "p"}).target == "real:443"


def test_inline_credentials_are_json_or_base64_of_it() -> None:
    encoded = base64.b64encode(KEY.encode()).decode()
    assert sink(credentials=KEY).key_info == json.loads(KEY)
    assert sink(credentials=encoded).key_info == json.loads(KEY)


@pytest.mark.parametrize(
    "value", ["SECRET", "{SECRET", '["SECRET"]', "U0VDUkVU", '{"a": "SECRET"}']
)
def test_credentials_that_are_not_a_key_are_refused_unseen(value: str) -> None:
    with pytest.raises(OptionError) as caught:
        sink(credentials=value)
    assert value not in str(caught.value)
    assert "***" in str(caught.value)


def test_a_key_in_four_parts_is_put_together() -> None:
    key = sink(**PARTS).key_info
    assert key is not None
    assert key["private_key"] == "SECRET-PEM\nLINE"
    assert key["client_email"] == "a@b.c"
    assert key["type"] == "service_account"


@pytest.mark.parametrize("absent", PARTS)
def test_a_key_in_parts_needs_all_four(absent: str) -> None:
    parts = {name: value for name, value in PARTS.items() if name != absent}
    with pytest.raises(OptionError, match=f"'{absent}'"):
        sink(**parts)


@pytest.mark.parametrize(
    "ways",
    [
        {"credentialsFile": "/k.json", "credentials": KEY},
        {"credentialsFile": "/k.json", **PARTS},
        {"credentials": KEY, **PARTS},
    ],
)
def test_credentials_are_given_in_one_way_only(ways: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="Keep one") as caught:
        sink(**ways)
    assert "SECRET" not in str(caught.value)


def test_secrets_do_not_show_in_the_options_text() -> None:
    assert "SECRET" not in repr(sink(credentials=KEY))
    assert "SECRET" not in repr(sink(**PARTS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batchRows", "1001"),
        ("batchRows", "0"),
        ("batchBytes", "11MB"),
        ("flushTimeout", "60"),
        ("maxInFlightRequests", "0"),
        ("enableMessageOrdering", "yes"),
        ("linger", "2m"),
    ],
)
def test_a_value_out_of_range_is_an_option_error(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        sink(**{name: value})


def test_defaults_are_within_the_services_limits() -> None:
    options = sink()
    assert (options.batch_rows, options.batch_bytes) == (1000, 9_000_000)
    assert (options.flush_timeout, options.linger) == (60.0, 0.01)
    assert not options.enable_message_ordering
    assert (read().max_messages, read().max_fetch_period) == (1000, 10.0)


def test_an_option_of_the_other_direction_is_unknown() -> None:
    with pytest.raises(OptionError, match="topicId"):
        read(topicId="orders")


@pytest.mark.parametrize("options", [PubSubSinkOptions, PubSubReadOptions])
def test_every_option_has_a_sentence(options: type[PubSubSinkOptions]) -> None:
    for info in options.infos():
        assert info.doc.endswith("."), info.name
