"""wheel_of_horovod.py TAG FOLDER: packs the installed Horovod as a wheel with this build tag.

Runs in the Python of a training image, 3.6 or newer.
"""

import base64
import hashlib
import os
import re
import sys
import zipfile

# Of the installation, not of the wheel. pip writes them again, and the programs in bin.
OF_PIP = re.compile(
    r"(^|/)\.\./|/__pycache__/|\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$"
)


def found() -> tuple:
    """Return the folder of the packages, and the name of the folder of Horovod's metadata in it."""
    for folder in sys.path:
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if re.match(r"horovod-.*\.dist-info$", name):
                return folder, name
    raise SystemExit("this image has no installed Horovod")


def pack(tag: str, target: str) -> None:
    folder, metadata = found()
    with open(os.path.join(folder, metadata, "WHEEL"), encoding="utf-8") as stream:
        python = re.search(r"^Tag: (\S+)", stream.read(), re.MULTILINE).group(1)
    with open(os.path.join(folder, metadata, "RECORD"), encoding="utf-8") as stream:
        names = [line.rsplit(",", 2)[0].strip('"') for line in stream.read().splitlines()]
    rows = []
    release = metadata[: -len(".dist-info")]
    path = os.path.join(target, "%s-%s-%s.whl" % (release, tag, python))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            if OF_PIP.search(name):
                continue
            with open(os.path.join(folder, name), "rb") as stream:
                content = stream.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append("%s,sha256=%s,%d" % (name, digest.decode(), len(content)))
            archive.writestr(name, content)
        record = metadata + "/RECORD"
        archive.writestr(record, "\n".join(rows + [record + ",,"]) + "\n")


if __name__ == "__main__":
    pack(*sys.argv[1:])
