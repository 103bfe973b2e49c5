from __future__ import annotations

import pickle

import pytest
from snowflake.connector import errors as vendor

from penstock.errors import ConnectError, PenstockError
from penstock.snowflake.merge.errors import is_transient, translated

CLASSES = [
    value
    for value in vars(vendor).values()
    if isinstance(value, type) and issubclass(value, vendor.Error)
]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_of_the_connector_becomes_one_of_ours(kind: type[vendor.Error]) -> None:
    with pytest.raises(PenstockError) as caught, translated("Table t"):
        # Most take keywords only; one names what is missing.
        raise kind("x") if kind is vendor.MissingDependencyError else kind(msg="it failed.")

    assert caught.value.subject == "Table t"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(KeyError), translated("Table t"):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("number", "state", "is_passing"),
    [
        (250003, "08001", True),  # the network
        (625, "57014", True),  # a lock that was waited for too long
        (603, "XX000", True),  # an error of the server's own
        (604, "57014", False),  # cancelled, for its time was over
        (390114, "08001", False),  # the session is over: a new connection is needed
        (2003, "42S02", False),
        (100038, "22018", False),
    ],
)
def test_only_what_passes_by_itself_is_tried_again(
    number: int, state: str, is_passing: bool
) -> None:
    error = vendor.ProgrammingError(msg="x", errno=number, sqlstate=state)

    with pytest.raises(PenstockError) as caught, translated("Table t"):
        raise error

    assert is_transient(caught.value) is is_passing
    assert not is_passing or isinstance(caught.value, ConnectError)


@pytest.mark.parametrize(
    ("kind", "is_passing"),
    [
        (vendor.ServiceUnavailableError, True),
        (vendor.BadGatewayError, True),
        (vendor.TooManyRequests, True),
        (vendor.ForbiddenError, False),
    ],
)
def test_answers_of_a_server_in_trouble_are_tried_again(
    kind: type[vendor.Error], is_passing: bool
) -> None:
    with pytest.raises(PenstockError) as caught, translated("Table t"):
        raise kind()

    assert is_transient(caught.value) is is_passing
