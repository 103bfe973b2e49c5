"""Errors of the API in the service's codes and words; runs in the emulator."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

Code = grpc.StatusCode


class RpcError(Exception):
    """Ends a call with a status; `details` become google.rpc.Status details."""

    def __init__(self, code: grpc.StatusCode, message: str, *details: Any) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
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
    """Acknowledgements failed, one by one, on a subscription with exactly-once delivery."""
    return RpcError(
        Code.INVALID_ARGUMENT,
        "Some acknowledgement ids in the request were invalid. This could be because the "
        "acknowledgement ids have expired or the acknowledgement ids were malformed.",
        error_details_pb2.ErrorInfo(
            reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=failures
        ),
    )


def _short(resource: str) -> str:
    return resource.rsplit("/", 1)[-1]
