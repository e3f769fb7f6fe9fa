# iokeel: make help
PYTHON ?= $(shell test -x /usr/bin/python3 && /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo /usr/bin/python3 || echo python3)
BIN := .venv/bin
RUN := PYTHONPATH=$(CURDIR)/agent:$(CURDIR) $(BIN)/python -m
# With the law compiled, as the packages have it
COMPILED := PYTHONPATH=$(CURDIR)/build/law:$(CURDIR)/agent:$(CURDIR) $(BIN)/python -m

# So that a module is compiled once, and not by each process: `make test` starts a thousand.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup law prerequisites packages packages-agent packages-archive packages-qemu packages-page packages-rpm page node demo demo-verdicts chaos field hostile fleet test test-unit test-rest test-bench test-all house fuzz molecule test-page test-deploy test-openstack test-qemu test-exact check tree metrics-doc api-doc dashboard policy-schema role-doc clean bench bench-real bench-full bench-agent bench-backstop bench-calibrate bench-disksim bench-feedback bench-fleet bench-io-latency bench-qemu bench-retune bench-sim
.DELETE_ON_ERROR:

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# An earlier version's compiled law beside the sources would be run in their place.
setup: prerequisites .venv/ready ## Install what is missing, and the command into .venv
	@find agent/src -name '*.so' -delete

prerequisites:
	@agent/prerequisites

.venv/ready: agent/requirements.lock agent/pyproject.toml | prerequisites
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r agent/requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable agent
	@touch $@

law: setup # Compile the control law into build/law, which halves `decide`'s own CPU time
	@$(RUN) testing.compiled_law

demo: setup ## Watch iokeel hold three real guests to their policies (MODE=exact: on the patched QEMU)
	$(RUN) benchmarks.demo.run

demo-verdicts: setup ## Show that the demo's verdict is about iokeel, not the machine (RUNS=20; an hour)
	$(RUN) benchmarks.demo.verdicts

chaos: setup ## Break a host at random, and watch limits hold (SECONDS=120 SEED= MODE=exact BROKEN=1)
	$(RUN) benchmarks.chaos.run

field: setup ## Compare random ordinary hosts without and with iokeel (SECONDS=600 SEED= MODE=trixie|exact BROKEN=jobs ADD=1)
	$(RUN) benchmarks.field.run

hostile: setup ## Run QEMUs that lie, flood and hang beside honest ones (SECONDS=120 SEED=)
	$(RUN) benchmarks.hostile.run

fleet: setup ## Break a fleet of four hosts at random, and watch its budgets hold (SECONDS=300 SEED= BROKEN=1)
	$(RUN) benchmarks.fleet.run

# A test that fails is run once more, and named either way: two cores run a thousand real programs.
TESTS := cd agent && ../$(BIN)/python -m pytest --numprocesses 9 --max-worker-restart 0 \
	--reruns 1 --rerun-show-tracebacks
TEST_COMPILED := $(RUN) testing.compiled_law && cd agent && \
	PYTHONPATH=$(CURDIR)/build/law ../$(BIN)/python -m pytest --numprocesses auto -m "not thorough" tests/unit/core
FOLDERS := tests/system tests/lab tests/edges tests/monitoring tests/fuzz tests/deploy tests/unit

test-unit: setup ## Test pure functions, and the law on simulated hosts (1 minute)
	cd agent && ../$(BIN)/python -m pytest --numprocesses auto -m "not thorough" tests/unit

test: setup ## Test what matters most, with real libvirt, QEMU, fio and etcd (8 minutes)
	$(TESTS) -m "not thorough" $(FOLDERS)

# The law's own tests are run with the law compiled, too, in the time that the others leave.
test-rest: setup # What .ci/run runs beyond test
	@agent/prerequisites rpm rpmlint
	@mkdir -p build; (chrt --idle 0 sh -c '$(TEST_COMPILED)' >build/test-compiled.log 2>&1) & compiled=$$!; \
	($(TESTS) -m "thorough and not booted and not bench" $(FOLDERS)); rest=$$?; \
	wait $$compiled; compiled=$$?; cat build/test-compiled.log; exit $$((rest ? rest : compiled))

