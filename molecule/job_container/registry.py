#!/usr/bin/python3
"""A registry with one image that has no layers to hand out, on a port of localhost. registry.py
PORT
"""

import http.server
import json
import sys

EMPTY = "sha256:" + "0" * 64
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": 2,
            "digest": EMPTY,
        },
        "layers": [],
    }
).encode()


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/v2/" or "/manifests/" in self.path
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
        body = MANIFEST if "/manifests/" in self.path else b"{}"
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Registry).serve_forever()
