# `make demo` and `make test` need Python 3.11 or newer with pip, and Debian's Mesa libraries; .ci/check_system.py
# names what is missing. Everything is installed into .venv, at the versions in constraints/; RoboCasa and Meta-World,
# which cannot share an environment with LIBERO, into .venv-robocasa, .venv-metaworld and .venv-maniskill.

PYTHON ?= python3# makes .venv, where there is none
VENV := .venv
BIN := $(VENV)/bin
PIP := .ci/heartbeat $(BIN)/python -m pip -qq --disable-pip-version-check
CONSTRAINTS := $(wildcard constraints/*.txt)

ROBOCASA := .venv-robocasa
ROBOCASA_PIP := .ci/heartbeat $(ROBOCASA)/bin/python -m pip -qq --disable-pip-version-check
METAWORLD := .venv-metaworld
METAWORLD_PIP := .ci/heartbeat $(METAWORLD)/bin/python -m pip -qq --disable-pip-version-check
MANISKILL := .venv-maniskill
MANISKILL_PIP := .ci/heartbeat $(MANISKILL)/bin/python -m pip -qq --disable-pip-version-check

LEARNED := .venv-learned
LEARNED_PIP := .ci/heartbeat $(LEARNED)/bin/python -m pip -qq --disable-pip-version-check

# An environment that is half made, moved here from elsewhere or without its interpreter is made anew.
USABLE := grep -qsF '$(CURDIR)/$(BIN)/python' $(BIN)/pip && $(BIN)/python -c ''
$(shell { $(USABLE); } 2>/dev/null || rm -f $(VENV)/.*-stamp)
ROBOCASA_USABLE := grep -qsF '$(CURDIR)/$(ROBOCASA)/bin/python' $(ROBOCASA)/bin/pip && $(ROBOCASA)/bin/python -c ''
$(shell { $(ROBOCASA_USABLE); } 2>/dev/null || rm -f $(ROBOCASA)/.stamp)
METAWORLD_USABLE := grep -qsF '$(CURDIR)/$(METAWORLD)/bin/python' $(METAWORLD)/bin/pip && $(METAWORLD)/bin/python -c ''
$(shell { $(METAWORLD_USABLE); } 2>/dev/null || rm -f $(METAWORLD)/.stamp)
MANISKILL_USABLE := grep -qsF '$(CURDIR)/$(MANISKILL)/bin/python' $(MANISKILL)/bin/pip && $(MANISKILL)/bin/python -c ''
$(shell { $(MANISKILL_USABLE); } 2>/dev/null || rm -f $(MANISKILL)/.stamp)
LEARNED_USABLE := grep -qsF '$(CURDIR)/$(LEARNED)/bin/python' $(LEARNED)/bin/pip && $(LEARNED)/bin/python -c ''
$(shell { $(LEARNED_USABLE); } 2>/dev/null || rm -f $(LEARNED)/.stamp)

# Where a container sets it, every process of the tests would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: check $(VENV)/.libero-stamp ## roll out two built-in policies on real LIBERO, judge them, write a report
	@rm -rf runs/demo
	$(BIN)/safevla eval --host libero --suite libero-object --suite libero-spatial --task 0,2,4 --episodes 2 \
	    --policy scripted:careful --policy scripted:hasty --out runs/demo

.PHONY: robocasa
robocasa: $(ROBOCASA)/.stamp ## install RoboCasa into an environment of its own
	@echo "RoboCasa is in $(ROBOCASA). Next: its assets, about 10 GB, unless SAFEVLA_ROBOCASA_ASSETS names a folder of them:"
	@echo "  $(ROBOCASA)/bin/python -m robocasa.scripts.download_kitchen_assets --type all"
	@echo "then $(ROBOCASA)/bin/safevla eval --host robocasa --suite robocasa-365 ...   (docs/howto/robocasa.md)"

.PHONY: test-robocasa
test-robocasa: $(ROBOCASA)/.stamp ## run the tests of the hosts robocasa and robosuite, in their environment
	$(ROBOCASA)/bin/python -m pytest -n auto --dist loadscope -m robocasa tests/hosts/robocasa tests/hosts/robosuite tests/hosts/mujoco tests/hosts/test_abilities.py tests/tasks/test_identity.py

.PHONY: metaworld
metaworld: $(METAWORLD)/.stamp ## install Meta-World into an environment of its own
	@echo "Meta-World is in $(METAWORLD). Next:"
	@echo "  $(METAWORLD)/bin/safevla eval --host metaworld --suite mt10 --policy metaworld:expert --episodes 1 --out runs/mt10   (docs/howto/metaworld.md)"

.PHONY: test-metaworld
test-metaworld: $(METAWORLD)/.stamp ## run the tests of the host metaworld, in its environment
	$(METAWORLD)/bin/python -m pytest -n auto --dist loadscope -m metaworld tests/hosts/metaworld tests/hosts/test_abilities.py tests/tasks/test_identity.py

.PHONY: maniskill
maniskill: $(MANISKILL)/.stamp ## install ManiSkill into an environment of its own
	@echo "ManiSkill is in $(MANISKILL). Next:"
	@echo "  $(MANISKILL)/bin/safevla eval --host maniskill --suite maniskill --policy noop --episodes 1 --out runs/maniskill   (docs/howto/maniskill.md)"

.PHONY: test-maniskill
test-maniskill: $(MANISKILL)/.stamp ## run the tests of the host maniskill, in its environment
	$(MANISKILL)/bin/python -m pytest -m maniskill tests/hosts/maniskill tests/hosts/test_abilities.py tests/tasks/test_identity.py

.PHONY: learned
learned: $(LEARNED)/.stamp ## record, train, evaluate and compare four small policies on LIBERO (about 90 minutes); goes on where it stopped
	$(LEARNED)/bin/python -W ignore -m learned.run --out runs/learned

.PHONY: test
test: check $(VENV)/.dev-stamp ## run the test suite
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not long"

.PHONY: test-core
test-core: $(VENV)/.tools-stamp ## run the tests that need no simulator
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not long and not libero"

.PHONY: test-long
test-long: check $(VENV)/.dev-stamp ## run the long tests: fuzzing, fault matrices, more of LIBERO; and laws with more examples
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "long or hypothesis" \
	    --hypothesis-profile=thorough

.PHONY: test-recorder
test-recorder: $(VENV)/.dev-stamp ## run the tests of safevla-recorder under every Python from 3.8 on that is here (minutes)
	.ci/test_recorder --libero

.PHONY: test-recorder-core
test-recorder-core: ## the same without LIBERO
	.ci/test_recorder

.PHONY: mutate
mutate: $(VENV)/.dev-stamp ## change single places of the code and list what each folder's own tests miss (hours; SEED=2 PER=15)
	$(BIN)/python .ci/mutate.py --seed $(or $(SEED),1) --per-folder $(or $(PER),15)

.PHONY: measure
measure: check $(VENV)/.libero-stamp ## measure the built-in policies on 40 tasks (hours), write docs/evidence/measured.md; KEEP=--keep goes on
	nice -n 5 $(BIN)/python -W ignore docs/tools/measure.py $(KEEP)

.PHONY: drift
drift: check $(VENV)/.libero-stamp ## measure LIBERO under several MuJoCos (hours), write docs/evidence/simulator-versions.md; goes on where it stopped
	nice -n 5 $(BIN)/python -W ignore docs/tools/drift.py

.PHONY: docs
docs: $(VENV)/.dev-stamp ## build the documentation site, build/docs/index.html; warnings are errors
	@echo "Building the site into build/docs: 1 to 5 minutes"
	@.ci/heartbeat $(BIN)/python -m sphinx -W --keep-going -q -d build/docs-doctrees docs build/docs
	@echo "open build/docs/index.html"

.PHONY: docs-links
docs-links: $(VENV)/.dev-stamp ## follow the links of the documentation to other sites
	@$(BIN)/python -m sphinx -q -b linkcheck -d build/docs-doctrees docs build/links

.PHONY: docs-full
docs-full: check $(VENV)/.dev-stamp ## make again what the site stores of LIBERO: a tutorial's outputs, the gallery (minutes); then build it
	$(BIN)/python docs/tools/run_libero_cells.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/tools/record_gallery.py
	@$(MAKE) --no-print-directory docs

.PHONY: golden
golden: $(VENV)/.dev-stamp ## rewrite the golden files: what commands print and write over fixed archives
	PYTHONPATH=tests $(BIN)/python tests/golden_commands.py

.PHONY: lint
lint: $(VENV)/.tools-stamp ## check style, formatting, and the words of added lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/check_words.py
	$(BIN)/zizmor --offline --no-progress -q .github action.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-actions action.yml

.PHONY: types
types: $(VENV)/.tools-stamp ## check types, strictly
	$(BIN)/mypy

.PHONY: imports
imports: $(VENV)/.tools-stamp ## check that imports point one way
	$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.dev-stamp ## ratios of the judge's speed, to docs/evidence/benchmarks.md; what recording adds to LIBERO, minutes
	$(BIN)/python benchmarks/speed.py --write docs/evidence/benchmarks.md
	$(BIN)/python benchmarks/recording.py
	$(BIN)/python benchmarks/client_latency.py

.PHONY: hashes
hashes: $(VENV)/.dev-stamp ## write constraints/hashed/*.txt, by which images and the action install; asks the index
	@for name in core libero robocasa; do \
		extra=$$([ $$name = core ] || echo "--extra $$name"); \
		grep '^hatchling==' constraints/dev.txt | $(BIN)/uv pip compile -q pyproject.toml - $$extra -c constraints/$$name.txt \
			--generate-hashes --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
			-o constraints/hashed/$$name.txt || exit 1; \
	done

.PHONY: wheel
wheel: $(VENV)/.dev-stamp ## build the wheel, and the recorder's own, dist/*.whl
	@rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist recorder
	$(BIN)/python -m build --wheel --no-isolation

.PHONY: release
release: $(VENV)/.dev-stamp ## write VERSION and today into changelog and citation, build, check under every Python here; no upload
	$(BIN)/python .ci/release.py $(VERSION)

.PHONY: image
image: ## build TARGET (core, libero, robocasa, develop) of the Dockerfile with buildah, podman or docker, and try it
	.ci/build_image $(or $(TARGET),core)

.PHONY: clean
clean: ## remove the environments, builds and caches; runs/ stays
	rm -rf $(VENV) $(ROBOCASA) $(METAWORLD) $(MANISKILL) $(LEARNED) build dist recorder/dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

.PHONY: check
check: ## name what this machine lacks
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found (Debian: python3 python3-venv); or make PYTHON=..." >&2; exit 2; }
	@if { $(USABLE); } 2>/dev/null; then $(BIN)/python .ci/check_system.py; else $(PYTHON) .ci/check_system.py; fi

# The build tools are installed first and used from .venv, so that nothing outside constraints/ takes part and a
# renewed stamp needs no network.
$(VENV)/.base-stamp: $(CONSTRAINTS)
	@{ $(USABLE); } 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -c constraints/dev.txt hatchling setuptools wheel
	@touch $@

$(VENV)/.libero-stamp: $(VENV)/.base-stamp pyproject.toml
	@echo "Installing safevla-bench with LIBERO into $(VENV): about 900 MB to fetch, 2.5 GB on disk"
	@$(PIP) install --no-build-isolation -c constraints/libero.txt -e '.[libero]'
	@touch $@

$(VENV)/.tools-stamp: $(VENV)/.base-stamp pyproject.toml
	@echo "Installing safevla-bench and the tools for tests and documentation into $(VENV)"
	@$(PIP) install -c constraints/dev.txt pip # which knows groups
	@$(PIP) install --no-build-isolation -c constraints/dev.txt -e . --group dev --group docs
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.libero-stamp $(VENV)/.tools-stamp
	@$(PIP) install --no-build-isolation -c constraints/dev.txt -e '.[libero]' --group dev --group docs
	@touch $@

$(ROBOCASA)/.stamp: $(CONSTRAINTS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found (Debian: python3 python3-venv); or make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) .ci/check_system.py --robocasa
	@{ $(ROBOCASA_USABLE); } 2>/dev/null || $(PYTHON) -m venv --clear $(ROBOCASA)
	@echo "Installing safevla-bench with RoboCasa into $(ROBOCASA): about 400 MB to fetch, 1.2 GB on disk"
	@$(ROBOCASA_PIP) install -c constraints/robocasa.txt hatchling setuptools wheel
	@$(ROBOCASA_PIP) install --no-build-isolation -c constraints/robocasa.txt -e '.[robocasa,video]' pytest pytest-xdist hypothesis
	@touch $@

$(METAWORLD)/.stamp: $(CONSTRAINTS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found (Debian: python3 python3-venv); or make PYTHON=..." >&2; exit 2; }
	@{ $(METAWORLD_USABLE); } 2>/dev/null || $(PYTHON) -m venv --clear $(METAWORLD)
	@echo "Installing safevla-bench with Meta-World into $(METAWORLD): about 200 MB to fetch, 700 MB on disk"
	@$(METAWORLD_PIP) install -c constraints/metaworld.txt hatchling setuptools wheel
	@$(METAWORLD_PIP) install --no-build-isolation -c constraints/metaworld.txt -e '.[metaworld,video]' pytest pytest-xdist hypothesis
	@touch $@

$(MANISKILL)/.stamp: $(CONSTRAINTS) pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found (Debian: python3 python3-venv); or make PYTHON=..." >&2; exit 2; }
	@{ $(MANISKILL_USABLE); } 2>/dev/null || $(PYTHON) -m venv --clear $(MANISKILL)
	@echo "Installing safevla-bench with ManiSkill and PyTorch into $(MANISKILL): about 3 GB to fetch, 6 GB on disk"
	@$(MANISKILL_PIP) install -c constraints/maniskill.txt hatchling setuptools wheel
	@$(MANISKILL_PIP) install --no-build-isolation -c constraints/maniskill.txt -e '.[maniskill,video]' pytest hypothesis
	@touch $@

# PyTorch alone is installed here: everything else is that of .venv, which it sees.
$(LEARNED)/.stamp: $(VENV)/.libero-stamp examples/learned/pyproject.toml examples/learned/constraints.txt
	@$(PYTHON) .ci/check_system.py
	@{ $(LEARNED_USABLE); } 2>/dev/null || $(PYTHON) -m venv --clear $(LEARNED)
	@$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
	    > "$$($(LEARNED)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth"
	@echo "Installing PyTorch into $(LEARNED)"
	@$(LEARNED_PIP) install --no-build-isolation -c constraints/libero.txt -c examples/learned/constraints.txt -e examples/learned
	@touch $@
