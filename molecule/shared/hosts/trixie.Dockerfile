# A host as a user has it, with Debian 13, from wherever the lab's image has its packages.
ARG BASE
FROM ${BASE}
COPY module_bytecode.* /usr/lib/python3/dist-packages/
RUN id ops 2>/dev/null || useradd --create-home --shell /bin/bash ops \
 && echo "ops ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/ops \
 && . /etc/os-release \
 && find /etc/apt -name '*.list' -o -name '*.sources' | xargs sed --in-place "s/$VERSION_CODENAME/trixie/g" \
 && apt-get update --quiet=2 \
 && DEBIAN_FRONTEND=noninteractive apt-get full-upgrade --quiet=2 --yes --no-install-recommends --auto-remove \
 && rm -rf /var/lib/apt/lists/*
