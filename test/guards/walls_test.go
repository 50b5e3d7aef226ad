// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// pkg holds the fields of `go list` for a package. Imports leaves the tests out.
type pkg struct {
	ImportPath string
	Standard   bool
	Export     string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// goList lists packages and all that they are made of.
func goList(t testing.TB, args ...string) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-deps"}, args...)...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

// wall names packages that other packages must not reach, however many imports away. A pattern
// is a package, or with "/..." a package and all below; "./" is our module, and
// "..." is everything that is not in the standard library.
type wall struct {
	from    []string
	exempt  []string // of from
	banned  []string
	but     []string // of banned
	through []string // behind these packages it is allowed
	why     string
	bad     [2]string // an import that the wall must find
}

// suites are made for tests: an implementation of kvdb.Store or of ledger's journal,
// also outside of this module, runs them.
func suites() []string {
	return []string{
		"./internal/testkit/...",
		"./ipam/ipamapi/ipamapitest",
		"./kvdb/kvdbtest",
		"./ledger/journaltest",
		"./operator/netresource/netresourcetest", "./operator/netresource/netresourcetest/memapi",
		"./plugins/kubestate/kubestatetest",
	}
}

// walls lists the walls of the house, one by one.
func walls() []wall {
	return append([]wall{
		{from: []string{"./..."}, banned: []string{"k8s.io/...", "sigs.k8s.io/controller-runtime/..."}, but: []string{"k8s.io/utils/...", "k8s.io/cri-api/..."},
			through: []string{"./operator/...", "./api/v1alpha1", "./plugins/kubestate/apistore", "./internal/testkit/...", "./test/e2e/kube/..."},
			why:     "only the operator, its objects, and the store that is the API server know Kubernetes, so that all else runs without",
			bad:     [2]string{"./plugins/nodesync", "k8s.io/client-go/kubernetes"}},
		{from: []string{"./..."}, banned: []string{"k8s.io/cri-api/..."}, through: []string{"./witness/runtime", "./internal/testkit/engines/critest"},
			why: "only the witness of the container runtime speaks the CRI; critest serves it",
			bad: [2]string{"./plugins/podmanager", "k8s.io/cri-api/pkg/apis/runtime/v1"}},
		{from: []string{"./..."}, banned: []string{"go.etcd.io/etcd/..."}, through: []string{"./kvdb/etcd", "./internal/testkit/etcdtest", "./test/system/democluster"},
			why: "a store is known by its contract; only kvdb/etcd knows etcd, and etcdtest runs one",
			bad: [2]string{"./plugins/nodesync", "go.etcd.io/etcd/client/v3"}},
		{from: []string{"./..."}, banned: []string{"go.etcd.io/bbolt/..."}, through: []string{"./kvdb/bolt", "./internal/testkit/etcdtest", "./test/system/democluster"},
			why: "a store is known by its contract; only kvdb/bolt knows the file's format",
			bad: [2]string{"./internal/testkit/journal", "go.etcd.io/bbolt"}},
		{from: []string{"./..."}, banned: []string{"github.com/aws/...", "github.com/gophercloud/..."},
			why: "the SDKs of clouds burden their own modules below providers/, and no user of this one",
			bad: [2]string{"./operator", "github.com/aws/aws-sdk-go-v2/service/ec2"}},
		{from: []string{"./..."}, banned: []string{"go.fd.io/govpp/..."},
			why: "the messages of one release of VPP burden module vpp/, and no user of this one",
			bad: [2]string{"./agent", "go.fd.io/govpp/api"}},
		{from: []string{"./..."}, banned: []string{"github.com/moby/..."}, through: []string{"./witness/engine"},
			why: "the Docker engine is known by its view; only witness/engine knows its API",
			bad: [2]string{"./plugins/dockeripam", "github.com/moby/moby/client"}},
		{from: []string{"./..."}, banned: []string{"go.opentelemetry.io/otel/sdk/...", "go.opentelemetry.io/otel/exporters/..."},
			through: []string{"./tracing", "./internal/testkit/etcdtest", "./test/system/democluster"},
			why:     "only tracing exports spans; all else adds to those in its context; the etcd of tests has its own",
			bad:     [2]string{"./plugins/podmanager", "go.opentelemetry.io/otel/sdk/trace"}},
		{from: []string{"./cmd/cadastre-cni"}, banned: []string{"go.opentelemetry.io/..."},
			why: "the CNI plugin makes IDs and measures times; the agent exports its spans",
			bad: [2]string{"./cmd/cadastre-cni", "go.opentelemetry.io/otel/trace"}},
		{from: []string{"./..."}, banned: []string{"github.com/google/nftables/...", "golang.zx2c4.com/wireguard/..."},
			through: []string{"./southbound/linux", "./internal/testkit/...", "./test/..."},
			why:     "the kernel's network is changed by the kinds of Linux alone",
			bad:     [2]string{"./plugins/ipnet", "github.com/google/nftables"}},
		{from: []string{"./..."}, banned: []string{"github.com/vishvananda/netlink/..."},
			through: []string{"./internal/testkit/...", "./test/..."},
			why:     "internal/rtnl is the one way to the kernel's links, addresses and routes; tests look at these with another one",
			bad:     [2]string{"./southbound/linux", "github.com/vishvananda/netlink"}},
		{from: []string{"./southbound"}, banned: []string{"./..."}, but: []string{"./southbound", "./controller", "./api/...", "./internal/backoff"},
			why: "the scheduler knows kinds of values by the contract of a descriptor, whatever makes them",
			bad: [2]string{"./southbound", "./southbound/linux"}},
		{from: []string{"./southbound/linux/..."}, banned: []string{"./plugins/...", "./ledger/...", "./kvdb/..."},
			why: "a descriptor makes values true that say all it needs",
			bad: [2]string{"./southbound/linux", "./plugins/ipnet"}},
		{from: []string{"./..."}, banned: []string{"./cmd/..."},
			why: "programs are the ends of all arrows",
			bad: [2]string{"./plugins/restapi", "./cmd/cadastre-agent"}},
		{from: []string{"./..."}, exempt: []string{"./test/..."}, banned: []string{"./test/..."},
			why: "what is made for tests is not shipped",
			bad: [2]string{"./plugins/restapi", "./test/chaos"}},
		{from: []string{"./plugins/..."}, banned: []string{"./operator/..."},
			why: "agent and operator meet only through the kvdb or the Kubernetes API, so that each works with a foreign counterpart",
			bad: [2]string{"./plugins/ipam", "./operator/nodeipam"}},
		{from: []string{"./operator/..."}, exempt: []string{"./operator"}, banned: []string{"./plugins/..."},
			why: "agent and operator meet only through the kvdb or the Kubernetes API, so that each works with a foreign counterpart",
			bad: [2]string{"./operator/ksr", "./plugins/kubestate"}},
		{from: []string{"./..."}, exempt: []string{"./ipam/...", "./test/..."}, banned: []string{"./ipam", "./ipam/datastore"},
			why: "the faces that CCE and AWS published are leaves over the ledger, for importers: no program has a second address manager",
			bad: [2]string{"./plugins/interfaces", "./ipam/datastore"}},
		{from: []string{"./ledger/..."}, banned: []string{"./..."}, but: []string{"./ledger/...", "./kvdb/...", "./api/..."},
			why: "the ledger is below all its doors: it knows no plugin, no face (ipam), no event loop",
			bad: [2]string{"./ledger", "./controller"}},
		{from: []string{"./api/handshake"}, banned: []string{"..."},
			why: "both halves of the handshake are pure: the standard library and nothing else",
			bad: [2]string{"./api/handshake", "google.golang.org/protobuf/proto"}},
		{from: []string{"./api/watermark"}, banned: []string{"..."},
			why: "how many addresses a node wants is one pure function for all callers",
			bad: [2]string{"./api/watermark", "google.golang.org/protobuf/proto"}},
		{from: []string{"./internal/rtnl"}, banned: []string{"./..."}, but: []string{"./internal/rtnl"},
			why: "one way to the kernel for all who read or change its network, whatever they know of the agent",
			bad: [2]string{"./internal/rtnl", "./witness"}},
		{from: []string{"./httpserver"}, banned: []string{"..."},
			why: "a listener's limits are the same, whatever is served",
			bad: [2]string{"./httpserver", "github.com/prometheus/client_golang/prometheus/promhttp"}},
		{from: []string{"./plugins/contivconf/yamldoc"}, banned: []string{"./..."},
			why: "the decoder does not depend on the meaning of a file",
			bad: [2]string{"./plugins/contivconf/yamldoc", "./plugins/contivconf"}},
		{from: []string{"./ledger/addrspace"}, banned: []string{"..."},
			why: "address arithmetic is pure: the standard library and nothing else",
			bad: [2]string{"./ledger/addrspace", "google.golang.org/protobuf/proto"}},
		{from: []string{"./controller/..."}, banned: []string{"./..."}, but: []string{"./controller/...", "./api/..."},
			why: "the event loop knows handlers by their contract: no plugin, no ledger, no store",
			bad: [2]string{"./controller", "./ledger"}},
		{from: []string{"./kvdb/..."}, banned: []string{"./..."}, but: []string{"./kvdb/..."},
			why: "stores keep bytes; what those mean is not their business",
			bad: [2]string{"./kvdb/mem", "./api/kv"}},
		{from: []string{"./api/..."}, banned: []string{"./..."}, but: []string{"./api/..."},
			why: "messages have no behaviour that needs anything of ours",
			bad: [2]string{"./api/kv", "./controller"}},
		{from: []string{"./cmd/cadastre-cni"}, banned: []string{"net/http/...", "google.golang.org/grpc/...", "google.golang.org/protobuf/...", "go.etcd.io/bbolt/...", "..."},
			but: []string{"./..."}, why: "it is started for every pod: what it links is what every pod waits for",
			bad: [2]string{"./cmd/cadastre-cni", "net/http"}},
		{from: []string{"./..."}, exempt: append(suites(), "./test/..."),
			banned: []string{"testing/...", "net/http/httptest", "github.com/onsi/gomega/...", "pgregory.net/rapid/...", "go.uber.org/goleak/...", "github.com/rogpeppe/go-internal/...", "github.com/anishathalye/porcupine/..."},
			why:    "what is made for tests is not shipped",
			bad:    [2]string{"./ledger", "testing"}},
		{from: []string{"./..."}, exempt: append(suites(), "./test/..."), banned: suites(),
			why: "the suites are for tests",
			bad: [2]string{"./kvdb/mem", "./kvdb/kvdbtest"}},
	}, pluginWalls()...)
}

// pluginOrder is the order in which the loop calls the plugins. Each may import
// what the earlier ones publish, never a later one.
func pluginOrder() []string { return []string{"contivconf", "nodesync", "podmanager", "ipam", "ipnet"} }

// besides are the plugins beside that order. kubestate produces the state that the others
// use and imports none of them. restapi shows their state, dockeripam serves Docker,
// reclaim compares the ledger with the witnesses, and interfaces calls the cloud. No
// plugin of the order imports these four.
func besides() []string {
	return []string{"kubestate", "restapi", "dockeripam", "reclaim", "interfaces"}
}

// shared are the packages below plugins that are not a plugin's own: pure, or
// the other end of a socket. Every package may import them.
func shared() []string {
	return []string{"./plugins/ipam/addrplan", "./plugins/ipam/poolplan", "./plugins/podmanager/cni", "./plugins/restapi/localapi"}
}

func pluginWalls() []wall {
	below := func(names ...string) (all []string) {
		for _, n := range names {
			all = append(all, "./plugins/"+n+"/...")
		}
		return all
	}
	order := pluginOrder()
	var all []wall
	for i, name := range order {
		later := append(slices.Clone(order[i+1:]), "restapi", "dockeripam", "reclaim", "interfaces")
		all = append(all, wall{from: below(name), exempt: shared(), banned: below(later...), but: shared(),
			why: "plugins import each other only in their order: " + strings.Join(order, ", "),
			bad: [2]string{"./plugins/" + name, "./plugins/" + later[0]}})
	}
	return append(all,
		wall{from: below("kubestate"), banned: []string{"./plugins/..."}, but: below("kubestate"),
			why: "kubestate shows the state of the cluster and does not depend on its readers",
			bad: [2]string{"./plugins/kubestate", "./plugins/nodesync"}},
		wall{from: below("reclaim"), banned: []string{"./plugins/..."}, but: below("reclaim"),
			why: "reclaim knows the ledger and the witnesses, and the plugins by small interfaces",
			bad: [2]string{"./plugins/reclaim", "./plugins/podmanager"}},
		wall{from: below("interfaces"), banned: below("ipnet", "restapi", "dockeripam", "reclaim", "kubestate"), through: []string{"./plugins/ipam"},
			why: "interfaces changes the blocks of ipam by its event, and knows no other plugin",
			bad: [2]string{"./plugins/interfaces", "./plugins/ipnet"}},
		wall{from: shared(), banned: []string{"./..."}, but: append(shared(), "./ledger/addrspace", "./controller", "./api/...", "./plugins/contivconf/yamldoc", "./internal/columns"),
			why: "packages that all may import pull no plugin in",
			bad: [2]string{"./plugins/ipam/addrplan", "./plugins/ipam"}},
	)
}

func matches(pattern string, p pkg) bool {
	if pattern == "..." {
		return !p.Standard
	}
	if rest, ours := strings.CutPrefix(pattern, "./"); ours {
		pattern = module + "/" + rest
	}
	if base, tree := strings.CutSuffix(pattern, "/..."); tree {
		return p.ImportPath == base || strings.HasPrefix(p.ImportPath, base+"/")
	}
	return p.ImportPath == pattern
}

func matchesAny(patterns []string, p pkg) bool {
	return slices.ContainsFunc(patterns, func(x string) bool { return matches(x, p) })
}

// breaches are the shortest ways from behind the wall to what it bans.
func (w wall) breaches(all map[string]pkg) []string {
	var found []string
	for _, p := range all {
		if !matchesAny(w.from, p) || matchesAny(w.exempt, p) || matchesAny(w.through, p) {
			continue
		}
		if way := w.way(all, p); way != nil {
			found = append(found, strings.ReplaceAll(strings.Join(way, " -> "), module+"/", ""))
		}
	}
	slices.Sort(found)
	return found
}

func (w wall) way(all map[string]pkg, from pkg) []string {
	seen := map[string]bool{from.ImportPath: true}
	for ways := [][]string{{from.ImportPath}}; len(ways) > 0; ways = ways[1:] {
		here := ways[0]
		for _, next := range all[here[len(here)-1]].Imports {
			p, ok := all[next]
			if !ok || seen[next] || matchesAny(w.through, p) {
				continue
			}
			seen[next] = true
			there := append(slices.Clone(here), next)
			if matchesAny(w.banned, p) && !matchesAny(w.but, p) {
				return there
			}
			ways = append(ways, there)
		}
	}
	return nil
}

func TestWalls(t *testing.T) {
	all := goList(t, "-json=ImportPath,Standard,Imports", "./...")
	for _, w := range walls() {
		for _, way := range w.breaches(all) {
			t.Errorf("%s\n\t%s", way, w.why)
		}
	}
}

// unplaced are the plugins that the walls do not know.
func unplaced(all []source) []finding {
	var found []finding
	for _, name := range plugins(all) {
		if !slices.Contains(append(pluginOrder(), besides()...), name) {
			found = append(found, finding{"plugins/" + name, 0, name, "no wall is around it: give it a place in pluginOrder or besides"})
		}
	}
	return found
}

// plugins are the folders of plugins.
func plugins(all []source) []string {
	var names []string
	for _, s := range all {
		if rest, ok := strings.CutPrefix(s.path, "plugins/"); ok && !s.test() {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// full is a pattern as an import path.
func full(pattern string) string {
	if rest, ours := strings.CutPrefix(pattern, "./"); ours {
		return module + "/" + rest
	}
	return pattern
}

// graph makes packages of chains of imports. Paths without a dot in the first
// element are of the standard library.
func graph(chains ...[]string) map[string]pkg {
	all := map[string]pkg{}
	for _, chain := range chains {
		for i, name := range chain {
			first, _, _ := strings.Cut(full(name), "/")
			p := all[full(name)]
			p.ImportPath, p.Standard = full(name), !strings.Contains(first, ".")
			if i+1 < len(chain) {
				p.Imports = append(p.Imports, full(chain[i+1]))
			}
			all[p.ImportPath] = p
		}
	}
	return all
}

func TestWallsFindBreaches(t *testing.T) {
	for _, w := range walls() {
		t.Run(w.bad[0]+" to "+w.bad[1], func(t *testing.T) {
			g := NewWithT(t)
			short := func(s string) string { return strings.ReplaceAll(full(s), module+"/", "") }
			g.Expect(w.breaches(graph([]string{w.bad[0], w.bad[1]}))).To(ConsistOf(short(w.bad[0]) + " -> " + short(w.bad[1])))
			g.Expect(w.breaches(graph([]string{w.bad[0], "example.org/between", w.bad[1]}))).NotTo(BeEmpty(), "two imports away")
			g.Expect(w.breaches(graph([]string{w.bad[0], "strings"}, []string{"example.org/other", w.bad[1]}))).To(BeEmpty())
			g.Expect(w.why).NotTo(BeEmpty())
		})
	}
}

func TestWallsHaveDoors(t *testing.T) {
	g := NewWithT(t)
	w := wall{from: []string{"./..."}, banned: []string{"go.etcd.io/bbolt/..."}, through: []string{"./kvdb/bolt"}}
	g.Expect(w.breaches(graph([]string{"./cmd/x", "./kvdb/bolt", "go.etcd.io/bbolt"}))).To(BeEmpty())
	g.Expect(w.breaches(graph([]string{"./cmd/x", "./kvdb/bolt", "go.etcd.io/bbolt"}, []string{"./cmd/x", "./y", "go.etcd.io/bbolt/errors"}))).
		To(ConsistOf("cmd/x -> y -> go.etcd.io/bbolt/errors", "y -> go.etcd.io/bbolt/errors"))
	found := unplaced([]source{parse(t, "plugins/ipam/a.go", "package ipam"), parse(t, "plugins/new/a.go", "package x")})
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].path).To(Equal("plugins/new"))
}
