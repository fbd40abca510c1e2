# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# make preflight    set up what is needed and check this very host
# make test         everything that has to hold before a change lands
# make help         the rest

BIN := .venv/bin
# The tools call each other by name. Where a user's PATH lacks them, ip, tc and nft are in the last two.
export PATH := $(CURDIR)/$(BIN):$(PATH):/usr/sbin:/sbin
PYTEST = python -m pytest --junit-xml=.build/reports/$@.xml -o cache_dir=.build/reports/$@.cache
# `make test`: fast by default. `make test-full`: everything.
GATES := test-component test-smoke smoke-mesh
GATES_FULL := test-unit component plays kubernetes queue mesh molecule
# These measure nothing; two run at a time, and sanity is the longest.
GATES_ASIDE := sanity lint docs test-unit
GATES_ASIDE_FULL := matrix sanity lint docs artifact import
# These make network namespaces and measure in them, which is no use beside other tests.
# The longest tests first, so that no worker is left with one at the end.
MESH_TESTS := $(addprefix tests/full/test_,monitoring_cluster.py mesh_cluster.py mesh_faults.py mesh_fabrics.py mesh_run.py rdma_run.py rdma_cluster.py mesh_interrupt.py network_checks.py cluster.py)
# These need an API server, nodes or the agent's image; a worker makes them once, and has all of a file.
KUBERNETES_TESTS := $(wildcard $(addprefix tests/full/test_,lab.py node_mark*.py volume_claim.py agents_inventory.py status.py job_action_cluster.py monitoring_objects.py agent_*.py teams_*.py))
# These need Kueue and AppWrapper beside it; each file makes its own cluster.
QUEUE_TESTS := $(wildcard tests/full/test_queue_*.py)
OTHER_TESTS := $(addprefix tests/full/test_,matrix.py artifact.py newcomer.py)
comma := ,
space := $(subst ,, )
# Arguments for ansible-playbook, for example ARGS='--check' or ARGS='-e expected_gpus=8'.
ARGS ?=
# The bad part of `make demo`; `make demo ARGS=--help` lists them.
DEMO_FAULT ?= slow_sender

.PHONY: help generated as-root setup setup-run preflight demo test test-full accuracy hardware dist clean $(GATES) $(GATES_FULL) $(GATES_ASIDE_FULL)

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make setup             virtualenv .venv with ansible-core and all tools, the collection linked into it
setup:
	@tests/tools/setup.sh all

# Before anything is installed.
as-root:
	@[ "$$(id -u)" -eq 0 ] || { echo "demo: needs root, to make network namespaces" >&2; exit 2; }

setup-run:
	@tests/tools/setup.sh run

## make preflight         check this host (installs only what the playbook needs)
preflight: setup-run
	@ansible-playbook -i localhost, -c local -e 'ansible_python_interpreter=$(CURDIR)/$(BIN)/python' playbooks/preflight.yml $(ARGS)

## make demo              a cluster of network namespaces on this machine, with one bad part, diagnosed; needs root, cleans up (DEMO_FAULT=mtu, path, ...)
demo: as-root setup-run
	@python tests/tools/demo.py --fault $(DEMO_FAULT) $(ARGS)

## make generated         generate files from the core and the modules: pages of docs, alert rules, dashboards, routing
generated: setup-run
	@$(MAKE) -C src/docs
	@$(MAKE) -C src/meta
	@$(MAKE) -C src/monitoring
	@$(MAKE) -C src/grafana

## make test              the tests that a change must pass, in at most 15 minutes
test: setup
	@python tests/tools/gates.py $(GATES) $(subst $(space),$(comma),$(GATES_ASIDE))

## make test-full         all tests
test-full: setup
	@python tests/tools/gates.py $(GATES_FULL) $(subst $(space),$(comma),$(GATES_ASIDE_FULL))

##   make test-unit         pure functions
test-unit: setup
	$(PYTEST) -n 2 --dist loadfile tests/unit

##   make test-component    checks on stand-in hardware, modules, the agent: real programs, no playbook
test-component: setup
	$(PYTEST) -n 4 --dist worksteal -m "not full" tests/component

##   make component         all of tests/component, with what is too long for `make test`
component: setup
	$(PYTEST) -n 4 --dist worksteal tests/component

##   make test-smoke        some plays, and the agent on a real Kubernetes
test-smoke: setup
	$(PYTEST) -n 3 --dist loadfile -m smoke tests/full $(addprefix --ignore=,$(MESH_TESTS))

##   make smoke-mesh        a mesh of network namespaces: a fault over SSH, and a run that was killed; needs root
smoke-mesh: setup
	$(PYTEST) -m smoke $(MESH_TESTS)

##   make plays             playbooks, roles, callbacks and pages as users run them
plays: setup
	$(PYTEST) -n 4 --dist loadfile tests/full $(addprefix --ignore=,$(OTHER_TESTS) $(MESH_TESTS) $(KUBERNETES_TESTS) $(QUEUE_TESTS))

##   make kubernetes        the agent, its role and its marks on a real Kubernetes; builds one (once, some minutes), needs root
kubernetes: setup
	$(PYTEST) -n 3 --dist loadfile $(KUBERNETES_TESTS)

##   make queue             Kueue and AppWrapper on a real Kubernetes; builds them (once, some fifteen minutes), needs root
queue: setup
	$(PYTEST) -n 2 --dist loadfile $(QUEUE_TESTS)

##   make mesh              networks of namespaces on this machine, with every kind of fault; needs root
mesh: setup
	$(PYTEST) -n 2 --dist loadgroup $(MESH_TESTS)

##   make matrix            ansible-core 2.18 to the newest, hosts from Python 3.8
matrix: setup
	$(PYTEST) tests/full/test_matrix.py

##   make artifact          the built collection works with only meta, plugins, roles and playbooks; the first hour of a new user
artifact: setup
	$(PYTEST) tests/full/test_artifact.py tests/full/test_newcomer.py

##   make sanity            ansible-test sanity, without ignore files
sanity: setup
	tests/tools/sanity.sh

##   make lint              ansible-lint (production), ruff, mypy
lint: setup
	ruff format --check --quiet .
	ruff check .
	mypy plugins/module_utils/_health
	mypy plugins/plugin_utils
	cd src/agent && MYPYPATH=../../plugins/module_utils mypy --config-file ../../pyproject.toml --python-version 3.11 autopilot_agent pin.py
	ansible-lint --offline --profile production

##   make docs              documentation and changelog lint; the documentation site, in .build/site/html
docs: setup
	cd "$$(tests/tools/tree.sh .build/docs)" && antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs self .
	antsibull-changelog lint
	python src/docs/site.py .build/site

##   make import            galaxy-importer's checks on the built artifact
import: setup
	tests/tools/import.sh

##   make molecule          the role on stand-in nodes: converge, idempotence; the preflight on a cluster of namespaces, as root
molecule: setup
	tests/tools/molecule.sh

## make accuracy          run the checks on every scenario of tests/accuracy and print their findings (ARGS='--only xid')
accuracy: setup
	@python tests/tools/accuracy.py $(ARGS)

## make hardware          on a machine with a GPU: every GPU check for real, compared with NVIDIA's tools; a page to send back
hardware: setup-run
	@python tests/hardware/hardware.py $(ARGS)

## make dist              the artifact, in dist/
dist: setup-run
	ansible-galaxy collection build --force --output-path dist .

## make clean             remove what was built; .venv and the run documents in reports stay
clean:
	rm -rf .build dist tests/output .ruff_cache .mypy_cache .hypothesis .ansible
	find plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +
