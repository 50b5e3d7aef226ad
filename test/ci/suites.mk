# What "make ci" runs beside "make test" and the targets of the Makefile: suites that need programs, root, packages or
# minutes. "make ci SUITE=help" lists them; make ci SUITE="fuzz vpp:EFFORT=10" runs two of them.
include Makefile

# Of the tests of one module with a cloud: Neutron and moto take some minutes with EFFORT=1, and an hour with EFFORT=10.
PROVIDERS_TIMEOUT ?= 90m
# Runs of each fuzzer. A time such as 1m works too, but Go now and then takes its end for a failure.
FUZZTIME ?= 3000x
# Prometheus and promtool, unpacked: an installed package starts a server.
PROMETHEUS := .cache/prometheus
# package:fuzzer
FUZZERS := ./ledger/addrspace:FuzzSpace ./plugins/contivconf:FuzzParse ./plugins/podmanager/cni:FuzzParseConfig ./plugins/podmanager/cni:FuzzParseCall \
	./plugins/ipam/poolplan:FuzzParse ./plugins/podmanager/cni:FuzzParseArgs ./plugins/restapi:FuzzRelease ./plugins/restapi:FuzzCNIBody ./cmd/cadastre-cni:FuzzAnswer \
	./ipam/ipamapi:FuzzPoolID ./plugins/dockeripam:FuzzHandler ./internal/rtnl:FuzzDecode
# The race detector needs a C compiler.
CC_FOUND := $(shell command -v $${CC:-cc} 2>/dev/null || command -v gcc 2>/dev/null)
RACE := $(if $(CC_FOUND),-race,)

# $(call debian,PROGRAM,PACKAGE) installs Debian's package where the program is missing and root may do so.
debian = @if ! command -v $1 >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	install="apt-get -qq install -y --no-install-recommends $2"; $$install >/dev/null 2>&1 || { apt-get -qq update && $$install >/dev/null; } || \
	echo "apt-get did not install $2"; fi

.PHONY: e2e-release release-twice demo-cluster e2e-docker control-plane e2e-kube e2e-node e2e-network e2e-openstack e2e-ec2 ligato e2e-page e2e-metrics providers vpp system race fuzz mutations e2e-chart e2e-upgrade suites

suites:
	@grep -hE '^[a-z0-9-]+:.*##' test/ci/suites.mk | awk -F ':.*## ' '{printf "  make ci SUITE=%-15s %s\n", $$1, $$2}'

e2e-release: $(LINT) ## golangci-lint and the tests of the release: a release for this machine, its packages installed (as root)
	cd dist/release && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && $(GO) test -timeout 15m ./...

release-twice: ## a whole release, built twice in different folders with caches of their own, and compared (tens of minutes)
	cd dist/release && CADASTRE_TEST_RELEASE=twice $(GO) test -v -timeout 120m -run TestTwice .

demo-cluster: ## three nodes over a real etcd, which is killed and wiped; no address moves
	@$(GO) run ./test/system/democluster

e2e-docker: ## Docker's engine with our driver, for real (as root; installs docker.io with apt-get where there is none)
	@$(GO) run ./test/e2e/docker

control-plane: ## etcd, kubectl and Kubernetes' API server into .cache/kube (the first build takes minutes)
	$(GO) run ./test/e2e/kube/build -o .cache/kube

e2e-kube: control-plane ## operator and agent against a real Kubernetes API server (test/e2e/kubernetes; the first build takes minutes)
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 30m -count=1 $(E2E_FLAGS) ./test/e2e/kube ./test/acceptance/library

e2e-node: ## two kubelets behind a router with the manifests of k8s/, for real (as root; installs Debian packages; the first build takes minutes)
	@$(GO) run ./test/e2e/node

e2e-network: ## pods over every transport and family: reach, MTU, kills of the agent, damage, throughput, into docs/network.md (as root)
	CADASTRE_TEST_NETWORK_DOC=$(CURDIR)/docs/network.md $(GO) test -timeout 20m -count=1 ./test/system/network

e2e-openstack: control-plane ## operators, agents and pods on a real Neutron that throttles and loses replies, leaders killed; node CIDRs (as root; the first build takes minutes)
	cd providers/openstack && KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -v -timeout 15m -count=1 $(E2E_FLAGS) ./e2e

e2e-ec2: control-plane ## operators and agents on a mock of EC2 with faults, which are killed while pods come and go (as root; pip install 'moto[server]')
	cd providers/ec2 && KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 15m -count=1 -v ./e2e

