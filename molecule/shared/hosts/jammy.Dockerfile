# The base of a stand-in for Ubuntu 22.04: Debian 12 with programs that Ubuntu Server ships and that an apt run meets. Scenario ubuntu_standin gives it
# Ubuntu's names after it has downloaded Debian's packages.
ARG BASE
FROM ${BASE}
COPY module_bytecode.* /usr/lib/python3/dist-packages/
RUN id ops 2>/dev/null || useradd --create-home --shell /bin/bash ops \
 && echo "ops ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/ops \
 && apt-get update --quiet=2 \
 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
    adduser apparmor gnupg lsb-release needrestart python3-requests systemd-resolved ufw unattended-upgrades \
 && systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer \
 && rm -rf /var/lib/apt/lists/*
