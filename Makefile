# Cadastre. "make help" explains every target.

GO ?= go
BIN := bin
PROGRAMS := cadastre-agent cadastre-cni cadastre-operator cadastre
# The modules of clouds below providers/, each with a program of operator and agent.
PROVIDERS ?= $(patsubst providers/%/go.mod,%,$(wildcard providers/*/go.mod))
# Every module beside the main one.
MODULES := $(patsubst %/go.mod,%,$(wildcard charts/test/go.mod dist/release/go.mod ligato/go.mod providers/*/go.mod test/monitoring/objects/go.mod test/peers/*/go.mod vpp/go.mod))
# Of the tests of one module with a cloud: Neutron and moto take some minutes with EFFORT=1, and an hour with EFFORT=10.
PROVIDERS_TIMEOUT ?= 90m
# Runs of each fuzzer. A time such as 1m works too, but Go now and then takes its end for a failure.
FUZZTIME ?= 3000x
BENCH ?= .cache/bench
# Prometheus and promtool, unpacked: an installed package starts a server.
PROMETHEUS := .cache/prometheus
# The folder of what make chaos leaves.
ATTACKS ?= .cache/chaos
# The two lanes of make ci: what computes, and what waits and may install packages, for which apt-get has one lock.
CI_COMPUTES := check race vpp:EFFORT=10 fuzz demo demo-cluster e2e-kube:E2E_FLAGS=-short e2e-chart e2e-upgrade e2e-ec2
CI_INSTALLS := system ligato e2e-docker e2e-page e2e-release e2e-node e2e-network e2e-metrics providers e2e-openstack
# Repetitions of the tests with random input: CADASTRE_TEST_EFFORT, see internal/testkit/effort.
EFFORT ?= 1
LINT_VERSION := v2.15.0
LINT := .cache/bin/golangci-lint-$(LINT_VERSION)
# The race detector needs a C compiler.
CC_FOUND := $(shell command -v $${CC:-cc} 2>/dev/null || command -v gcc 2>/dev/null)
RACE := $(if $(CC_FOUND),-race,)
# package:fuzzer
FUZZERS := ./ledger/addrspace:FuzzSpace ./plugins/contivconf:FuzzParse ./plugins/podmanager/cni:FuzzParseConfig \
	./plugins/ipam/poolplan:FuzzParse ./plugins/podmanager/cni:FuzzParseArgs ./plugins/restapi:FuzzRelease ./plugins/restapi:FuzzCNIBody ./cmd/cadastre-cni:FuzzAnswer \
	./ipam/ipamapi:FuzzPoolID ./plugins/dockeripam:FuzzHandler

# $(call debian,PROGRAM,PACKAGE) installs Debian's package where the program is missing and root may do so.
debian = @if ! command -v $1 >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	install="apt-get -qq install -y --no-install-recommends $2"; $$install >/dev/null 2>&1 || { apt-get -qq update && $$install >/dev/null; } || \
	echo "apt-get did not install $2"; fi

.DEFAULT_GOAL := help
.PHONY: help build build-providers dist dist-providers providers run demo demo-cluster e2e-docker e2e-kube e2e-node e2e-network e2e-openstack e2e-ec2 page e2e-page ligato vpp test vet vet-modules check unit race fuzz lint chaos bench plots \
	generate ci nightly clean

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

build: ## build the programs into bin/
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ $(addprefix ./cmd/,$(PROGRAMS))
	@ln -sf cadastre $(BIN)/kubectl-cadastre

build-providers: ## build the programs with a cloud into bin/ (the first build takes minutes)
	@mkdir -p $(BIN)
	@set -e; for p in $(PROVIDERS); do echo "build the programs with $$p"; \
		(cd providers/$$p && CGO_ENABLED=0 $(GO) build -trimpath -o $(CURDIR)/$(BIN)/ ./cmd/...); done

dist: ## what images are made of: static programs without symbols, and Docker's managed plugin, into bin/dist/
	@mkdir -p $(BIN)/dist/plugin/rootfs/data $(BIN)/dist/plugin/rootfs/run/host
	@touch $(BIN)/dist/plugin/rootfs/run/docker.sock
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(BIN)/dist/ $(addprefix ./cmd/,$(PROGRAMS)) ./docker/cni-installer
	@ln -sf cadastre $(BIN)/dist/kubectl-cadastre
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(BIN)/dist/plugin/rootfs/ ./cmd/cadastre-docker-plugin
	@cp docker/plugin/config.json $(BIN)/dist/plugin/

dist-providers: ## what the images with a cloud are made of beside those of make dist; PROVIDERS=ec2: of one cloud
	@mkdir -p $(BIN)/dist
	@set -e; for p in $(PROVIDERS); do echo "build the programs with $$p"; \
		(cd providers/$$p && CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(CURDIR)/$(BIN)/dist/ ./cmd/...); done

.PHONY: build-vpp dist-vpp
build-vpp: ## build cadastre-agent-vpp into bin/
	@mkdir -p $(BIN)
	cd vpp && CGO_ENABLED=0 $(GO) build -trimpath -o $(CURDIR)/$(BIN)/ ./cmd/...

dist-vpp: ## what the image of the agent with VPP is made of beside what make dist makes
	@mkdir -p $(BIN)/dist
	cd vpp && CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o $(CURDIR)/$(BIN)/dist/ ./cmd/...

# The version of images and releases without "v"; empty: the tag of the commit, else the next version.
VERSION ?=
# Of images and releases: the architectures, and the groups of programs: main, a cloud, vpp; empty: all.
ARCH ?= amd64 arm64
ONLY ?=
# The address of the builder in the provenance of a release; empty: that of a release by hand.
BUILDER ?=
MAKE_RELEASE = cd dist/release && $(GO) run . --version "$(VERSION)" --arch "$(ARCH)" --groups "$(ONLY)" $(if $(BUILDER),--builder "$(BUILDER)") --out $(CURDIR)/$(BIN)

.PHONY: images release e2e-release release-twice
images: ## the container images into bin/images, without an engine; ARCH=amd64 ONLY=main: fewer (docs/releases.md)
	@$(MAKE_RELEASE)/images images

release: ## archives, images, Debian packages, checksums, SBOM and provenance into bin/release; VERSION=1.2.0, else from the tag
	@$(MAKE_RELEASE)/release all

e2e-release: $(LINT) ## golangci-lint and the tests of the release: a release for this machine, its packages installed (as root)
	cd dist/release && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && $(GO) test -timeout 15m ./...

release-twice: ## a whole release, built twice in different folders with caches of their own, and compared (tens of minutes)
	cd dist/release && CADASTRE_TEST_RELEASE=twice $(GO) test -v -timeout 120m -run TestTwice .

run: ## start an agent in the foreground, in ./.run, and say what to try next
	@$(GO) run ./test/demo run

demo: ## two network namespaces get addresses, the agent is killed, nothing is lost; STAY=1 keeps its map open in a browser
	@$(if $(STAY),CADASTRE_DEMO_STAY=1) $(GO) run ./test/demo

demo-cluster: ## three nodes over a real etcd, which is killed and wiped; no address moves
	@$(GO) run ./test/democluster

e2e-docker: ## Docker's engine with our driver, for real (as root; installs docker.io with apt-get where there is none)
	@$(GO) run ./test/e2e/docker

.PHONY: control-plane
control-plane: ## etcd, kubectl and Kubernetes' API server into .cache/kube (the first build takes minutes)
	$(GO) run ./test/e2e/kube/build -o .cache/kube

e2e-kube: control-plane ## operator and agent against a real Kubernetes API server (test/kube; the first build takes minutes)
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 30m -count=1 $(E2E_FLAGS) ./test/e2e/kube ./test/library

e2e-node: ## two kubelets behind a router with the manifests of k8s/, for real (as root; installs Debian packages; the first build takes minutes)
	@$(GO) run ./test/e2e/node

e2e-network: ## pods over every transport and family: reach, MTU, kills of the agent, damage, throughput, into docs/network.md (as root)
	CADASTRE_TEST_NETWORK_DOC=$(CURDIR)/docs/network.md $(GO) test -timeout 20m -count=1 ./test/network

e2e-openstack: ## operators, agents and pods on a real Neutron that throttles and loses replies, leaders killed; node CIDRs (as root; the first build takes minutes)
	$(GO) run ./test/e2e/kube/build -o .cache/kube
	cd providers/openstack && KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -v -timeout 15m -count=1 $(E2E_FLAGS) ./e2e

e2e-ec2: ## operators and agents on a mock of EC2 with faults, which are killed while pods come and go (as root; pip install 'moto[server]')
	$(GO) run ./test/e2e/kube/build -o .cache/kube
	cd providers/ec2 && KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 15m -count=1 -v ./e2e

ligato: $(LINT) ## golangci-lint and the tests of the agent in a Ligato agent, in real network namespaces (as root; installs Debian's ping where it can)
	$(call debian,ping,iputils-ping)
	cd ligato && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && $(GO) test -timeout 5m ./...

page: ## format and lint web/src, build the page's bundle web/dist from web/src with npm, and fail if the committed one differs
	@if ! command -v npm >/dev/null; then echo "NOT RUN: npm is missing: web/dist is used as it is committed"; exit 0; fi; \
	set -e; cd web; npm ci --no-audit --no-fund --loglevel=error || { echo "NOT RUN: npm ci failed: web/dist is used as it is committed"; exit 0; }; \
	cp -r dist dist.committed; trap 'rm -rf dist.committed' EXIT; \
	npm run --silent check; npm run --silent build; \
	diff -rq dist.committed dist || { echo "web/dist was not what web/src makes: commit it as it is now"; exit 1; }

e2e-page: ## the page in a headless Chromium (installs Debian's chromium where it can; IMAGES=1 renews docs/images)
	$(call debian,chromium,chromium)
	@$(MAKE) page
	$(GO) run ./test/e2e/kube/build -o .cache/kube
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(if $(IMAGES),CADASTRE_IMAGES=$(CURDIR)/docs/images) $(GO) test -v -count=1 -timeout 10m ./test/page

.PHONY: e2e-metrics
e2e-metrics: ## alerts with promtool, every query of the dashboard in a Prometheus that scrapes a cluster (as root; unpacks Debian's prometheus into .cache)
	@if ! command -v prometheus >/dev/null && [ ! -x $(PROMETHEUS)/usr/bin/prometheus ]; then \
		mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } && \
		dpkg -x prometheus_*.deb . && rm prometheus_*.deb || echo "NOT RUN with Prometheus: Debian's package prometheus cannot be had"; fi
	$(GO) run ./test/e2e/kube/build -o .cache/kube
	cd test/monitoring/objects && $(GO) test -count=1 ./...
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -v -count=1 -timeout 8m ./test/monitoring

test: vet unit smoke ## what every change must pass: go vet, gofmt, the tests that need no programs, ADD and DEL around a kill -9

vet: ## go vet and gofmt
	$(GO) vet ./...
	@out=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
		if [ -n "$$out" ]; then echo "not gofmt-ed:"; echo "$$out"; exit 1; fi

vet-modules: ## go vet of the modules of clouds and of those that compare us with other projects: a change of ours may break them
	@set -e; for m in $(MODULES); do echo "go vet in $$m"; (cd $$m && $(GO) vet ./...); done

providers: $(LINT) ## golangci-lint and the tests of the modules of clouds (Neutron and moto are started where they can be had)
	@set -e; for p in $(PROVIDERS); do echo "test providers/$$p"; (cd providers/$$p && \
		$(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && \
		CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -timeout $(PROVIDERS_TIMEOUT) ./...); done

vpp: $(LINT) ## golangci-lint and the tests of the module of VPP, on its model; those with packets need VPP_BIN (vpp/README.md)
	cd vpp && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./...
	cd vpp && CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -timeout 20m ./...

check: vet vet-modules lint ## go vet of all modules, gofmt and golangci-lint

# The tests of these start our programs, or make network namespaces. They wait more than they compute.
PROCESSES := /test/(chaos|cni|commands|docs|migration|network|reclaim|scenarios)$$|/southbound/linux$$|/dist/systemd$$|/k8s$$
unit: ## the tests but for those of make system; EFFORT=10 repeats the random ones as often as make nightly
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -vet=off -p 4 -timeout 20m $$($(GO) list ./... | grep -vE '$(PROCESSES)')

.PHONY: smoke system
smoke: ## one ADD, a kill -9 of the agent, one DEL
	$(GO) test -vet=off -run '^TestSmoke$$' ./test/chaos

system: ## our programs as processes, in real network namespaces (as root, else they skip; installs Debian's iptables where it can)
	$(call debian,iptables,iptables)
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -vet=off -timeout 20m $$($(GO) list ./... | grep -E '$(PROCESSES)')

# Go 1.26's race detector crashes ("ThreadSanitizer: CHECK failed") when two goroutines of one synctest bubble take
# expired timers at the same moment (golang/go#78156). It orders accesses by synchronization, so one processor finds the same races.
ONE_PROC = -exec "env GOMAXPROCS=1"

# The tests of test/, cmd/ and others start our programs, in which no detector watches; arithmetic has no goroutines.
# test/library has the code in its own process.
NO_RACES := /test/|/cmd/|/dist/|/deploy|/docker|/k8s$$|/internal/version$$|/ledger/addrspace$$|/testkit/
race: ## the tests with the race detector, where a C compiler is found, but for those of our programs as processes
	@$(if $(RACE),true,echo "no C compiler is found: the tests run without the race detector")
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test $(RACE) $(ONE_PROC) -timeout 40m $$($(GO) list ./... | grep -vE '$(NO_RACES)') ./test/library

fuzz: ## each fuzzer for FUZZTIME (3000 runs)
	@set -e; for f in $(FUZZERS); do \
		$(GO) test -run '^$$' -fuzz "^$${f##*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$${f%:*}"; done

lint: $(LINT) ## golangci-lint, in the version of this file, which is installed into .cache/bin
	$(LINT) run --allow-serial-runners ./...

$(LINT):
	@mkdir -p $(@D)
	@set -e; new=$$(mktemp -d); trap 'rm -r $$new' EXIT; GOBIN=$$new $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION); mv $$new/golangci-lint $@

chaos: EFFORT = 300
chaos: ## attacks on real agents, and simulations, into $(ATTACKS) and docs/reliability.md (hours; EFFORT=10: ten minutes)
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) run ./test/chaos/cmd/reliability -doc docs/reliability.md $(ATTACKS)

.PHONY: mutations
mutations: ## changes 20 places of each of seven rooms, one at a time, and writes which test notices into test/mutations/baseline (hours)
	$(GO) run ./test/mutations -out test/mutations/baseline

bench: ## our benchmarks beside the peers', into $(BENCH), docs/results and the plots
	$(GO) run ./test/peers/cmd/report -doc docs/results/benchmarks.md $(BENCH)
	$(MAKE) plots

plots: ## the plots and drawings of docs/, from the committed results
	$(GO) run ./test/pictures docs

.PHONY: e2e-chart
e2e-chart: $(LINT) ## the Helm charts beside k8s/: the same objects, refusals, every mode of both and releases on a real API server
	$(GO) run ./test/e2e/kube/build -o .cache/kube
	cd charts/test && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && \
		KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 10m -count=1 ./...

.PHONY: e2e-upgrade
e2e-upgrade: ## the last release beside this one in a cluster, the upgrade and the way back; databases of both
	@set -e; last=$$($(GO) run ./test/upgrade -o .cache/upgrade); if [ "$$last" ]; then \
		$(GO) run ./test/e2e/kube/build -o .cache/kube; \
		KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube E2E_UPGRADE=$$last $(GO) test -timeout 10m -count=1 -v -run '^TestUpgrade' ./test/e2e/kube; fi

# The packages whose tests write the files that they compare.
GENERATES := ./cmd/cadastre ./explain ./k8s ./plugins/contivconf ./test/guards ./test/monitoring
generate: ## all that is generated: definitions of Kubernetes objects, the modes of k8s/, pages of docs/, alerts, golden texts; messages where there is protoc
	$(GO) run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.1 object:headerFile=api/v1alpha1/boilerplate.txt crd paths=./api/v1alpha1 output:crd:dir=k8s/crd
	@if command -v protoc >/dev/null; then set -e; GOBIN=$(CURDIR)/.cache/bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go; \
		PATH="$(CURDIR)/.cache/bin:$$PATH" protoc --go_out=. --go_opt=paths=source_relative api/kv/kv.proto; \
	else echo "NOT RUN: there is no protoc (Debian: protobuf-compiler): api/kv/kv.pb.go stays as it is"; fi
	CADASTRE_GENERATE=1 $(GO) test -vet=off -run '^(TestReference|TestScenarios|TestConfigurationPage|TestErrorsPageHasEveryRule|TestImportDiagram|TestModes|TestPage|TestPrometheusRule)$$' $(GENERATES)

ci: ## what .ci/run does: make test, the control plane, then two lanes of targets beside each other, and a table of what ran
	$(GO) run ./test/ci -first "test control-plane" -lane "$(CI_COMPUTES)" -lane "$(CI_INSTALLS)"

nightly: ## what takes longer than make ci may: more seeds with clouds, all of the Kubernetes tests, long fuzzing, the long chaos run (hours)
	$(MAKE) race EFFORT=10
	$(MAKE) providers EFFORT=10
	$(MAKE) e2e-kube
	$(MAKE) fuzz FUZZTIME=300000x
	$(MAKE) chaos
	$(MAKE) mutations
	$(MAKE) release-twice

clean: ## remove what the other targets have made
	rm -rf $(BIN) .run .cache
