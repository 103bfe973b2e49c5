"""A spool in an object store: a directory, gs://, s3://, az://; runs on the driver and in agents.

Objects are created only if absent, which decides between two writers. The manifest at the top binds
the location to one subscription and, by an id that is also in the query's offsets, to a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.errors import SpoolError, missing_extra
from penstock.pubsub.spool.format import SpoolKey, decode_object, encode_object

_MANIFEST = "spool.json"
_MANIFEST_VERSION = 1


@dataclass(frozen=True)
class SpoolObject:
    """One object as a listing shows it."""

    key: SpoolKey
    size: int
    # Seconds since the epoch.
    written_at: float


class SpoolStore:
    """The objects of one location."""

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            import obstore
            from obstore import exceptions
            from obstore.store import LocalStore, from_url
        except ImportError:
            raise missing_extra("Option 'spoolLocation'", "spool", "obstore") from None
        self._api: Any = obstore
        self._exists: type[Exception] = exceptions.AlreadyExistsError
        self._failures: tuple[type[Exception], ...] = (exceptions.BaseError, OSError)
        self._root: Path | None = None
        scheme, mark, rest = location.partition("://")
        with self._translated("cannot be opened"):
            if not mark or scheme == "file":
                self._root = Path(rest if mark else location).absolute()
                self._store: Any = LocalStore(self._root, mkdir=True)
            else:
                self._store = from_url(location)

    @contextmanager
    def _translated(self, fact: str) -> Iterator[None]:
        try:
            yield
        except self._failures as exc:
            words = str(exc).split("\n\n")[0].strip()
            raise SpoolError(
                "SPOOL_STORE",
                f"Spool '{self.location}'",
                f"{fact}: {words}",
                "Check that the location exists, that driver and executors reach it, and that "
                "they may write to it",
            ) from exc

    def open_new(self, subscription: str) -> str:
        """Begin a spool for a query without a checkpoint; gives the spool's id.

        Raises:
            SpoolError: the location holds objects of another query, or cannot be used.
        """
        manifest = self._manifest()
        if manifest is not None:
            if manifest["subscription"] != subscription:
                raise self._other_subscription(manifest["subscription"], subscription)
            if any(True for _ in self.list(manifest["id"])):
                raise SpoolError(
                    "SPOOL_IN_USE",
                    f"Spool '{self.location}'",
                    "holds messages of another query, or of this one before its checkpoint was "
                    "removed",
                    "Start with that query's checkpoint, or choose another spoolLocation; the "
                    "messages in it were acknowledged and exist nowhere else",
                )
        spool = uuid.uuid4().hex
        content = {"v": _MANIFEST_VERSION, "id": spool, "subscription": subscription}
        with self._translated("cannot be written to"):
            self._api.put(self._store, _MANIFEST, json.dumps(content).encode())
        return spool

    def open_known(self, subscription: str, spool: str) -> None:
        """Check that the location is the one that the query's checkpoint knows.

        Raises:
            SpoolError: it is not.
        """
        manifest = self._manifest()
        if manifest is None or manifest["id"] != spool:
            fact = "is empty" if manifest is None else "belongs to another query"
            raise SpoolError(
                "SPOOL_OTHER",
                f"Spool '{self.location}'",
                f"{fact}; the query's checkpoint was written with another one",
                "Set spoolLocation to the one the query was started with",
            )
        if manifest["subscription"] != subscription:
            raise self._other_subscription(manifest["subscription"], subscription)

    def _manifest(self) -> dict[str, Any] | None:
        with self._translated("cannot be read"):
            try:
                payload = self._api.get(self._store, _MANIFEST).bytes()
            except FileNotFoundError:
                return None
        try:
            content: dict[str, Any] = json.loads(bytes(payload))
            if content["v"] == _MANIFEST_VERSION and content["id"] and content["subscription"]:
                return content
        except (ValueError, KeyError, TypeError):
            content = {}
        raise SpoolError(
            "SPOOL_MANIFEST",
            f"'{_MANIFEST}' in spool '{self.location}'",
            f"is of version {content['v']}" if "v" in content else "is not a spool's manifest",
            "Choose another spoolLocation, or install the Penstock that wrote it",
        )

    def _other_subscription(self, there: str, ours: str) -> SpoolError:
        return SpoolError(
            "SPOOL_SUBSCRIPTION",
            f"Spool '{self.location}'",
            f"was written for {there}, and the query reads {ours}",
            "Choose another spoolLocation",
        )

    def create(self, spool: str, key: SpoolKey, batches: list[pa.RecordBatch]) -> int | None:
        """Write an object if there is none; gives its size, or None if there is one already.

        Raises:
            SpoolError: the store refused.
        """
        payload = encode_object(spool, key, batches)
        path = f"{spool}/{key.name}"
        with self._translated("cannot be written to"):
            try:
                self._api.put(self._store, path, payload, mode="create", use_multipart=False)
            except self._exists:
                return None
            if self._root is not None:
                _sync(self._root / path)
        return len(payload)

    def read(self, spool: str, key: SpoolKey) -> list[pa.RecordBatch] | None:
        """Read an object; None if there is none.

        Raises:
            BrokenObjectError: it is not whole.
            SpoolError: it does not belong here, or the store refused.
        """
        with self._translated("cannot be read"):
            try:
                payload = self._api.get(self._store, f"{spool}/{key.name}").bytes()
            except FileNotFoundError:
                return None
        return decode_object(spool, key, bytes(payload))

    def list(self, spool: str) -> Iterator[SpoolObject]:
        """List a spool's objects.

        Raises:
            SpoolError: the store refused.
        """
        with self._translated("cannot be listed"):
            for page in self._api.list(self._store, prefix=spool):
                for found in page:
                    key = SpoolKey.parse(str(found["path"]).rsplit("/", 1)[-1])
                    if key is not None:
                        yield SpoolObject(key, found["size"], found["last_modified"].timestamp())

    def delete(self, spool: str, keys: Sequence[SpoolKey]) -> None:
        """Remove objects; those that are gone already do not matter.

        Raises:
            SpoolError: the store refused.
        """
        with self._translated("cannot be removed from"):
            for key in keys:
                with contextlib.suppress(FileNotFoundError):
                    self._api.delete(self._store, f"{spool}/{key.name}")

    def age(self, found: SpoolObject) -> float:
        """Seconds since an object was written, by its store's clock and ours."""
        return max(0.0, time.time() - found.written_at)


def _sync(path: Path) -> None:
    """Make a file and its name outlive the machine's sudden end; object stores do by themselves."""
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
