// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// Names of the controllers.
const (
	controllerNodeIPAM    = "nodeipam"
	controllerKSR         = "ksr"
	controllerNodeIDs     = "nodeids"
	controllerNetResource = "netresource"
	controllerAudit       = "audit"
)

func allControllers() []string {
	return []string{controllerNodeIPAM, controllerKSR, controllerNodeIDs, controllerNetResource, controllerAudit}
}

// Names of the flags, as in Kubernetes' controller manager if it has them. Those of
// node CIDRs are in nodeipam.
const (
	flagKubeconfig     = "kubeconfig"
	flagQPS            = "kube-api-qps"
	flagBurst          = "kube-api-burst"
	flagElect          = "leader-elect"
	flagLeaseDuration  = "leader-elect-lease-duration"
	flagRenewDeadline  = "leader-elect-renew-deadline"
	flagRetryPeriod    = "leader-elect-retry-period"
	flagLeaseName      = "leader-elect-resource-name"
	flagLeaseNamespace = "leader-elect-resource-namespace"
	flagBind           = "bind-address"
	flagTLSCert        = "tls-cert-file"
	flagTLSKey         = "tls-private-key-file"
	flagClientCA       = "client-ca-file"
	flagControllers    = "controllers"
	flagStoreType      = "kvdb-type"
	flagEndpoints      = "kvdb-endpoints"
	flagPrefix         = "kvdb-prefix"
	flagCA             = "kvdb-ca"
	flagCert           = "kvdb-cert"
	flagKey            = "kvdb-key"
	flagUsername       = "kvdb-username"
	flagPasswordFile   = "kvdb-password-file"
	flagExpire         = "node-id-expire"
	flagAuditEvery     = "audit-interval"
	flagPolicies       = "policies-not-enforced"
	flagVerbosity      = "v"
	flagVersion        = "version"
)

// Kinds of cluster store.
const (
	storeEtcd       = "etcd"
	storeKubernetes = "kubernetes" // objects of the API server
)

// defaultExpire limits how long a node that is gone keeps its ID and its claims.
const defaultExpire = 24 * time.Hour

// defaultBind is the default address for probes and metrics.
const defaultBind = "127.0.0.1:10261"

// commandLine holds the values of the flags.
type commandLine struct {
	kubeconfig  string
	qps         float32
	burst       int
	elect       electOptions
	bind        string
	tls         httpserver.Files
	controllers []string
	nodeipam    nodeipam.Options
	netresource poolOptions
	store       storeOptions
	expire      time.Duration
	auditEvery  time.Duration
	policies    bool
	verbosity   int
	version     bool
	cloud       string     // --cloud-provider
	providers   []Provider // which the program has
	flags       *pflag.FlagSet
	ofProvider  map[string][]string // names of the flags of each added provider

}

// register defines the flags.
func (o *commandLine) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	o.flags = fs
	fs.StringSliceVar(
		&o.controllers,
		flagControllers,
		[]string{"*"},
		"the controllers to run, of "+strings.Join(
			allControllers(),
			", ",
		)+": '*' for all that have the flags they need, 'x' for x, '-x' for all but x; ksr includes nodeids",
	)
	o.registerServing(fs)
	o.elect.register(fs)
	registerNodeIPAM(fs, &o.nodeipam)
	fs.StringVar(
		&o.cloud,
		flagCloud,
		"",
		"the `cloud` that routes the CIDRs of nodes, for the types of --"+nodeipam.FlagType+" other than "+
			string(nodeipam.RangeAllocatorType)+"; empty or external: the program's only one ("+
			cmp.Or(strings.Join(o.cloudNames(), ", "), "it has none")+")",
	)

	o.netresource.register(fs, o.poolHelp())
	o.store.register(fs)
	fs.DurationVar(
		&o.expire,
		flagExpire,
		defaultExpire,
		"how long a node without a Node object keeps its ID and its claims after its agent's last beat, longer than the agents' cadastre.nodeIDs.expire; 0: it is never released",
	)

	fs.DurationVar(
		&o.auditEvery,
		flagAuditEvery,
		30*time.Second,
		"longest time between two comparisons of the cluster's objects with each other, which cadastre check --cluster shows; after a change it is half of that",
	)

	fs.BoolVar(
		&o.policies,
		flagPolicies,
		false,
		"report NetworkPolicies, because no program of the cluster enforces them: the agents' data plane in Linux does not",
	)

	fs.IntVarP(&o.verbosity, flagVerbosity, flagVerbosity, 0, "log verbosity: 0, or 4 for debugging")
	fs.BoolVar(&o.version, flagVersion, false, "print the version and exit")
}

