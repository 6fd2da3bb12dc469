"""Serve stand-ins for workers, each at its own port, that answer every request after a second."""

import asyncio
import json
import sys

ANSWER = json.dumps({"version": "0.5.21", "tp_size": 1}).encode()


async def serve(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
    await reader.readexactly(int(lengths[0]) if lengths else 0)
    await asyncio.sleep(float(sys.argv[2]))
    status = b"404 Not Found" if head.split()[1] == "/version" else b"200 OK"
    size = str(len(ANSWER)).encode()
    writer.write(
        b"HTTP/1.1 " + status + b"\r\nContent-Length: " + size + b"\r\nConnection: close\r\n\r\n" + ANSWER
    )
    await writer.drain()
    writer.close()


async def main():
    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(int(sys.argv[1]))]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
