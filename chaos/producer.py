"""Publishes numbered messages at a steady rate, and remembers what the service has confirmed."""

from __future__ import annotations

import threading
import time

import grpc
from google.pubsub_v1.types import pubsub as api

from chaos.service import TOPIC
from penstock.retry import is_transient

_REQUESTS_PER_SECOND = 10
# The service takes no more.
_MESSAGES_PER_REQUEST = 1000
_CALL_SECONDS = 10.0
_AGAIN_SECONDS = 0.2
# The plain protobuf classes: the wrappers around them would be most of the work.
_Message, _Request = api.PubsubMessage.pb(), api.PublishRequest.pb()


class Producer:
    """A thread that publishes. A request is repeated until it is confirmed.

    What was stored though its confirmation was lost is stored twice, under two message ids. So ids
    are what counts, not numbers: every confirmed id has to arrive, and none of them twice.
    """

    def __init__(
        self, address: str, rate: int, filling_bytes: int = 0, *, is_remembering: bool = True
    ) -> None:
        self._channel = grpc.insecure_channel(address)
        self._publish = self._channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        self._rate = rate
        self._filling = "." * filling_bytes
        self._is_remembering = is_remembering
        self._stopped = threading.Event()
        self._is_closed = False
        self._refusal: grpc.RpcError | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        # Message id -> number, of all that is confirmed.
        self.sent: dict[str, int] = {}
        self.sent_count = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when the last request is confirmed.

        Raises:
            RuntimeError: the service has refused a request for good.
        """
        self._stopped.set()
        self._thread.join()
        if self._refusal is not None:
            raise RuntimeError("the service refused a request") from self._refusal

    def close(self) -> None:
        """End at once; after `stop`, or instead of it."""
        self._stopped.set()
        self._is_closed = True
        if self._thread.ident is not None:
            self._thread.join()
        self._channel.close()

    def _run(self) -> None:
        began = time.monotonic()
        number = 0
        while not self._stopped.wait(1 / _REQUESTS_PER_SECOND):
            # What could not be sent while the service was away is made up for.
            due = int((time.monotonic() - began) * self._rate)
            while number < due and not self._stopped.is_set():
                end = min(due, number + _MESSAGES_PER_REQUEST)
                self._send(range(number, end))
                number = end

    def _send(self, numbers: range) -> None:
        messages = [_Message(data=f"{number} {self._filling}".encode()) for number in numbers]
        payload = _Request(topic=TOPIC, messages=messages).SerializeToString()
        while not self._is_closed:
            try:
                answer = self._publish(payload, timeout=_CALL_SECONDS)
            except grpc.RpcError as exc:
                if not is_transient(exc.code().name):
                    self._refusal = exc
                    self._stopped.set()
                    return
                time.sleep(_AGAIN_SECONDS)
                continue
            if self._is_remembering:
                ids = api.PublishResponse.deserialize(answer).message_ids
                self.sent.update(zip(ids, numbers, strict=True))
            self.sent_count += len(numbers)
            return
