# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# make preflight    set up what is needed and check this very host
# make test         everything that has to hold before a change lands
# make help         the rest

BIN := .venv/bin
# The tools call each other by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTEST = python -m pytest --junit-xml=.build/reports/$@.xml
GATES := test-unit test-integration matrix artifact sanity lint docs import molecule
# Arguments for ansible-playbook, for example ARGS='--check' or ARGS='-e expected_gpus=8'.
ARGS ?=

.PHONY: help setup setup-run preflight test dist clean $(GATES)

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

## make setup             virtualenv .venv with ansible-core and all tools, the collection linked into it
setup:
	@tests/tools/setup.sh all

setup-run:
	@tests/tools/setup.sh run

## make preflight         check this very host (installs only what the playbook needs)
preflight: setup-run
	@ansible-playbook -i localhost, -c local -e 'ansible_python_interpreter=$(CURDIR)/$(BIN)/python' playbooks/preflight.yml $(ARGS)

## make test              all of the following, and a list of what was skipped
test: setup
	@python tests/tools/gates.py $(GATES)

##   make test-unit         pure functions
test-unit: setup
	$(PYTEST) tests/unit

##   make test-integration  real modules and playbooks against stand-in hardware
test-integration: setup
	$(PYTEST) -n 4 tests/integration --ignore=tests/integration/test_matrix.py --ignore=tests/integration/test_artifact.py

##   make matrix            ansible-core 2.18 to the newest, hosts from Python 3.8
matrix: setup
	$(PYTEST) tests/integration/test_matrix.py

##   make artifact          the built collection works with only meta, plugins, roles and playbooks
artifact: setup
	$(PYTEST) tests/integration/test_artifact.py

##   make sanity            ansible-test sanity, without ignore files
sanity: setup
	tests/tools/sanity.sh

##   make lint              ansible-lint (production), ruff, mypy
lint: setup
	ruff check .
	mypy plugins/module_utils/_health
	ansible-lint --offline --profile production

##   make docs              documentation and changelog lint
docs: setup
	cd "$$(tests/tools/tree.sh .build/docs)" && antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs self .
	antsibull-changelog lint

##   make import            galaxy-importer's checks on the built artifact
import: setup
	tests/tools/import.sh

##   make molecule          the role on stand-in nodes: converge, idempotence
molecule: setup
	tests/tools/molecule.sh

## make dist              the artifact, in dist/
dist: setup-run
	ansible-galaxy collection build --force --output-path dist .

## make clean             remove what was built; .venv and the run documents in reports stay
clean:
	rm -rf .build dist tests/output .pytest_cache .ruff_cache .mypy_cache .hypothesis .ansible
	find plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +
