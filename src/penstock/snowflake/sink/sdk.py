"""The one place that speaks to the Snowpipe Streaming SDK; runs in workers, and at the end of a
batch write on the driver.

Makes clients with the key from memory, and sorts the SDK's errors by what helps against them.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from penstock.errors import AccessError, ConnectError, PenstockError, ResourceError
from penstock.snowflake.identifiers import TableName
from penstock.snowflake.options import SnowpipeOptions
from penstock.snowflake.private_key import PrivateKey
from penstock.snowflake.sink.sdk_log import capture_sdk_log

# The SDK opens its log when it is imported.
capture_sdk_log()
from snowflake.ingest.streaming import StreamingIngestClient  # noqa: E402
from snowflake.ingest.streaming.streaming_ingest_error import (  # noqa: E402
    StreamingIngestError as SdkError,
)

__all__ = ["CURES", "Cure", "SdkError", "cure_of", "new_client", "told", "user_error"]


class Cure(Enum):
    """What helps against an error of the SDK."""

    # The channel is good: send the same rows again, later.
    WAIT = "wait"
    # Make a client and a channel anew, and go on from the committed token.
    REOPEN = "reopen"
    # Somebody else has opened the channel since.
    SUPERSEDED = "superseded"
    # The key was refused: read it again.
    KEY = "key"
    # The table, its schema or its database is not there, or not for this role.
    MISSING = "missing"
    # Nothing here.
    NONE = "none"


# Every code of the SDK; a test holds them against its enumeration.
CURES = {
    "ReceiverSaturated": Cure.WAIT,
    "MemoryThresholdExceeded": Cure.WAIT,
    "MemoryThresholdExceededInContainer": Cure.WAIT,
    "HttpRetryableClientError": Cure.REOPEN,
    "HttpRetriesExhaustedError": Cure.REOPEN,
    "InvalidChannelError": Cure.REOPEN,
    "ClosedChannelError": Cure.REOPEN,
    "ChannelClosedByUser": Cure.REOPEN,
    "ChannelNotFound": Cure.REOPEN,
    "InvalidClientError": Cure.REOPEN,
    "ClosedClientError": Cure.REOPEN,
    "SfApiPipeFailedOverError": Cure.REOPEN,
    "InputChannelClosed": Cure.REOPEN,
    "OutputChannelClosed": Cure.REOPEN,
    "SfApiInternalServerError": Cure.REOPEN,
    "SfApiUnexpectedBehaviorError": Cure.REOPEN,
    "FileUploadError": Cure.REOPEN,
    "NonFatal": Cure.REOPEN,
    "MutexLockFailed": Cure.REOPEN,
    "CloseAllChannelsFailedError": Cure.REOPEN,
    "ChannelWaitForFlushTimeout": Cure.REOPEN,
    "ClientWaitForFlushTimeout": Cure.REOPEN,
    "Fatal": Cure.REOPEN,
    "HttpClientNonRetryableError": Cure.REOPEN,
    "ChannelAlreadyExists": Cure.REOPEN,
    "AuthTokenError": Cure.KEY,
    "SfApiAuthError": Cure.KEY,
    "SfApiNotFoundError": Cure.MISSING,
    "SfApiUserError": Cure.NONE,
    "ConfigError": Cure.NONE,
    "InvalidRequest": Cure.NONE,
    "InvalidArgument": Cure.NONE,
    "NotImplemented": Cure.NONE,
    "ElasticChannelReservedName": Cure.NONE,
    "ClosedElasticChannelError": Cure.NONE,
    "CannotDropElasticChannel": Cure.NONE,
}
_DETAILS = re.compile(r"error_code=(?P<code>\w+), message=(?P<message>.*?)(?:, url=|$)")


def cure_of(exc: BaseException) -> Cure:
    """Tell what helps against an error of the SDK."""
    if not isinstance(exc, SdkError):
        return Cure.NONE
    text = exc.message
    if "STALE_CONTINUATION_TOKEN_SEQUENCER" in text:
        return Cure.SUPERSEDED
    if "DOES_NOT_EXIST_OR_NOT_AUTHORIZED" in text and "ERR_CHANNEL" not in text:
        return Cure.MISSING
    if "HTTP 401" in text:
        return Cure.KEY
    return CURES.get(exc.error_code.value, Cure.NONE)


def told(exc: BaseException) -> str:
    """Give the service's own words, without addresses and request ids."""
    text = exc.message if isinstance(exc, SdkError) else str(exc)
    found = _DETAILS.search(text)
    if found is not None:
        return f"{found['message']} ({found['code']})"
    return " ".join(text.split())[:300].rstrip(". ")


def user_error(exc: SdkError, table: TableName, options: SnowpipeOptions) -> PenstockError:
    """Build the user's error for one of the SDK's."""
    cure, words = cure_of(exc), told(exc)
    if cure is Cure.KEY:
        return AccessError(
            "SNOWFLAKE_LOGIN",
            f"Snowflake account '{options.account}', user '{options.user}'",
            f"the service refused the key of this node: {words}",
            "Check that the public key of 'privateKeyFile' is the user's RSA_PUBLIC_KEY or "
            "RSA_PUBLIC_KEY_2, and that the file is the same on every node",
        )
    if cure is Cure.MISSING:
        return ResourceError(
            "TABLE_MISSING",
            f"Table {table}",
            words,
            "It was dropped or renamed under the query, or the role has no right to insert",
        )
    return ConnectError(
        "SNOWPIPE",
        f"Table {table}",
        f"{exc.error_code.value}: {words}",
        "See the message; what was committed is kept, and the task is run again",
    )


def new_client(options: SnowpipeOptions, table: TableName, key: PrivateKey) -> Any:
    """Make a client for a table's own pipe. Blocks, perhaps for minutes: see `within`."""
    properties = {
        **dict(options.sdk_properties),
        "account": options.account,
        "user": options.user,
        "private_key": key.pem,
        "role": options.role,
        "host": options.host_name,
        "port": options.port,
        "scheme": "https",
        "ssl": "on",
        "application": "Penstock",
    }
    return StreamingIngestClient.from_table(
        "penstock",
        table.database,
        table.schema,
        table.table,
        properties={name: value for name, value in properties.items() if value is not None},
    )