test-bench: setup ## Test the benchmarks and the simulated disks themselves (15 minutes)
	$(TESTS) -m "bench" tests/lab tests/system/test_field.py ../benchmarks/disksim/tests

test-all: test test-rest test-bench ## Run all tests but test-page, test-deploy, test-openstack, test-qemu, test-exact, molecule (40 minutes)

fuzz: setup ## Fuzz whatever parses what others wrote (TARGET= RUNS= SECONDS=; a minute for each)
	$(RUN) tests.fuzz $(TARGET) $(if $(RUNS),--runs $(RUNS)) \
		$(if $(SECONDS)$(RUNS),$(if $(SECONDS),--seconds $(SECONDS)),--seconds 60)

node: # Node.js, from wherever it comes; only the page is built by it
	@command -v npm >/dev/null || agent/prerequisites nodejs npm

build/page/index.html: $(shell find agent/cockpit -path agent/cockpit/node_modules -prune -o -type f -print) | node
	cd agent/cockpit && npm ci --silent && npm run --silent check && npm run --silent build -- ../../build/page

page: build/page/index.html ## Build the page for Cockpit into build/page

packages-page: setup page ## Build the page's Debian package into build/packages
	$(RUN) testing.packages.page

test-page: setup page ## Test the page: real Cockpit, browser, libvirt, guests (pictures: build/page-pictures)
	agent/prerequisites chromium cockpit-ws cockpit-bridge cockpit-system
	cd agent && ../$(BIN)/python -m pytest tests/page

test-deploy: setup page ## Test packages and Ansible's role on booted machines (DISTRIBUTION=trixie: one; an hour each)
	cd agent && ../$(BIN)/python -m pytest --numprocesses 2 --durations=15 -m booted \
		tests/deploy tests/system/test_virtqemud.py \
		$(if $(filter-out bookworm trixie,$(DISTRIBUTION)),$(error DISTRIBUTION is bookworm or trixie)) \
		$(if $(DISTRIBUTION),-k "not $(filter-out $(DISTRIBUTION),bookworm trixie)")

test-openstack: setup ## Test the agent beside a real OpenStack and its servers (8 minutes; half an hour at first)
	cd agent && ../$(BIN)/python -m pytest -s tests/openstack

molecule: setup ## Test Ansible's role by Molecule, on booted Debian 12 and 13 (DO=converge: one step)
	cd playbooks/roles/iokeel && PATH="$(CURDIR)/$(BIN):$$PATH" \
		MOLECULE_EPHEMERAL_DIRECTORY="$(CURDIR)/build/molecule" molecule $(or $(DO),test)

test-qemu: setup ## Build QEMU 10.0 and 10.2 with the patches, and test them and the agent at a QMP socket
	qemu-patches/test
	qemu-patches/test --version 10.2
	cd agent && ../$(BIN)/python -m pytest tests/exact/test_qmp_exact.py

test-exact: setup ## Test the agent with libvirt, real guests and the patched QEMU
	cd agent && ../$(BIN)/python -m pytest tests/exact

check: setup ## Check style and types
	$(BIN)/ruff check --config agent/pyproject.toml agent benchmarks playbooks libvirt-hooks/qemu.d/50-iokeel
	$(BIN)/ruff format --check --config agent/pyproject.toml agent benchmarks playbooks libvirt-hooks/qemu.d/50-iokeel
	$(BIN)/mypy --config-file agent/pyproject.toml agent/src agent/tests agent/testing benchmarks playbooks agent/debian
	$(BIN)/mypy --config-file agent/pyproject.toml libvirt-hooks/qemu.d/50-iokeel
	shellcheck agent/prerequisites .ci/run $$(git grep -lE '^#!.*\b(ba)?sh' -- agent/archive agent/debian agent/testing benchmarks qemu-patches)

tree: setup ## Print the agent's modules, each with the first line of its docstring
	@$(RUN) testing.tree

