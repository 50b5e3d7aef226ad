// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// upstreamProgram is the program whose command lines this one accepts.
const upstreamProgram = "kube-controller-manager"

// ignoredFlags is a group of upstream's flags that have no effect here.
type ignoredFlags struct {
	reason string
	names  string // separated by spaces; those with a question mark may be given without a value
}

// upstreamFlags returns the flags of kube-controller-manager without effect here: those of
// version 1.36, and those that versions since 1.10 had.
func upstreamFlags() []ignoredFlags {
	return []ignoredFlags{
		{"the lock of the election is always a Lease", "leader-elect-resource-lock"},
		{"it is the port of a --" + flagBind + " that has none", flagSecurePort},
		{"the API server is that of --" + flagKubeconfig + ", or of the pod's service account", "master"},
		{"all controllers use the account of the program", "use-service-account-credentials?"},
		{"the prefixes that a cloud routes are those that the CIDR allocator adds, and agents make the other routes",
			"configure-cloud-routes? route-reconciliation-period"},
		{"a cloud of this program has flags of its own", "cloud-config external-cloud-volume-plugin " +
			"cloud-provider-gce-lb-src-cidrs allow-untagged-cloud? azure-container-registry-config"},
		{"the controllers that the operator runs do not use it", "cluster-name node-monitor-period min-resync-period " +
			"controller-start-interval controller-shutdown-timeout kube-api-content-type " +
			"enable-leader-migration? leader-migration-config"},
		{"the program has no features with gates", "feature-gates emulated-version min-compatibility-version"},
		{"the program does not serve profiles", "profiling? contention-profiling?"},
		{"the listener of --" + flagBind + " has no such setting",
			"cert-dir disable-http2-serving? http2-max-streams-per-connection permit-address-sharing? " +
				"permit-port-sharing? tls-cipher-suites tls-curve-preferences tls-min-version tls-sni-cert-key " +
				"port address allow-metric-labels allow-metric-labels-manifest disabled-metrics " +
				"show-hidden-metrics-for-version"},
		{"callers of /metrics are known by a certificate alone, with --" + flagTLSCert + " and --" + flagClientCA,
			"authentication-kubeconfig authentication-skip-lookup? authentication-token-webhook-cache-ttl " +
				"authentication-tolerate-lookup-failure? authorization-kubeconfig authorization-always-allow-paths " +
				"authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl " +
				"requestheader-allowed-names requestheader-client-ca-file requestheader-extra-headers-prefix " +
				"requestheader-group-headers requestheader-uid-headers requestheader-username-headers"},
		{"the log is text on the standard error stream", "logging-format log-flush-frequency vmodule " +
			"log-json-info-buffer-size log-json-split-stream? log-text-info-buffer-size log-text-split-stream? " +
			"logtostderr? alsologtostderr? stderrthreshold log-dir log-file log-file-max-size log-backtrace-at " +
			"add-dir-header? skip-headers? skip-log-headers? one-output?"},
		{"its controller is not in this program", upstreamControllerFlags},
	}
}

