"""Every error that Penstock raises on purpose; runs everywhere, imports nothing.

    PenstockError
    |-- OptionError (also a ValueError)   an option is unknown, missing or wrong
    |-- MissingExtraError                 an optional dependency is not installed
    |-- SchemaError                       the DataFrame's columns do not fit the sink
    |-- RowError                          one row's value has no place on the other side
    |-- AccessError                       credentials or permissions
    |-- ResourceError                     a topic or subscription is missing or unfit
    |-- ConnectError                      the service cannot be reached, or not in time
    |-- WriteRejectedError                the service refused a write for good
    |-- WireError                         bytes that are not the protocol we speak
    |-- CheckpointError                   a checkpoint that this query cannot go on from
    |-- DataLossError                     what a query has to read next is not there any more
    |-- SpoolError                        a spool that cannot be used, or not by this query
    `-- AgentError                        an executor's agent cannot go on

Spark ships worker errors to the user as text, so the text alone has to identify and explain:
a stable code, the object, the fact observed, and what to do about it. Never a secret, never a
row's value.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of all errors; picklable, so that it survives the way from worker to driver."""

    def __init__(self, code: str, subject: str, fact: str, remedy: str) -> None:
        super().__init__(code, subject, fact, remedy)
        self.code = code
        self.subject = subject
        self.fact = fact
        self.remedy = remedy

    def __str__(self) -> str:
        return f"[PENSTOCK_{self.code}] {self.subject}: {self.fact}. {self.remedy}"


class OptionError(PenstockError, ValueError):
    """An option is unknown, missing, malformed or contradicts another one."""


class MissingExtraError(PenstockError):
    """A part of Penstock was used whose dependencies are not installed."""


class SchemaError(PenstockError):
    """The columns of the DataFrame are not what the sink takes."""


class RowError(PenstockError):
    """A row holds a value that the other side can never have."""


class AccessError(PenstockError):
    """Credentials are missing or wrong, or a permission is not granted."""


class ResourceError(PenstockError):
    """A resource of the service is missing or not usable in this way."""


class ConnectError(PenstockError):
    """The service could not be reached, or did not answer in time."""


class WriteRejectedError(PenstockError):
    """The service refused a write, and would refuse it again."""


class WireError(PenstockError):
    """Bytes on the wire are not what the protocol says."""


class CheckpointError(PenstockError):
    """A checkpoint is not of this source, or of a later version."""


class DataLossError(PenstockError):
    """What a query has to read next is not there any more."""


class SpoolError(PenstockError):
    """A spool cannot be read or written, or belongs to something else."""


class AgentError(PenstockError):
    """The process that serves an executor cannot start or go on."""


def missing_extra(feature: str, extra: str, module: str) -> MissingExtraError:
    """Build the error for an absent optional dependency, with the exact command that adds it."""
    return MissingExtraError(
        "EXTRA_MISSING",
        feature,
        f"module {module!r} is not installed on this node",
        f"Install it on the driver and on every executor: pip install 'penstock[{extra}]'",
    )
