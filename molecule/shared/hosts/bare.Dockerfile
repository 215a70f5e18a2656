# A host as a user has it: an account that is not root, with sudo.
ARG BASE
FROM ${BASE}
COPY module_bytecode.* /usr/lib/python3/dist-packages/
RUN id ops 2>/dev/null || useradd --create-home --shell /bin/bash ops \
 && echo "ops ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/ops