// registerServing defines the flags of the API server and of the listener.
func (o *commandLine) registerServing(fs *pflag.FlagSet) {
	fs.StringVar(
		&o.kubeconfig,
		flagKubeconfig,
		"",
		"the kubeconfig `file`; empty in a pod: its service account is used",
	)
	fs.Float32Var(&o.qps, flagQPS, 500, "limit of requests a second to the API server; negative for none")
	fs.IntVar(&o.burst, flagBurst, 1000, "burst of requests to the API server")
	fs.StringVar(
		&o.bind,
		flagBind,
		defaultBind,
		"the `address:port` of /livez, /readyz, /healthz and /metrics; any address but a loopback one needs TLS; empty for none",
	)
	fs.StringVar(
		&o.tls.Cert,
		flagTLSCert,
		"",
		"the `file` with the certificate of --bind-address; empty for plain text",
	)
	fs.StringVar(&o.tls.Key, flagTLSKey, "", "the `file` with the private key of --tls-cert-file")
	fs.StringVar(
		&o.tls.ClientCA,
		flagClientCA,
		"",
		"the `file` with the authorities of client certificates for /metrics; empty: none is required",
	)
}

// registerNodeIPAM defines the flags of nodeipam.
func registerNodeIPAM(fs *pflag.FlagSet, n *nodeipam.Options) {
	fs.BoolVar(&n.Allocate, nodeipam.FlagAllocate, false, "assign podCIDRs to nodes; no other controller may do so")
	fs.StringVar(
		&n.Type,
		nodeipam.FlagType,
		string(nodeipam.RangeAllocatorType),
		"the `type` of the CIDR allocator: RangeAllocator, or with a cloud that routes prefixes to machines CloudAllocator, IPAMFromCluster or IPAMFromCloud",
	)
	fs.StringVar(
		&n.Cluster,
		nodeipam.FlagCluster,
		"",
		"the `CIDR` of all pods, or one of each family, separated by a comma",
	)
	fs.StringVar(
		&n.Service,
		nodeipam.FlagService,
		"",
		"the `CIDR` of services, or one of each family, separated by a comma; it is not assigned to nodes",
	)
	fs.IntVar(
		&n.Mask,
		nodeipam.FlagMask,
		0,
		"prefix length of a node's CIDR if --cluster-cidr has one family (default 24 for IPv4, 64 for IPv6)",
	)
	fs.IntVar(&n.MaskIPv4, nodeipam.FlagMaskIPv4, 0, "prefix length of a node's IPv4 CIDR (default 24)")
	fs.IntVar(&n.MaskIPv6, nodeipam.FlagMaskIPv6, 0, "prefix length of a node's IPv6 CIDR (default 64)")
	fs.StringSliceVar(
		&n.MoreRanges,
		nodeipam.FlagMoreRanges,
		nil,
		"further `CIDRs` of pods, of the same families; CIDR=BITS sets another prefix length for nodes",
	)
	fs.StringSliceVar(&n.Exclude, nodeipam.FlagExclude, nil, "`CIDRs` that are not assigned to nodes")
	fs.StringVar(&n.Order, nodeipam.FlagOrder, "next", "the free CIDR that a node gets: next or lowest")
	fs.StringSliceVar(
		&n.SizeLimits,
		nodeipam.FlagSizeLimits,
		nil,
		"`CIDR=MIN-MAX`: nodes may request prefix lengths from MIN to MAX in this range, by label or annotation "+nodeipam.SizeIPv4+" or "+nodeipam.SizeIPv6+"; without the flag these are not read",
	)
	fs.DurationVar(&n.CoolDown, nodeipam.FlagCoolDown, 0, "cool-down of a CIDR after its node is gone")
}

