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
# As trixie.Dockerfile until here, whose layers are taken. The base of a stand-in for Ubuntu 24.04: programs that Ubuntu Server ships and that an apt run
# meets. Scenario ubuntu_standin gives it Ubuntu's names after it has downloaded Debian's packages.
RUN apt-get update --quiet=2 \
 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends \
    adduser apparmor gnupg lsb-release needrestart python3-requests systemd-resolved ufw unattended-upgrades \
 && systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer \
 && rm -rf /var/lib/apt/lists/*
