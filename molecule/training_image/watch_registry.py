"""Records each new answer of the head's registry to a client without a login, until it is
stopped.
"""

import http.client
import socket
import ssl
import sys
import time

HOST, PORT = sys.argv[1], 5443
STRANGER = ssl._create_unverified_context()


def status(connection):
    try:
        connection.request("GET", "/v2/_catalog")
        return str(connection.getresponse().status)
    finally:
        connection.close()


def ask():
    try:
        socket.create_connection((HOST, PORT), 1).close()
    except OSError:
        return ["closed"]
    answers = []
    for name, connection in (
        ("without a login", http.client.HTTPSConnection(HOST, PORT, timeout=2, context=STRANGER)),
        ("without TLS", http.client.HTTPConnection(HOST, PORT, timeout=2)),
        ("with the host's own authorities", http.client.HTTPSConnection(HOST, PORT, timeout=2)),
    ):
        try:
            answers.append("%s: %s" % (name, status(connection)))
        except ssl.SSLCertVerificationError as error:
            answers.append("%s: %s" % (name, error.verify_message))
        except OSError as error:
            # The registry was stopped between two requests.
            answers.append("%s: %s" % (name, type(error).__name__))
    return answers


seen = set()
while True:
    for answer in ask():
        if answer not in seen:
            seen.add(answer)
            print(answer, flush=True)
    time.sleep(0.3)
