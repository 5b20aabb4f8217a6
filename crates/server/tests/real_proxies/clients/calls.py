"""A gRPC server, and a client that calls it through a proxy. Usage: calls.py server | calls.py PORT

Messages are bytes, so that no generated code is needed.
"""

import json
import queue
import sys
from concurrent import futures

import grpc

SERVICE = "test.Echo"


def unary(message, context):
    if message == b"fail":
        context.set_trailing_metadata((("x-detail", "why"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not like this")
    context.send_initial_metadata((("x-initial", "first"),))
    context.set_trailing_metadata((("x-trailing", "last"), ("x-raw-bin", b"\x00\xff")))
    seen = dict(context.invocation_metadata())
    return seen.get("x-asked", "").encode() + b" " + message


def collect(messages, context):
    return str(sum(len(message) for message in messages)).encode()


def count(message, context):
    for number in range(int(message)):
        yield str(number).encode()


def talk(messages, context):
    for message in messages:
        yield message.upper()


def wait(message, context):
    ended = futures.Future()
    context.add_callback(lambda: ended.set_result(None))
    print("called", flush=True)
    ended.result()
    print("cancelled", flush=True)
    return b""


def serve():
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Collect": grpc.stream_unary_rpc_method_handler(collect),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def call(port):
    said = {}
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)])
    unary = channel.unary_unary(f"/{SERVICE}/Unary")
    answer, done = unary.with_call(b"one", metadata=(("x-asked", "asked"),), timeout=60)
    said["unary"] = answer.decode()
    initial, trailing = dict(done.initial_metadata()), dict(done.trailing_metadata())
    said["metadata"] = [initial.get("x-initial"), trailing.get("x-trailing"), trailing.get("x-raw-bin", b"").hex()]
    large = b"x" * (3 << 20)
    said["large"] = len(unary(large, timeout=60))
    try:
        unary(b"fail", timeout=60)
    except grpc.RpcError as error:
        said["error"] = [error.code().name, error.details(), dict(error.trailing_metadata()).get("x-detail")]
    try:
        channel.unary_unary(f"/{SERVICE}/Missing")(b"", timeout=60)
    except grpc.RpcError as error:
        said["missing"] = error.code().name

    collect = channel.stream_unary(f"/{SERVICE}/Collect")
    said["collect"] = collect((b"x" * 1000 for _ in range(1000)), timeout=60).decode()
    numbers = list(channel.unary_stream(f"/{SERVICE}/Count")(b"1000", timeout=60))
    said["count"] = [len(numbers), numbers[-1].decode()]

    # Each message is sent after the answer to the one before it has arrived, so neither direction may be held back.
    answers = queue.Queue()

    def questions():
        for number in range(20):
            yield f"message {number}".encode()
            said["talk"] = answers.get(timeout=60)

    for answer in channel.stream_stream(f"/{SERVICE}/Talk")(questions(), timeout=60):
        answers.put(answer.decode())

    together = [unary.future(str(number).encode(), timeout=60) for number in range(200)]
    said["together"] = all(f.result() == f" {number}".encode() for number, f in enumerate(together))

    waiting = channel.unary_unary(f"/{SERVICE}/Wait").future(b"", timeout=60)
    print(json.dumps(said), flush=True)
    # The other program says when the call has arrived at the server.
    sys.stdin.readline()
    waiting.cancel()
    sys.stdin.readline()
    channel.close()


if sys.argv[1] == "server":
    serve()
else:
    call(sys.argv[1])