// upstreamControllerFlags lists the flags of controllers that this program does not have.
const upstreamControllerFlags = "attach-detach-reconcile-sync-period disable-attach-detach-reconcile-sync? " +
	"disable-force-detach-on-timeout? cluster-signing-cert-file cluster-signing-duration cluster-signing-key-file " +
	"experimental-cluster-signing-duration " +
	"cluster-signing-kube-apiserver-client-cert-file cluster-signing-kube-apiserver-client-key-file " +
	"cluster-signing-kubelet-client-cert-file cluster-signing-kubelet-client-key-file " +
	"cluster-signing-kubelet-serving-cert-file cluster-signing-kubelet-serving-key-file " +
	"cluster-signing-legacy-unknown-cert-file cluster-signing-legacy-unknown-key-file " +
	"concurrent-cron-job-syncs concurrent-daemonset-syncs concurrent-deployment-syncs " +
	"concurrent-device-taint-eviction-syncs concurrent-endpoint-syncs concurrent-ephemeralvolume-syncs " +
	"concurrent-gc-syncs concurrent-horizontal-pod-autoscaler-syncs concurrent-job-syncs " +
	"concurrent-namespace-syncs concurrent-rc-syncs concurrent-replicaset-syncs concurrent-resource-quota-syncs " +
	"concurrent-resourceclaim-syncs concurrent-service-endpoint-syncs concurrent-service-syncs " +
	"concurrent-serviceaccount-token-syncs concurrent-statefulset-syncs concurrent-ttl-after-finished-syncs " +
	"concurrent-validating-admission-policy-status-syncs deleting-pods-burst deleting-pods-qps " +
	"deployment-controller-sync-period enable-dynamic-provisioning? enable-garbage-collector? " +
	"enable-hostpath-provisioner? enable-taint-manager? endpoint-updates-batch-period " +
	"endpointslice-updates-batch-period flex-volume-plugin-dir horizontal-pod-autoscaler-cpu-initialization-period " +
	"horizontal-pod-autoscaler-downscale-delay horizontal-pod-autoscaler-downscale-stabilization " +
	"horizontal-pod-autoscaler-initial-readiness-delay horizontal-pod-autoscaler-sync-period " +
	"horizontal-pod-autoscaler-tolerance horizontal-pod-autoscaler-upscale-delay " +
	"horizontal-pod-autoscaler-use-rest-clients? insecure-experimental-approve-all-kubelet-csrs-for-group " +
	"large-cluster-size-threshold legacy-service-account-token-clean-up-period max-endpoints-per-slice " +
	"mirroring-concurrent-service-endpoint-syncs mirroring-endpointslice-updates-batch-period " +
	"mirroring-max-endpoints-per-subset namespace-sync-period node-eviction-rate node-monitor-grace-period " +
	"node-startup-grace-period node-sync-period pod-eviction-timeout pv-recycler-increment-timeout-nfs " +
	"pv-recycler-minimum-timeout-hostpath pv-recycler-minimum-timeout-nfs " +
	"pv-recycler-pod-template-filepath-hostpath pv-recycler-pod-template-filepath-nfs " +
	"pv-recycler-timeout-increment-hostpath pvclaimbinder-sync-period register-retry-count " +
	"resource-quota-sync-period root-ca-file route-controller-sync-period secondary-node-eviction-rate " +
	"service-account-private-key-file service-sync-period terminated-pod-gc-threshold unhealthy-zone-threshold " +
	"volume-host-allow-local-loopback? volume-host-cidr-denylist"

// upstreamControllers lists the controllers of upstream that this program does not have, by
// their names and by their former names.
const upstreamControllers = "bootstrap-signer-controller certificatesigningrequest-approving-controller " +
	"certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller " +
	"cloud-node-lifecycle-controller clusterrole-aggregation-controller cronjob-controller daemonset-controller " +
	"deployment-controller device-taint-eviction-controller disruption-controller endpoints-controller " +
	"endpointslice-controller endpointslice-mirroring-controller ephemeral-volume-controller " +
	"garbage-collector-controller horizontal-pod-autoscaler-controller job-controller " +
	"kube-apiserver-serving-clustertrustbundle-publisher-controller legacy-serviceaccount-token-cleaner-controller " +
	"namespace-controller node-lifecycle-controller node-route-controller persistentvolume-attach-detach-controller " +
	"persistentvolume-binder-controller persistentvolume-expander-controller " +
	"persistentvolume-protection-controller persistentvolumeclaim-protection-controller " +
	"pod-garbage-collector-controller podcertificaterequest-cleaner-controller podgroup-protection-controller " +
	"replicaset-controller replicationcontroller-controller resourceclaim-controller " +
	"resourcepoolstatusrequest-controller resourcequota-controller root-ca-certificate-publisher-controller " +
	"selinux-warning-controller service-cidr-controller service-lb-controller serviceaccount-controller " +
	"serviceaccount-token-controller statefulset-controller storage-version-migrator-controller " +
	"storageversion-garbage-collector-controller taint-eviction-controller token-cleaner-controller " +
	"ttl-after-finished-controller ttl-controller validatingadmissionpolicy-status-controller " +
	"volumeattributesclass-protection-controller " +
	"attachdetach bootstrapsigner cloud-node-lifecycle clusterrole-aggregation cronjob csrapproving csrcleaner " +
	"csrsigning daemonset deployment disruption endpoint endpointslice endpointslicemirroring ephemeral-volume " +
	"garbagecollector horizontalpodautoscaling job legacy-service-account-token-cleaner namespace node nodelifecycle " +
	"persistentvolume-binder persistentvolume-expander podgc pv-protection pvc-protection replicaset " +
	"replicationcontroller resource-claim-controller resourcequota root-ca-cert-publisher route service " +
	"serviceaccount serviceaccount-token statefulset storage-version-gc svm tokencleaner ttl ttl-after-finished"