ligato: $(LINT) ## golangci-lint and the tests of the agent in a Ligato agent, in real network namespaces (as root; installs Debian's ping where it can); LIGATO=v3 with CN_INFRA and VPP_AGENT: against checkouts of go.ligato.io
	$(call debian,ping,iputils-ping)
	$(if $(filter v3,$(LIGATO)),ligato/v3.sh $(CN_INFRA) $(VPP_AGENT),cd ligato && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && $(GO) test -timeout 5m ./...)

e2e-page: control-plane ## the page in a headless Chromium (installs Debian's chromium where it can; IMAGES=1 renews docs/images)
	$(call debian,chromium,chromium)
	@$(MAKE) page
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(if $(IMAGES),CADASTRE_IMAGES=$(CURDIR)/docs/images) $(GO) test -v -count=1 -timeout 10m ./test/system/page

e2e-metrics: control-plane ## alerts with promtool, every query of the dashboard in a Prometheus that scrapes a cluster (as root; unpacks Debian's prometheus into .cache)
	@if ! command -v prometheus >/dev/null && [ ! -x $(PROMETHEUS)/usr/bin/prometheus ]; then \
		mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && { apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } && \
		dpkg -x prometheus_*.deb . && rm prometheus_*.deb || echo "NOT RUN with Prometheus: Debian's package prometheus cannot be had"; fi
	cd test/system/monitoring/objects && $(GO) test -count=1 ./...
	KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -v -count=1 -timeout 8m ./test/system/monitoring

providers: $(LINT) ## golangci-lint and the tests of the modules of clouds (Neutron and moto are started where they can be had)
	@set -e; for p in $(PROVIDERS); do echo "test providers/$$p"; (cd providers/$$p && \
		$(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && \
		CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -timeout $(PROVIDERS_TIMEOUT) ./...); done

vpp: $(LINT) ## golangci-lint and the tests of the module of VPP, on its model; those with packets need VPP_BIN (vpp/README.md)
	cd vpp && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./...
	cd vpp && CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -timeout 20m ./...

system: ## our programs as processes, in real network namespaces (as root, else they skip; installs Debian's iptables where it can)
	$(call debian,iptables,iptables)
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test -vet=off -timeout 20m $$($(GO) list ./... | grep -E '$(PROCESSES)')

# Go 1.26's race detector crashes ("ThreadSanitizer: CHECK failed") when two goroutines of one synctest bubble take
# expired timers at the same moment (golang/go#78156). It orders accesses by synchronization, so one processor finds the same races.
ONE_PROC = -exec "env GOMAXPROCS=1"

# The tests of test/, cmd/ and others start our programs, in which no detector watches; arithmetic has no goroutines.
# test/acceptance/library has the code in its own process.
NO_RACES := /test/|/cmd/|/dist/|/deploy|/docker|/k8s$$|/internal/version$$|/ledger/addrspace$$|/testkit/
race: ## the tests with the race detector, where a C compiler is found, but for those of our programs as processes
	@$(if $(RACE),true,echo "no C compiler is found: the tests run without the race detector")
	CADASTRE_TEST_EFFORT=$(EFFORT) $(GO) test $(RACE) $(ONE_PROC) -timeout 40m $$($(GO) list ./... | grep -vE '$(NO_RACES)') ./test/acceptance/library

fuzz: ## each fuzzer for FUZZTIME (3000 runs)
	@set -e; for f in $(FUZZERS); do \
		$(GO) test -run '^$$' -fuzz "^$${f##*:}\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "$${f%:*}"; done

mutations: ## changes 20 places of each of seven rooms, one at a time, and writes which test notices into test/chaos/mutations/baseline (hours)
	$(GO) run ./test/chaos/mutations -out test/chaos/mutations/baseline

e2e-chart: $(LINT) control-plane ## the Helm charts beside k8s/: the same objects, refusals, every mode of both and releases on a real API server
	cd charts/test && $(CURDIR)/$(LINT) run --allow-serial-runners --config=$(CURDIR)/.golangci.yml ./... && \
		KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube $(GO) test -timeout 10m -count=1 ./...

e2e-upgrade: control-plane ## the last release beside this one in a cluster, the upgrade and the way back; databases of both
	@set -e; last=$$($(GO) run ./test/e2e/upgrade -o .cache/upgrade); if [ "$$last" ]; then \
		KUBEBUILDER_ASSETS=$(CURDIR)/.cache/kube E2E_UPGRADE=$$last $(GO) test -timeout 10m -count=1 -v -run '^TestUpgrade' ./test/e2e/kube; fi
