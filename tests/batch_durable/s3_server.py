"""A real S3-compatible server that checks signatures, as a process of its own: moto from PyPI, or the server in STREAMGLOT_TEST_S3
(its address; its key is in STREAMGLOT_TEST_S3_KEY and STREAMGLOT_TEST_S3_SECRET)."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

ADDRESS = "STREAMGLOT_TEST_S3"
REGION = "us-east-1"
RIGHTS = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'


class S3Server:
    """The server, from outside."""

    def __init__(self, address: str, key: str, secret: str) -> None:
        import boto3  # type: ignore[import-untyped]  # it ships no types

        self.address, self.key, self.secret = address, key, secret
        # Any: the classes of boto3 are made while it runs
        self.client: Any = boto3.client(
            "s3", endpoint_url=address, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{uuid.uuid4().hex}"
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def unfinished(self, bucket: str) -> list[Any]:
        """The multipart uploads that were neither completed nor aborted."""
        return list(self.client.list_multipart_uploads(Bucket=bucket).get("Uploads") or [])

    def parts(self, bucket: str) -> int:
        """How many parts of such uploads are stored. A part that is on its way during an abort may outlive it, also at Amazon's."""
        return sum(
            len(self.client.list_parts(Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"]).get("Parts", []))
            for found in self.unfinished(bucket)
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    if ADDRESS in os.environ:
        yield S3Server(os.environ[ADDRESS], os.environ[f"{ADDRESS}_KEY"], os.environ[f"{ADDRESS}_SECRET"])
        return
    environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "0"}  # every signature is checked
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        yield S3Server(f"http://127.0.0.1:{told['port']}", told["key"], told["secret"])
    finally:
        process.kill()
        process.wait()


class Tunnel:
    """A TCP port in front of a server. While it is closed, connections are cut and refused, as if the server were down.

    ``close_after`` closes it when this many bytes have passed towards the server.
    """

    def __init__(self, address: str, close_after: int | None = None) -> None:
        parts = urlsplit(address)
        self._target = (parts.hostname or "", parts.port or 80)
        self._open = True
        self._left = close_after
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._open = False
        for one in self._pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        self._left = None
        self._open = True

    @property
    def closed(self) -> bool:
        return not self._open

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if not self._open:
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._pairs += [client, server]
            if not self._open:  # it was closed meanwhile
                self.close()
            for source, target, counted in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass, args=(source, target, counted), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                if counted and self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        self.close()
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def serve() -> None:
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.iam.models import iam_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user(REGION, "tester")
    iam.put_user_policy("tester", "all", RIGHTS)
    key = iam.create_access_key("tester")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    port = server.get_host_and_port()[1]
    print(json.dumps({"port": port, "key": key.access_key_id, "secret": key.secret_access_key}), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve()