// upstreamNodeIPAM is upstream's name of the controller that assigns podCIDRs.
const upstreamNodeIPAM = "node-ipam-controller"

// flagSecurePort is the port of upstream's listener.
const flagSecurePort = "secure-port"

// ignored is the value of a flag without effect.
type ignored struct{ text string }

func (v *ignored) String() string     { return v.text }
func (v *ignored) Set(s string) error { v.text = s; return nil }
func (v *ignored) Type() string       { return "string" }

// all returns the names of the flags, and whether each may be given without a value.
func (g ignoredFlags) all() iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		for name := range strings.FieldsSeq(g.names) {
			bare, optional := strings.CutSuffix(name, "?")
			if !yield(bare, optional) {
				return
			}
		}
	}
}

// registerUpstream defines the flags of kube-controller-manager that neither the program
// nor one of its providers has.
func registerUpstream(fs *pflag.FlagSet) {
	for _, group := range upstreamFlags() {
		for name, optional := range group.all() {
			if fs.Lookup(name) != nil {
				continue
			}
			f := &pflag.Flag{Name: name, Value: &ignored{}, Hidden: true}
			f.Usage = "accepted, without effect: " + group.reason
			if optional {
				f.NoOptDefVal = "true"
			}
			fs.AddFlag(f)
		}
	}
}

// dashes makes flags with underscores those with hyphens, as upstream does.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// note is a flag that has no effect, or not the one that it has elsewhere.
type note struct {
	flag, value, reason string
	ofCloud             bool // a flag of an added provider
}

func (n note) log(log *slog.Logger) {
	flag := "--" + n.flag + "=" + n.value
	if n.ofCloud {
		log.Info("a flag of a cloud has no effect", "flag", flag, "reason", n.reason)
		return
	}
	log.Info("a flag is not used as "+upstreamProgram+" uses it", "flag", flag, "reason", n.reason)
}

// ignoredNotes returns a note for each given flag of upstream that has no effect.
func (o *commandLine) ignoredNotes() (all []note) {
	for _, group := range upstreamFlags() {
		for name := range group.all() {
			f := o.flags.Lookup(name)
			if f == nil || !f.Changed {
				continue
			}
			if _, ok := f.Value.(*ignored); ok {
				all = append(all, note{flag: name, value: f.Value.String(), reason: group.reason})
			}
		}
	}
	return all
}

// foreign reports whether the command line is one of kube-controller-manager: it has a flag
// that only that program has.
func (o *commandLine) foreign() bool { return len(o.ignoredNotes()) > 0 }

// notes returns what the log says about flags of upstream, and about those of clouds that
// are not used.
func (o *commandLine) notes() []note {
	all := append(o.ignoredNotes(), o.unusedNotes()...)
	for _, name := range o.controllers {
		if isUpstreamController(strings.TrimPrefix(name, "-")) {
			all = append(
				all,
				note{flag: flagControllers, value: name, reason: "this controller is not in this program"},
			)
		}
	}
	if o.cloud != "" && !o.needsAliases() {
		all = append(all, note{flag: flagCloud, value: o.cloud, reason: "node CIDRs are not those of a cloud"})
	}
	if o.bind != o.address() {
		reason := fmt.Sprintf("without a port, the listener is %s", o.address())
		if o.address() == "" {
			reason = fmt.Sprintf("with --%s=0 there is no listener", flagSecurePort)
		} else if !o.encrypted() {
			reason += ", without TLS: probes need the scheme HTTP"
		}
		all = append(all, note{flag: flagBind, value: o.bind, reason: reason})
	}
	if o.tls.ClientCA != "" && !o.encrypted() {
		all = append(all, note{flag: flagClientCA, value: o.tls.ClientCA, reason: "the listener has no TLS"})
	}
	return all
}

func isUpstreamController(name string) bool {
	return slices.Contains(strings.Fields(upstreamControllers), name)
}

// named returns --controllers with the names of this program, without the controllers of
// upstream that it does not have.
func (o *commandLine) named() (all []string) {
	for _, name := range o.controllers {
		bare, minus := strings.CutPrefix(name, "-")
		switch {
		case isUpstreamController(bare):
			continue
		case bare == upstreamNodeIPAM && minus:
			name = "-" + controllerNodeIPAM
		case bare == upstreamNodeIPAM:
			name = controllerNodeIPAM
		}
		all = append(all, name)
	}
	return all
}