// problems collects the errors of the flags.
type problems []error

func (p *problems) add(flag string, value any, format string, args ...any) {
	*p = append(*p, fmt.Errorf("--%s=%v: %w", flag, value, fmt.Errorf(format, args...)))
}

// validate returns all errors of the options.
func (o *commandLine) validate() []error {
	var p problems
	o.elect.validate(&p)
	o.store.validate(&p)
	wanted := o.wanted(&p)
	o.validateListener(&p)
	if o.qps == 0 {
		p.add(flagQPS, o.qps, "it must not be 0: write a negative number for no limit")
	}
	if o.burst < 1 {
		p.add(flagBurst, o.burst, "it must be at least 1")
	}
	if o.expire < 0 {
		p.add(flagExpire, o.expire, "it must not be negative: write 0 for never")
	}
	if o.auditEvery < time.Second {
		p.add(flagAuditEvery, o.auditEvery, "it must be at least 1s")
	}
	if o.verbosity < 0 || o.verbosity > 10 {
		p.add(flagVerbosity, o.verbosity, "it must be 0 to 10")
	}
	if slices.Contains(wanted, controllerNodeIPAM) {
		o.validateMasks(&p)
		p = append(p, o.nodeipam.Validate()...)
		o.validateAliases(&p)
	}
	o.netresource.validateBudget(&p)
	if slices.Contains(wanted, controllerNetResource) {
		o.netresource.validate(&p, o.poolProviders())
		o.validateSource(&p)
	}
	if o.store.kind == storeKubernetes && slices.Contains(o.controllers, controllerKSR) {
		p.add(
			flagControllers,
			controllerKSR,
			"with --%s=%s agents read the API server themselves: remove it",
			flagStoreType,
			storeKubernetes,
		)
	}
	if len(p) == 0 && len(o.plan().run) == 0 {
		p.add(
			flagControllers,
			strings.Join(o.controllers, ","),
			"no controller has the flags that it needs: give --%s for node CIDRs, --%s (or --%s=%s) for a cluster store, or --%s for pools at watermarks",
			nodeipam.FlagAllocate,
			flagEndpoints,
			flagStoreType,
			storeKubernetes,
			flagProvider,
		)
	}
	return p
}

// validateMasks refuses prefix lengths of 0, which stand for flags that are not given.
func (o *commandLine) validateMasks(p *problems) {
	n := o.nodeipam
	for _, m := range []struct {
		flag        string
		value, bits int
	}{{nodeipam.FlagMask, n.Mask, 24}, {nodeipam.FlagMaskIPv4, n.MaskIPv4, 24}, {nodeipam.FlagMaskIPv6, n.MaskIPv6, 64}} {
		if m.value == 0 && n.Allocate && o.flags.Changed(m.flag) {
			p.add(
				m.flag,
				m.value,
				"a node's CIDR cannot be all addresses: want one such as %d, or remove it for the default",
				m.bits,
			)
		}
	}
}

// encrypted reports whether the listener has TLS.
func (o *commandLine) encrypted() bool { return o.tls.Cert != "" || o.tls.Key != "" }

