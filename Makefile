# HOSTS=3       a lab of three hosts
# LAB_IMAGE=    an image of yours with systemd for the lab's hosts (default: built from this machine's package sources)
# LAB_RELEASE=  hosts of another release: bookworm, trixie, jammy or noble (default: this machine's)
# KEEP=1        lab-down keeps what is slow to make (host image, base archive, wheels); test keeps its hosts
HOSTS ?= 2
LAB_IMAGE ?=
LAB_RELEASE ?=
KEEP ?=
HOST ?= lab-a
export KEEP

lab := python3 -u lab/lab.py
venv := .venv/complete
# Of the unit tests. Some wait for processes of theirs, so one more than there are cores.
workers := $(shell expr $$(nproc) + 1)

.DEFAULT_GOAL := help
.PHONY: help lab lab-vm lab-slurm lab-down lab-shell portal test test-fast acceptance lint format docs bench clean

help:
	@echo 'make lab         two hosts on this machine, site.yml, a training run over both (HOSTS=3, LAB_IMAGE=)'
	@echo 'make lab-vm      the same on virtual machines, with kernels of their own: NFS, memlock'
	@echo 'make lab-slurm   the lab with a queue: two groups with quotas, a job of each of three people, a training in containers'
	@echo 'make portal      the pages of the portal with recorded data of 64 hosts, on port 8053 of this machine'
	@echo 'make lab-shell   a shell on a host of the lab (HOST=lab-b)'
	@echo 'make lab-down    removes the lab (KEEP=1 keeps images and wheels)'
	@echo 'make test        what CI runs: lint, unit tests, Molecule scenarios'
	@echo 'make test-fast   lint and unit tests, without ansible-test sanity and runs of playbooks'
	@echo 'make acceptance  test, and what is too heavy for CI'
	@echo 'make lint        style and documentation only'
	@echo 'make format      formats the Python code, and corrects what ruff can correct'
	@echo 'make docs        writes the tables of variables and checks in the READMEs of the roles, docs/errors.md, and the dashboards'
	@echo 'make bench       what site.yml, train.yml and Slurm cost on the lab'
	@echo 'make clean       takes down all labs of this checkout and removes everything else that make has made here'

$(venv): requirements.txt requirements-collections.txt galaxy.yml lab/setup
	@lab/setup

# With --setup the lab installs the Python tools itself, beside the images. It runs with the system's Python, so that must be there.
lab:
	@command -v python3 > /dev/null || lab/setup
	@$(lab) run --setup --hosts $(HOSTS) --release '$(LAB_RELEASE)' --image '$(LAB_IMAGE)'

lab-vm:
	@command -v python3 > /dev/null || lab/setup
	@$(lab) run --setup --virtual --hosts $(HOSTS) --release '$(LAB_RELEASE)'

lab-slurm:
	@command -v python3 > /dev/null || lab/setup
	@$(lab) share --setup --hosts $(HOSTS) --release '$(LAB_RELEASE)' --image '$(LAB_IMAGE)'

lab-down:
	@$(lab) down $(if $(KEEP),--keep)

lab-shell:
	@$(lab) shell $(HOST)

test: $(venv)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest -m 'not acceptance'

test-fast: $(venv)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest -n $(workers) --dist loadfile --no-loadscope-reorder -m 'not acceptance and not scenario and not slow'

acceptance: $(venv)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest

lint: $(venv)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest tests/lint

format: $(venv)
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

portal: $(venv)
	@.venv/bin/python tests/support/portal.py

docs: $(venv)
	@.venv/bin/python tests/support/role_readmes.py
	@.venv/bin/python tests/support/errors_page.py
	@.venv/bin/python tests/support/grafana_dashboards.py

bench: $(venv)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python tests/bench.py

clean:
	@$(lab) down-all
	@rm -rf .venv .cache .lab .ansible bench.json trainyard-gpu-*.tar.gz
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
