# Cadastre. "make help" explains every target.

GO ?= go
BIN := bin
PROGRAMS := cadastre-agent cadastre-cni cadastre-operator cadastre
# The modules of clouds below providers/, each with a program of operator and agent.
PROVIDERS ?= $(patsubst providers/%/go.mod,%,$(wildcard providers/*/go.mod))
# Every module beside the main one.
MODULES := $(patsubst %/go.mod,%,$(wildcard charts/test/go.mod dist/release/go.mod ligato/go.mod providers/*/go.mod test/system/monitoring/objects/go.mod test/peers/*/go.mod vpp/go.mod))
BENCH ?= .cache/bench
# The folder of what make chaos leaves.
ATTACKS ?= .cache/chaos
# Repetitions of the tests with random input: CADASTRE_TEST_EFFORT, see internal/testkit/effort.
EFFORT ?= 1
LINT_VERSION := v2.15.0
LINT := .cache/bin/golangci-lint-$(LINT_VERSION)
.DEFAULT_GOAL := help
.PHONY: help build dist images release run demo page test check generate bench chaos ci nightly clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# The groups of programs that build and dist make: main, a cloud, vpp.
BUILT = $(if $(ONLY),$(ONLY),main)
# $(call programs,FLAGS,FOLDER) builds the programs of the groups but main, each in its module.
programs = @set -e; for g in $(filter-out main,$(BUILT)); do d=$$g; [ -d $$d ] || d=providers/$$g; echo "build the programs of $$d"; \
	(cd $$d && CGO_ENABLED=0 $(GO) build -trimpath $1 -o $(CURDIR)/$2/ ./cmd/...); done

build: ## build the programs into bin/; ONLY="main openstack ec2 vpp": also those with a cloud or VPP (the first build takes minutes)
	@mkdir -p $(BIN)
	$(if $(filter main,$(BUILT)),CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ $(addprefix ./cmd/,$(PROGRAMS)) && ln -sf cadastre $(BIN)/kubectl-cadastre)
	$(call programs,,$(BIN))

dist: ## what images are made of, into bin/dist/: static programs without symbols, and Docker's managed plugin; ONLY as for build
	@mkdir -p $(BIN)/dist/plugin/rootfs/data $(BIN)/dist/plugin/rootfs/run/host
	@touch $(BIN)/dist/plugin/rootfs/run/docker.sock
	$(if $(filter main,$(BUILT)),CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(BIN)/dist/ $(addprefix ./cmd/,$(PROGRAMS)) ./docker/cni-installer)
	$(if $(filter main,$(BUILT)),CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(BIN)/dist/plugin/rootfs/ ./cmd/cadastre-docker-plugin)
	$(if $(filter main,$(BUILT)),@ln -sf cadastre $(BIN)/dist/kubectl-cadastre && cp docker/plugin/config.json $(BIN)/dist/plugin/)
	$(call programs,-ldflags="-s -w",$(BIN)/dist)

# The version of images and releases without "v"; empty: the tag of the commit, else the next version.
VERSION ?=
# Of images and releases: the architectures, and the groups of programs: main, a cloud, vpp; empty: all.
ARCH ?= amd64 arm64
ONLY ?=
# The address of the builder in the provenance of a release; empty: that of a release by hand.
BUILDER ?=
MAKE_RELEASE = cd dist/release && $(GO) run . --version "$(VERSION)" --arch "$(ARCH)" --groups "$(ONLY)" $(if $(BUILDER),--builder "$(BUILDER)") --out $(CURDIR)/$(BIN)

images: ## the container images into bin/images, without an engine; ARCH=amd64 ONLY=main: fewer (docs/releases.md)
	@$(MAKE_RELEASE)/images images

release: ## archives, images, Debian packages, checksums, SBOM and provenance into bin/release; VERSION=1.2.0, else from the tag
	@$(MAKE_RELEASE)/release all

run: ## start an agent in the foreground, in ./.run, and say what to try next
	@$(GO) run ./test/system/demo run

demo: ## two network namespaces get addresses, the agent is killed, nothing is lost; STAY=1 keeps its map open in a browser; CLUSTER=1: three nodes over a real etcd, which is wiped
	@$(if $(STAY),CADASTRE_DEMO_STAY=1) $(GO) run $(if $(CLUSTER),./test/system/democluster,./test/system/demo)

page: ## format and lint web/src, build the page's bundle web/dist from web/src with npm, and fail if the committed one differs
	@if ! command -v npm >/dev/null; then echo "NOT RUN: npm is missing: web/dist is used as it is committed"; exit 0; fi; \
	set -e; cd web; npm ci --no-audit --no-fund --loglevel=error || { echo "NOT RUN: npm ci failed: web/dist is used as it is committed"; exit 0; }; \
	cp -r dist dist.committed; trap 'rm -rf dist.committed' EXIT; \
	npm run --silent check; npm run --silent build; \
	diff -rq dist.committed dist || { echo "web/dist was not what web/src makes: commit it as it is now"; exit 1; }

# The tests of these start our programs, or make network namespaces. They wait more than they compute.
PROCESSES := /test/(chaos|acceptance/(commands|docs|migration|scenarios)|system/(cni|network|reclaim))$$|/southbound/linux$$|/dist/systemd$$|/k8s$$
test: ## what every change must pass: go vet, gofmt, the tests that need no programs, one ADD, kill -9 and DEL; EFFORT=10 repeats random tests
	$(GO) vet ./...
	@out=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
		if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -vet=off -p 4 -timeout 20m $$($(GO) list ./... | grep -vE '$(PROCESSES)')
	$(GO) test -vet=off -run '^TestSmoke$$' ./test/chaos

check: $(LINT) ## golangci-lint, in the version of this file, and go vet of the other modules: a change of ours may break them
	$(LINT) run --allow-serial-runners ./...
	@set -e; for m in $(MODULES); do echo "go vet in $$m"; (cd $$m && $(GO) vet ./...); done

$(LINT):
	@mkdir -p $(@D)
	@set -e; new=$$(mktemp -d); trap 'rm -r $$new' EXIT; GOBIN=$$new $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION); mv $$new/golangci-lint $@

chaos: EFFORT = 300
chaos: ## attacks on real agents, and simulations, into $(ATTACKS) and docs/reliability.md (hours; EFFORT=10: ten minutes)
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) run ./test/chaos/cmd/reliability -doc docs/reliability.md $(ATTACKS)

bench: ## our benchmarks beside the peers', into $(BENCH), docs/results and the plots
	$(GO) run ./test/peers/cmd/report -doc docs/results/benchmarks.md $(BENCH)
	$(GO) run ./test/peers/pictures docs

# The packages whose tests write the files that they compare.
GENERATES := ./cmd/cadastre ./explain ./k8s ./plugins/contivconf ./test/guards ./test/system/monitoring
generate: ## all that is generated: definitions of Kubernetes objects, the modes of k8s/, pages, plots and drawings of docs/, alerts, golden texts; messages where there is protoc
	$(GO) run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.1 object:headerFile=api/v1alpha1/boilerplate.txt crd paths=./api/v1alpha1 output:crd:dir=k8s/crd
	@if command -v protoc >/dev/null; then set -e; GOBIN=$(CURDIR)/.cache/bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go; \
		PATH="$(CURDIR)/.cache/bin:$$PATH" protoc --go_out=. --go_opt=paths=source_relative api/kv/kv.proto; \
	else echo "NOT RUN: there is no protoc (Debian: protobuf-compiler): api/kv/kv.pb.go stays as it is"; fi
	$(GO) run ./test/peers/pictures docs
	CADASTRE_GENERATE=1 $(GO) test -vet=off -run '^(TestReference|TestScenarios|TestConfigurationPage|TestErrorsPageHasEveryRule|TestImportDiagram|TestModes|TestPage|TestPrometheusRule)$$' $(GENERATES)

# The two lanes of make ci, of targets here and in test/ci/suites.mk: what computes, and what waits and may install
# packages, for which apt-get has one lock.
CI_COMPUTES := check race vpp:EFFORT=10 fuzz demo demo-cluster e2e-kube:E2E_FLAGS=-short e2e-chart e2e-upgrade e2e-ec2
CI_INSTALLS := system ligato e2e-docker e2e-page e2e-release e2e-node e2e-network e2e-metrics providers e2e-openstack
ci: ## what .ci/run does: make test, then the suites in two lanes beside each other, and a table of what ran; SUITE="fuzz vpp": only these; SUITE=help lists them
	@$(if $(filter help,$(SUITE)),$(MAKE) --no-print-directory -f test/ci/suites.mk suites,$(GO) run ./test/ci $(if $(SUITE),-base HEAD -lane "$(SUITE)",\
		-first "test control-plane" -lane "$(CI_COMPUTES)" -lane "$(CI_INSTALLS)"))

NIGHTLY := race:EFFORT=10 providers:EFFORT=10 e2e-kube fuzz:FUZZTIME=300000x chaos mutations release-twice
nightly: ## what takes longer than make ci may: more seeds, all of the Kubernetes tests, long fuzzing and chaos, mutations (hours)
	$(GO) run ./test/ci -base HEAD -limit 24h -lane "$(NIGHTLY)"

clean: ## remove what the other targets have made
	rm -rf $(BIN) .run .cache
