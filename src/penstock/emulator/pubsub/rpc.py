"""Errors of the API in the service's codes and words; runs in the emulator."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

Code = grpc.StatusCode

# A status travels in HTTP headers, and a gRPC channel refuses more than 8 KiB of those unless it
# was told otherwise. The official clients allow 4 MiB in production, but with
# PUBSUB_EMULATOR_HOST they make a channel without options.
_MOST_DETAILS_BYTES = 6000
# A text is in the status up to three times; what is not ASCII takes up to 12 bytes a character.
_MOST_ASCII_CHARS, _MOST_OTHER_CHARS = 1500, 300


class RpcError(Exception):
    """Ends a call with a status; `details` become google.rpc.Status details."""

    def __init__(self, code: grpc.StatusCode, message: str, *details: Any) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = _cut(message)
        self.details = details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Give the metadata that carries the details, if there are any."""
        if not self.details:
            return ()
        packed = []
        for detail in self.details:
            wrapped = any_pb2.Any()
            wrapped.Pack(detail)
            packed.append(wrapped)
        status = status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)
        return (("grpc-status-details-bin", status.SerializeToString()),)


def not_found(resource: str) -> RpcError:
    """A topic, subscription, snapshot or schema does not exist."""
    return RpcError(Code.NOT_FOUND, f"Resource not found (resource={_short(resource)}).")


def already_exists(resource: str) -> RpcError:
    """A resource of that name is there already."""
    return RpcError(
        Code.ALREADY_EXISTS,
        f"Resource already exists in the project (resource={_short(resource)}).",
    )


def invalid(field: str, why: str) -> RpcError:
    """A request's field has a value that cannot be accepted."""
    why = _cut(why)
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=why)
    return RpcError(
        Code.INVALID_ARGUMENT,
        f"Invalid value for {field}: {why}",
        error_details_pb2.BadRequest(field_violations=[violation]),
    )


def failed_precondition(message: str) -> RpcError:
    """The resource is not in a state that allows the call."""
    return RpcError(Code.FAILED_PRECONDITION, message)


def invalid_ack_ids(failures: dict[str, str]) -> RpcError:
    """Acknowledgements failed, one by one, on a subscription with exactly-once delivery.

    Names as many of the ids as a default channel takes. The official client counts an id that is
    not named as failed too (status OTHER), so none passes for acknowledged.
    """
    info = error_details_pb2.ErrorInfo(
        reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com"
    )
    room = _MOST_DETAILS_BYTES
    for ack_id, reason in failures.items():
        room -= len(ack_id) + len(reason) + 8
        if room < 0:
            break
        info.metadata[ack_id] = reason
    unordered = all(reason.endswith("UNORDERED_ACK_ID") for reason in failures.values())
    what = (
        "sent out of order."
        if unordered
        else "invalid. This could be because the acknowledgement ids have expired or the "
        "acknowledgement ids were malformed."
    )
    return RpcError(
        Code.INVALID_ARGUMENT, f"Some acknowledgement ids in the request were {what}", info
    )


def _short(resource: str) -> str:
    return resource.rsplit("/", 1)[-1]


def _cut(text: str) -> str:
    most = _MOST_ASCII_CHARS if text.isascii() else _MOST_OTHER_CHARS
    return text if len(text) <= most else f"{text[:most]}..."
