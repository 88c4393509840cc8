#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A fake etcd that lies. fake_etcd.py ADDRESS PORT FOLDER: answers etcd's JSON gateway well enough for rdtd-etcd, with one node
in its list, and does what the file FOLDER/lie says, which is read for each request:

truth       it lies about nothing
wrong-json  answers are no JSON
html        answers are a page of a web server, with status 200
no-header   answers lack etcd's header
giant       answers never end
giant-value one value is of 1 MiB, beside the right ones
base64      one key is no base64, and one value no JSON
backwards   revisions are lower than before
other       answers are of another cluster
hang        nothing is answered
close       the connection is closed in the middle of an answer
no-watch    the watch ends at once
silent      the watch says nothing of what was written
compacted   the watch is cancelled as compacted, each time
number      numbers are of another type
edges       beside the right ones there are keys with numbers at the edges of their ranges: ports and revisions. The file
            FOLDER/edges says how many
header=N    the revision in etcd's header is N, which is JSON
lease=N     the lease has expired, and the id of the next one is N, which is JSON
"""
import base64
import json
import pathlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = pathlib.Path(sys.argv[3])
OTHER = "0123456789abcdef0123456789abcdef"
state = {"revision": 1000, "keys": {}, "watches": []}
lock = threading.Condition()


def b64(data):
    return base64.b64encode(data).decode()


def kv(key, value, revision):
    return {"key": b64(key), "create_revision": str(revision), "mod_revision": str(revision), "version": "1", "value": b64(value)}


EDGES = (-1, 1 << 60, 1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1.5, 1e300, "-1", "1e3", " 1", "9" * 400, [1], None, True, "")


def at_the_edges(root):
    """Keys that a reader leaves out, each for one number."""
    def node(number, address, revision=900):
        return kv(root + b"nodes/%032x" % number, json.dumps({"address": address, "boot": OTHER}).encode(), revision)

    kvs = [node(i, f"127.0.0.8:{port}") for i, port in enumerate((0, 65536, 4294967296 + 7411, "-1", "+7411", "7e3", ""), 1)]
    kvs += [dict(node(100 + i, "127.0.0.8:7411"), mod_revision=str(edge) if type(edge) is int else edge) for i, edge in enumerate(EDGES)]
    return kvs


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def lie(self):
        return (FOLDER / "lie").read_text().strip()

    def header(self, lie):
        return {
            "cluster_id": "2" if lie == "other" else "1",
            "member_id": "1",
            "revision": json.loads(lie[7:]) if lie[:7] == "header=" else [7] if lie == "number" else "5" if lie == "backwards" else str(state["revision"]),
            "raft_term": "2",
        }

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lie = self.lie()
        path = self.path.removeprefix("/v3/")
        with (FOLDER / "requests").open("a") as log:
            log.write(f"{lie} {path}\n")
        if lie == "hang":
            while self.lie() == "hang":
                with lock:
                    lock.wait(0.2)
            self.close_connection = True
        elif lie in ("wrong-json", "html"):
            data = b"<html>welcome</html>" if lie == "html" else b'{"header":{"revision":'
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif lie == "giant":
            self.send_response(200)
            self.end_headers()
            try:
                while self.lie() == "giant":
                    self.wfile.write(b" " * 65536)
            except OSError:
                pass
            self.close_connection = True
        elif lie == "close":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"header":')
            self.close_connection = True
        elif path == "watch":
            self.watch(lie)
        else:
            self.unary(path, request, lie)

    def unary(self, path, request, lie):
        if path == "lease/grant":
            number = json.loads(lie[6:]) if lie[:6] == "lease=" else "77"
            self.answer({"header": self.header(lie), "ID": number, "TTL": request["TTL"]})
        elif path == "lease/keepalive":
            self.answer({"result": {"header": self.header(lie), "ID": "77", "TTL": "0" if lie[:6] == "lease=" else "10"}})
        elif path == "kv/range":
            root = base64.b64decode(request["key"]).removesuffix(b"nodes/")
            prefix = root + b"nodes/"
            kvs = [kv(prefix + OTHER.encode(), b'{"address":"127.0.0.9:7411","boot":"' + OTHER.encode() + b'"}', 900)]
            if lie == "giant-value":
                kvs.append(kv(prefix + b"f" * 32, b"x" * (1 << 20), 900))
            if lie == "base64":
                kvs[:0] = [dict(kvs[0], key="*** no base64 ***"), kv(prefix + b"e" * 32, b"no JSON", 900)]
            if lie == "edges":
                edges = at_the_edges(root)
                kvs = edges[:len(edges) // 2] + kvs + edges[len(edges) // 2:]
                (FOLDER / "edges").write_text(str(len(edges)))
            body = {"header": self.header(lie), "kvs": kvs, "count": str(len(kvs))}
            if lie == "no-header":
                del body["header"]
            self.answer(body)
        elif path == "kv/put":
            with lock:
                state["revision"] += 1
                state["last"] = kv(base64.b64decode(request["key"]), base64.b64decode(request["value"]), state["revision"])
                lock.notify_all()
            self.answer({"header": self.header(lie)})
        else:
            self.answer({"error": "unknown", "message": "unknown", "code": 12}, 501)

    def line(self, body):
        data = json.dumps(body).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def watch(self, lie):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        seen = state["revision"]
        try:
            if lie == "compacted":
                self.line({"result": {"header": self.header(lie), "canceled": True, "compact_revision": "999"}})
                return
            self.line({"result": {"header": self.header(lie), "created": True}})
            while self.lie() == lie and lie != "no-watch":
                with lock:
                    lock.wait(0.2)
                    now = state["revision"]
                if now > seen and lie != "silent":
                    seen = now
                    self.line({"result": {"header": self.header(lie), "events": [{"kv": state["last"]}]}})
        except OSError:
            pass


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
