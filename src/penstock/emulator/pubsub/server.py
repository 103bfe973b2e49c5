"""The emulator's gRPC server: every method of the API bound to its service; one event loop.

Methods that carry messages are served from wire bytes to wire bytes; the others as protobuf.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1.types import pubsub as api
from google.pubsub_v1.types import schema as schema_api

from penstock._core.clock import SYSTEM_CLOCK, Clock
from penstock.emulator.pubsub import admin, wire
from penstock.emulator.pubsub.iam import IamService, check_permission
from penstock.emulator.pubsub.publisher import PublisherService
from penstock.emulator.pubsub.rpc import Code, RpcError, invalid
from penstock.emulator.pubsub.schema_service import SchemaService
from penstock.emulator.pubsub.store import Store
from penstock.emulator.pubsub.streaming import SHORTEST_SECONDS, PullStream
from penstock.emulator.pubsub.subscriber import SubscriberService
from penstock.errors import ConnectError

_LOGGER = logging.getLogger(__name__)
_EXPIRE_SECONDS = 0.05
_SWEEP_SECONDS = 0.5
_STOP_GRACE_SECONDS = 0.2
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Two emulators on one port would each get half of the calls.
    ("grpc.so_reuseport", 0),
    # Clients of the real service ping every 30 s; the default would cut them off.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


class PubSubServer:
    """One emulator. `start` and `stop` belong to the event loop that serves it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, seed: int = 0) -> None:
        self.store = Store(clock, seed)
        self.admin = admin.AdminService(self.store, self._begin_restart)
        self.address = ""
        self._server: grpc.aio.Server | None = None
        self._housekeeper: asyncio.Task[None] | None = None
        self._restart: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the address. Port 0 takes a free one."""
        host = f"[{host}]" if ":" in host else host
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            bound = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise ConnectError(
                "EMULATOR_PORT",
                f"Address {host}:{port}",
                "cannot be listened on; another program has it, or it is not of this machine",
                "Choose another --port (0 takes a free one), or stop the other program",
            )
        await server.start()
        self._server = server
        self._housekeeper = asyncio.create_task(self._keep_house())
        self.address = f"{host}:{bound}"
        return self.address

    async def stop(self) -> None:
        """Stop serving; open calls are ended."""
        if self._restart is not None:
            self._restart.cancel()
        await self._close()

    async def _close(self) -> None:
        if self._housekeeper is not None:
            self._housekeeper.cancel()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_SECONDS)

    def _begin_restart(self, seconds: float) -> None:
        """Go away for a while, as a service does whose machine is replaced; nothing is forgotten.

        The call that asks for it still gets its answer.
        """

        async def restart() -> None:
            host, port = self.address.rsplit(":", 1)
            await self._close()
            await asyncio.sleep(seconds)
            await self.start(host.strip("[]"), int(port))

        self._restart = asyncio.create_task(restart())

    async def _keep_house(self) -> None:
        loop = asyncio.get_running_loop()
        swept = loop.time()
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                self.store.expire()
                if loop.time() - swept >= _SWEEP_SECONDS:
                    self.store.sweep()
                    swept = loop.time()
            except Exception:  # the top of a task: without it no lease would ever end
                _LOGGER.exception("housekeeping failed by a mistake of the emulator")

    def _handlers(self) -> list[grpc.GenericRpcHandler]:
        publisher = PublisherService(self.store)
        subscriber = SubscriberService(self.store)
        schemas = SchemaService(self.store)
        iam = IamService(self.store)
        services: dict[str, dict[str, grpc.RpcMethodHandler]] = {
            "google.pubsub.v1.Publisher": {
                "Publish": self._raw("Publish", publisher.publish),
                "CreateTopic": self._unary("CreateTopic", api.Topic, publisher.create_topic),
                **self._requests(
                    api,
                    publisher,
                    "UpdateTopic",
                    "GetTopic",
                    "ListTopics",
                    "ListTopicSubscriptions",
                    "ListTopicSnapshots",
                    "DeleteTopic",
                    "DetachSubscription",
                ),
            },
            "google.pubsub.v1.Subscriber": {
                "StreamingPull": grpc.stream_stream_rpc_method_handler(self._streaming_pull),
                "Pull": self._raw("Pull", subscriber.pull),
                "Acknowledge": self._raw("Acknowledge", subscriber.acknowledge),
                "ModifyAckDeadline": self._raw("ModifyAckDeadline", subscriber.modify_ack_deadline),
                "CreateSubscription": self._unary(
                    "CreateSubscription", api.Subscription, subscriber.create_subscription
                ),
                **self._requests(
                    api,
                    subscriber,
                    "GetSubscription",
                    "UpdateSubscription",
                    "ListSubscriptions",
                    "DeleteSubscription",
                    "ModifyPushConfig",
                    "GetSnapshot",
                    "ListSnapshots",
                    "CreateSnapshot",
                    "UpdateSnapshot",
                    "DeleteSnapshot",
                    "Seek",
                ),
            },
            "google.pubsub.v1.SchemaService": self._requests(
                schema_api,
                schemas,
                "CreateSchema",
                "GetSchema",
                "ListSchemas",
                "ListSchemaRevisions",
                "CommitSchema",
                "RollbackSchema",
                "DeleteSchemaRevision",
                "DeleteSchema",
                "ValidateSchema",
                "ValidateMessage",
            ),
            "google.iam.v1.IAMPolicy": self._requests(
                iam_policy_pb2, iam, "SetIamPolicy", "GetIamPolicy", "TestIamPermissions"
            ),
            admin.SERVICE: {
                name: grpc.unary_unary_rpc_method_handler(self._admin(name))
                for name in admin.AdminService.METHODS
            },
        }
        self.admin.methods = {
            method for name in services if name != admin.SERVICE for method in services[name]
        }
        return [
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in services.items()
        ]

    def _requests(
        self, types: Any, service: Any, *methods: str
    ) -> dict[str, grpc.RpcMethodHandler]:
        """Bind methods named by the rule: FooBar takes a FooBarRequest and is foo_bar here."""
        return {
            method: self._unary(
                method, getattr(types, f"{method}Request"), getattr(service, _snake_case(method))
            )
            for method in methods
        }

    def _unary(
        self, method: str, request_type: Any, serve: Callable[[Any], Any]
    ) -> grpc.RpcMethodHandler:
        message = request_type.pb() if hasattr(request_type, "pb") else request_type

        def from_bytes(payload: bytes) -> bytes:
            answer: bytes = serve(wire.parse(message, payload)).SerializeToString()
            return answer

        return self._raw(method, from_bytes)

    def _raw(self, method: str, serve: Callable[[bytes], Any]) -> grpc.RpcMethodHandler:
        faults = self.store.faults

        async def handle(payload: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            async with _aborting(context):
                await self._before(method)
                answer = serve(payload)
                if inspect.isawaitable(answer):
                    answer = await answer
                if faults and (fault := faults.draw("lose_response", method)):
                    raise RpcError(Code[fault.code], fault.message)
                return answer

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _streaming_pull(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with _aborting(context):
            try:
                await self._before("StreamingPull")
            except RpcError:
                await asyncio.sleep(SHORTEST_SECONDS)
                raise
            await PullStream(self.store, requests, context).run()

    async def _before(self, method: str) -> None:
        """Count the call, and let it fail or wait if a fault says so."""
        self.store.calls[method] = self.store.calls.get(method, 0) + 1
        if self.store.denied:
            check_permission(self.store, method)
        faults = self.store.faults
        if not faults:
            return
        if fault := faults.draw("latency", method):
            await asyncio.sleep(fault.seconds)
        if fault := faults.draw("error", method):
            raise RpcError(Code[fault.code], fault.message)

    def _admin(self, name: str) -> Callable[[bytes, Any], Any]:
        async def handle(payload: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            async with _aborting(context):
                return self.admin.call(name, payload)
            raise AssertionError("an aborted call does not get here")

        return handle


@contextlib.asynccontextmanager
async def _aborting(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn our errors into the call's status."""
    error: RpcError | None = None
    try:
        yield
    except RpcError as exc:
        error = exc
    except wire.MalformedRequestError as exc:
        error = invalid("request", str(exc))
    except Exception as exc:  # the top of a call: one bad request must not take others with it
        _LOGGER.exception("a call failed by a mistake of the emulator")
        error = RpcError(Code.INTERNAL, f"emulator error: {exc!r}")
    if error is not None:
        await context.abort(error.code, error.message, error.trailing_metadata())


def _snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).removeprefix("_")


def serve(host: str, port: int, *, on_ready: Callable[[str], None]) -> None:
    """Run an emulator in this process until SIGINT or SIGTERM; `on_ready` gets its address."""

    async def run() -> None:
        server = PubSubServer()
        address = await server.start(host, port)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopped.set)
        on_ready(address)
        await stopped.wait()
        await server.stop()

    asyncio.run(run())


def _main() -> None:
    """Serve for a parent process: print the address, end when standard input ends."""

    async def run() -> None:
        # Ctrl-C goes to the parent's whole group; the parent decides when this ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server = PubSubServer()
        address = await server.start(sys.argv[1], int(sys.argv[2]))
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        # The parent holds the other end: however it dies, the emulator does not outlive it.
        await asyncio.to_thread(sys.stdin.buffer.read)
        await server.stop()

    asyncio.run(run())


if __name__ == "__main__":
    _main()
