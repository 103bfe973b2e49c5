"""The error tree: what the text says, and that it survives the ways that Spark sends it."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import pytest

from penstock import errors
from penstock.errors import MissingExtraError, OptionError, PenstockError, missing_extra

TREE = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, PenstockError)
]


def make(kind: type[PenstockError]) -> PenstockError:
    return kind("SOME_CODE", "Topic 'orders'", "does not exist", "Create it")


@pytest.mark.parametrize("kind", TREE)
def test_text_has_code_object_fact_and_remedy(kind: type[PenstockError]) -> None:
    assert str(make(kind)) == "[PENSTOCK_SOME_CODE] Topic 'orders': does not exist. Create it"


@pytest.mark.parametrize("kind", TREE)
def test_errors_survive_pickling_whole(kind: type[PenstockError]) -> None:
    before = make(kind)
    after = pickle.loads(pickle.dumps(before))  # noqa: S301 - our own bytes
    assert type(after) is kind
    assert str(after) == str(before)
    assert vars(after) == vars(before)


@pytest.mark.parametrize("kind", TREE)
def test_errors_can_be_copied(kind: type[PenstockError]) -> None:
    assert str(copy.copy(make(kind))) == str(make(kind))


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_in_the_drawing_of_the_tree(kind: type[PenstockError]) -> None:
    assert errors.__doc__ is not None
    assert re.search(rf"\b{kind.__name__}\b", errors.__doc__)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_is_caught_by_its_base(kind: type[PenstockError]) -> None:
    with pytest.raises(PenstockError):
        raise make(kind)


def test_only_option_errors_are_value_errors() -> None:
    assert [kind for kind in TREE if issubclass(kind, ValueError)] == [OptionError]


def test_missing_extra_gives_the_exact_command() -> None:
    error = missing_extra('format("pubsub")', "pubsub", "grpc")
    assert isinstance(error, MissingExtraError)
    assert "'grpc'" in str(error)
    assert str(error).endswith("pip install 'penstock[pubsub]'")