// validateListener checks the flags of the listener for probes and metrics.
func (o *commandLine) validateListener(p *problems) {
	encrypted := o.encrypted()
	host, _, _ := net.SplitHostPort(o.bind)
	address, _ := netip.ParseAddr(host)
	if err := checkBind(o.bind); o.bind != "" && err != nil {
		p.add(flagBind, o.bind, "%w: want host:port, such as %s, or nothing for no listener", err, defaultBind)
	} else if o.bind != "" && !encrypted && !address.IsLoopback() {
		p.add(
			flagBind,
			o.bind,
			"it is not a loopback address, and has no TLS: give --%s and --%s, or write %s",
			flagTLSCert,
			flagTLSKey,
			defaultBind,
		)
	}
	if encrypted && o.tls.Key == "" {
		p.add(flagTLSCert, o.tls.Cert, "it needs --%s as well", flagTLSKey)
	}
	if encrypted && o.tls.Cert == "" {
		p.add(flagTLSKey, o.tls.Key, "it needs --%s as well", flagTLSCert)
	}
	if o.tls.ClientCA != "" && !encrypted {
		p.add(
			flagClientCA,
			o.tls.ClientCA,
			"it has no effect without TLS: give --%s and --%s, or remove it",
			flagTLSCert,
			flagTLSKey,
		)
	}
}

// wanted returns the controllers that --controllers selects.
func (o *commandLine) wanted(p *problems) (all []string) {
	for _, name := range o.controllers {
		if bare := strings.TrimPrefix(name, "-"); name != "*" && !slices.Contains(allControllers(), bare) {
			p.add(flagControllers, name, "want one of %s, or * for all", strings.Join(allControllers(), ", "))
		}
	}
	for _, name := range allControllers() {
		named := slices.Contains(o.controllers, "*") || slices.Contains(o.controllers, name)
		if named && !slices.Contains(o.controllers, "-"+name) {
			all = append(all, name)
		}
	}
	return all
}

// releaseInterval returns the time between two searches for nodes that are gone. It
// is a twelfth of the time after which they lose their IDs and claims, so that it
// adds little to that time.
func (o *commandLine) releaseInterval() time.Duration {
	return min(max(o.expire/12, time.Second), 10*time.Minute)
}

// plan holds the controllers that run, and the reason for each that does not.
type plan struct {
	run []string
	not map[string]string
}

func (o *commandLine) plan() plan {
	wanted, not := o.wanted(new(problems)), map[string]string{}
	for _, name := range allControllers() {
		if !slices.Contains(wanted, name) {
			not[name] = "--" + flagControllers + " does not name it"
		}
	}
	if slices.Contains(wanted, controllerNodeIPAM) && !o.nodeipam.Allocate {
		not[controllerNodeIPAM] = "--" + nodeipam.FlagAllocate + " is not given"
	}
	if slices.Contains(wanted, controllerNetResource) && o.netresource.provider == "" {
		not[controllerNetResource] = "--" + flagProvider + " is not given"
	}
	if slices.Contains(wanted, controllerKSR) {
		switch {
		case o.store.kind == storeKubernetes:
			not[controllerKSR] = "the agents read the API server themselves"
		case !o.store.configured():
			not[controllerKSR] = "--" + flagEndpoints + " is not given"
		case !slices.Contains(o.controllers, "-"+controllerNodeIDs): // ksr includes it
			delete(not, controllerNodeIDs)
		}
	}
	switch {
	case not[controllerNodeIDs] != "":
	case !o.store.configured():
		not[controllerNodeIDs] = "--" + flagEndpoints + " is not given"
	case o.expire == 0:
		not[controllerNodeIDs] = "--" + flagExpire + " is 0"
	}
	if slices.Contains(wanted, controllerAudit) && !o.store.configured() {
		not[controllerAudit] = "neither --" + flagEndpoints + " nor --" + flagStoreType + "=" + storeKubernetes + " is given"
	}
	var run []string
	for _, name := range allControllers() {
		if not[name] == "" {
			run = append(run, name)
		}
	}
	return plan{run, not}
}

// checkBind checks the port of host:port.
func checkBind(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return errors.New("it has no port")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return fmt.Errorf("%q is not a port", port)
	}
	return nil
}