house: setup ## Count the law's constants, rules and words, and the program's files and lines
	$(RUN) testing.house

metrics-doc: setup ## Write docs/metrics.md anew, from the code
	$(RUN) testing.metrics_doc >docs/metrics.md

api-doc: setup ## Write docs/api.md and docs/openapi.json anew, from the code
	$(RUN) testing.api_doc

dashboard: setup ## Write playbooks/monitoring/dashboard.json anew, from panels.py
	$(RUN) playbooks.monitoring.dashboard >playbooks/monitoring/dashboard.json

policy-schema: setup ## Write libvirt-hooks/policy.rng anew, from the attributes of a policy
	$(RUN) testing.policy_schema

role-doc: setup ## Write playbooks/roles/iokeel/README.md anew, from the role's argument_specs
	cd agent && ../$(BIN)/python -m testing.playbooks.role_doc

bench: setup ## Compare controllers in virtual time, and with the committed result (10 minutes)
	benchmarks/iokeel-bench run --virtual
	benchmarks/iokeel-bench compare benchmarks/results build/bench

bench-real: setup ## Compare some controllers on simulated disks in real time, and with the committed results (20 minutes)
	benchmarks/iokeel-bench run $(if $(FRESH),--fresh)
	-benchmarks/iokeel-bench compare benchmarks/results build/bench

bench-full: setup ## Run all scenarios under all controllers, then report (12 hours; goes on where it was)
	benchmarks/iokeel-bench run --full $(if $(FRESH),--fresh)
	benchmarks/iokeel-bench report --results build/bench --docs build/bench

bench-agent: law ## Measure what the agent costs for 10 to 5,000 drives
	$(COMPILED) benchmarks.agent_cost.run

bench-backstop: setup ## Measure io.max under a VM, in a guest with cgroup v2
	$(RUN) benchmarks.backstop.run

bench-feedback: law ## Measure what each constant of the capacity's feedback costs and gains
	$(COMPILED) benchmarks.law.capacity_feedback

bench-fleet: setup ## Measure shares and latency of hosts on one array, as PARDA did (12 minutes)
	$(RUN) benchmarks.fleet.parda

bench-io-latency: setup ## Measure io.max with io.latency beside it, in a kernel built for that (15 minutes)
	$(RUN) benchmarks.backstop.run --io-latency

bench-retune: law ## Measure what each constant of the retune law costs and gains
	$(COMPILED) benchmarks.law.retune_constants

bench-disksim: setup ## Measure the simulated disks against published figures (20 minutes)
	$(RUN) benchmarks.disks.run --readme benchmarks/disksim/README.md

bench-calibrate: setup ## Calibrate the simulated disks, and compare with what they are (45 minutes)
	$(RUN) benchmarks.calibrate.run

bench-qemu: setup ## Measure the QEMU patches against stock QEMU
	$(RUN) benchmarks.qemu.run
	$(RUN) benchmarks.qemu.run --table benchmarks/results/qemu.json --readme qemu-patches/README.md

bench-sim: law ## Run the law on random hosts, and on a day of 100 drives and an hour of 5,000 (hours)
	$(COMPILED) benchmarks.law.random_hosts

packages: packages-agent packages-archive packages-qemu ## Build all Debian packages into build/packages (half an hour)

packages-agent: setup ## Build the agent's Debian packages (DISTRIBUTION=bookworm: one; 2 minutes)
	$(RUN) testing.packages.agent $(DISTRIBUTION)

packages-archive: setup ## Build one archive for any Linux with systemd and Python 3.11 (3 minutes)
	$(RUN) testing.packages.archive

packages-rpm: setup ## Build rpm packages of that archive, for EL 9 and 10 (4 minutes)
	agent/prerequisites rpm
	$(RUN) testing.packages.rpm

packages-qemu: setup ## Build Debian 13's QEMU packages with the patches (half an hour)
	$(RUN) testing.packages.qemu

clean: ## Remove what was built here; the cache folder stays
	rm -rf .venv build
