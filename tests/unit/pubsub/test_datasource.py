"""What Spark sees of format("pubsub"), without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.errors import MissingExtraError, OptionError
from penstock.pubsub.datasource import PubSubDataSource
from penstock.pubsub.encoding import SPARK_DDL
from penstock.pubsub.reader import PubSubBatchReader
from tests.unit.pubsub.test_reader import SPARK_SCHEMA


def source(**options: str) -> PubSubDataSource:
    return PubSubDataSource({"projectid": "p", "endpoint": "127.0.0.1:9", **options})


def test_it_is_called_pubsub() -> None:
    assert PubSubDataSource.name() == "pubsub"
    assert issubclass(PubSubDataSource, DataSource)


def test_the_schema_is_the_one_of_every_subscription() -> None:
    assert source().schema() == SPARK_DDL


def test_a_reader_comes_from_lower_cased_options() -> None:
    reader = source(subscriptionid="sub").reader(SPARK_SCHEMA)
    assert isinstance(reader, PubSubBatchReader)


def test_a_wrong_option_is_known_before_anything_else() -> None:
    with pytest.raises(OptionError, match="Did you mean 'subscriptionId'"):
        source(subscription="sub").reader(SPARK_SCHEMA)
    with pytest.raises(OptionError, match="Did you mean 'topicId'"):
        source(topicid="orders", topicids="x").writer(StructType(), False)


def test_overwriting_a_topic_is_refused() -> None:
    with pytest.raises(OptionError, match=r'Use \.mode\("append"\)'):
        source(topicid="orders").writer(StructType(), True)
    with pytest.raises(OptionError, match="outputMode"):
        source(topicid="orders").streamWriter(StructType(), True)


class Block:
    """An import hook to which some packages are not installed."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@pytest.mark.parametrize("absent", ["grpc", "ptars"])
def test_without_the_extra_the_error_tells_what_to_install(
    monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    for name in [*sys.modules]:
        if name.partition(".")[0] == absent or name.startswith("penstock.pubsub."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Block(absent), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[pubsub\]'"):
        source(topicid="orders").writer(StructType(), False)
