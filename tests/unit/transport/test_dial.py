"""How clients and workers are connected."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc

from ostraka.transport.dial import dial


def test_every_channel_has_a_connection_of_its_own():
    """Clients of one process must not wait for each other's calls."""
    together = threading.Barrier(3)

    def wait(request, context):
        together.wait(30)
        return request

    handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_concurrent_streams", 1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with ExitStack() as stack:
            channels = [stack.enter_context(dial(f"127.0.0.1:{port}")) for _ in range(3)]
            methods: list[Any] = [channel.unary_unary("/test/Wait") for channel in channels]
            calls = [method.future(b"", 60) for method in methods]
            assert [call.result() for call in calls] == [b""] * 3
    finally:
        server.stop(None)
