# The same host with an engine, for scenarios that are not about installing one.
ARG BASE
FROM ${BASE}
COPY module_bytecode.* /usr/lib/python3/dist-packages/
RUN id ops 2>/dev/null || useradd --create-home --shell /bin/bash ops \
 && echo "ops ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/ops \
 && apt-get update --quiet=2 \
 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends docker.io iptables python3-requests \
 && rm -rf /var/lib/apt/lists/*
