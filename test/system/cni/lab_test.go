// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cni tests cadastre-cni as the main plugin of a network. A runtime's library
// reads the list that a real agent has written, and runs real plugins for pods with real
// network namespaces.
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// patience bounds what a slow machine may take, pace is the time between two looks.
const patience, pace = time.Minute, 10 * time.Millisecond

// binEnv names the folder of the programs.
const binEnv = "CADASTRE_TEST_CNI_BIN"

func TestMain(m *testing.M) { os.Exit(build(m)) }

// build builds the programs and runs the tests.
func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cni-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		const plugins = "github.com/containernetworking/plugins/plugins/"
		err = errors.Join(
			stage.Build(context.Background(), "../../..", dir, "./cmd/cadastre-agent", "./cmd/cadastre-cni", "./cmd/cadastre",
				stage.BridgePlugin, plugins+"meta/portmap", plugins+"meta/bandwidth"),
			os.Setenv(binEnv, dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// lab is a node: a network namespace with an agent in it.
type lab struct {
	*WithT
	t       *testing.T
	dir     string
	bin     string
	conf    string
	host    *netlab.Namespace
	process *stage.Process
	rested  bool
}

const dualStack = `
ipamConfig: {podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48", nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64",
  vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}
cadastre: {dataplane: linux, coolDown: 0s, cni: {confDir: %[1]s/net.d, binDir: %[2]s}, controller: {enableVerification: true}%[3]s}
`

// newLab starts an agent with more keys of the section cadastre.
func newLab(t *testing.T, more string) *lab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process can make no network namespaces: %v", err)
	}
	l := prepareLab(t)
	l.configure(more)
	l.start()
	return l
}

// prepareLab returns a node without an agent.
func prepareLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{WithT: NewWithT(t), t: t, dir: t.TempDir(), bin: os.Getenv(binEnv)}
	l.host = l.namespace()
	l.mustIP(l.host, "link", "add", "uplink", "mtu", "1400", "type", "veth", "peer", "name", "outside")
	for _, args := range []string{
		"address add 192.0.2.5/24 dev uplink", "address add 2001:db8::5/64 dev uplink nodad", "link set uplink up", "link set outside up",
		"route add default via 192.0.2.1", "-6 route add default via 2001:db8::1",
	} {
		l.mustIP(l.host, strings.Fields(args)...)
	}
	return l
}

// configure sets more keys of the section cadastre.
func (l *lab) configure(more string) { l.conf = fmt.Sprintf(dualStack, l.dir, l.bin, more) }

func (l *lab) namespace() *netlab.Namespace {
	ns, err := netlab.New()
	l.Expect(err).NotTo(HaveOccurred())
	l.t.Cleanup(func() {
		l.rest()
		l.Expect(ns.Close()).To(Succeed())
	})
	return ns
}

// rest waits at the end of a test, before its first namespace goes, until the agent is at
// rest, if it still runs.
func (l *lab) rest() {
	if l.rested || l.process == nil || l.t.Failed() || l.t.Skipped() {
		return
	}
	l.rested = true
	select {
	case <-l.process.Done():
		return
	default:
	}
	agent := stage.Agent{Place: stage.Place{Root: l.dir, Bin: l.bin, Dir: l.dir}, Config: l.conf, Node: "a"}
	l.Expect(agent.AwaitRest(context.Background(), l.process, l.host.Do)).To(Succeed())
}

// start starts the agent, and waits until its list is there.
func (l *lab) start() {
	l.t.Helper()
	l.launch()
	l.await(func() error {
		if _, err := os.Stat(l.listPath()); err != nil {
			return err
		}
		return l.status().ready()
	})
}

// await waits until the agent, which may not end meanwhile, has a state.
func (l *lab) await(state func() error) {
	l.t.Helper()
	l.Eventually(func() error {
		select {
		case <-l.process.Done():
			return StopTrying("the agent has ended")
		default:
		}
		return state()
	}, patience, pace).Should(Succeed())
}

// launch starts the agent.
func (l *lab) launch() {
	l.t.Helper()
	conf := filepath.Join(l.dir, "contiv.conf")
	l.Expect(os.WriteFile(conf, []byte(l.conf), 0o600)).To(Succeed())
	log, err := os.OpenFile(filepath.Join(l.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	l.Expect(err).NotTo(HaveOccurred())
	cmd := exec.Command(filepath.Join(l.bin, "cadastre-agent"), "--config", conf, "--node-name", "a", "--state-dir", filepath.Join(l.dir, "state"),
		"--run-dir", filepath.Join(l.dir, "run"))
	cmd.Stdout, cmd.Stderr = log, log
	l.process, err = stage.Start(cmd, l.host.Do)
	l.Expect(err).NotTo(HaveOccurred())
	process := l.process
	l.t.Cleanup(func() {
		_ = process.Kill() // it may have ended
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && l.t.Failed() {
			l.t.Log(string(text))
		}
	})
}

func (l *lab) listPath() string { return filepath.Join(l.dir, "net.d", conflist.FileName) }

func (l *lab) socket() string { return filepath.Join(l.dir, "run", "agent.sock") }

// cadastre runs the command line.
func (l *lab) cadastre(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(l.bin, "cadastre"), append(args, "--socket", l.socket())...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := l.host.Do(cmd.Run)
	return out.String(), err
}

// nodeStatus is the status of the agent.
type nodeStatus struct {
	localapi.Status
	err error
}

func (s nodeStatus) ready() error {
	switch {
	case s.err != nil:
		return s.err
	case !s.Ready:
		return errors.New(s.ReadyError)
	}
	return nil
}

func (l *lab) status() (s nodeStatus) {
	text, err := l.cadastre("status", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(text), &s.Status)
	}
	if err != nil {
		s.err = fmt.Errorf("%w: %s", err, text)
	}
	return s
}

// runtime is a container runtime of the node, as far as networks go.
type runtime struct {
	*lab
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// runtime reads the agent's list.
func (l *lab) runtime() *runtime {
	l.t.Helper()
	list, err := libcni.ConfListFromFile(l.listPath())
	l.Expect(err).NotTo(HaveOccurred())
	return l.with(list)
}

// with returns a runtime with another list.
func (l *lab) with(list *libcni.NetworkConfigList) *runtime {
	return &runtime{l, libcni.NewCNIConfigWithCacheDir([]string{l.bin}, filepath.Join(l.dir, "cache"), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}), list}
}

// listOf returns a list with plugins behind ours.
func (l *lab) listOf(version string, plugins ...map[string]any) *libcni.NetworkConfigList {
	text, err := json.Marshal(map[string]any{"cniVersion": version, "name": "cadastre", "plugins": plugins})
	l.Expect(err).NotTo(HaveOccurred())
	list, err := libcni.ConfListFromBytes(text)
	l.Expect(err).NotTo(HaveOccurred())
	return list
}

// ours is the configuration of the plugin in a list of a test.
func (l *lab) ours() map[string]any {
	return map[string]any{"type": "cadastre-cni", "ipam": map[string]any{"socket": l.socket()}, "capabilities": map[string]bool{"ips": true, "mac": true}}
}

// sandbox is a pod with a network namespace.
type sandbox struct {
	*netlab.Namespace
	rt     *libcni.RuntimeConf
	result *types100.Result
}

// addr returns the address of a family.
func (s *sandbox) addr(is4 bool) netip.Addr {
	for _, ip := range s.result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && a.Unmap().Is4() == is4 {
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

func (r *runtime) sandbox(name string, capabilities map[string]any) *sandbox {
	ns := r.namespace()
	return &sandbox{Namespace: ns, rt: &libcni.RuntimeConf{
		ContainerID: name, NetNS: ns.Path(), IfName: "eth0", CapabilityArgs: capabilities,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
	}}
}

// within calls f in the network namespace of the node, where a runtime runs the plugins.
func (r *runtime) within(f func(ctx context.Context) error) error {
	return r.host.Do(func() error { return f(r.t.Context()) })
}

func (r *runtime) tryAdd(s *sandbox) error {
	return r.within(func(ctx context.Context) error {
		answer, err := r.cni.AddNetworkList(ctx, r.list, s.rt)
		if err == nil {
			s.result, err = types100.NewResultFromResult(answer)
		}
		return err
	})
}

// add adds a pod.
func (r *runtime) add(name string) *sandbox {
	r.t.Helper()
	s := r.sandbox(name, nil)
	r.Expect(r.tryAdd(s)).To(Succeed())
	return s
}

func (r *runtime) check(s *sandbox) error {
	return r.within(func(ctx context.Context) error { return r.cni.CheckNetworkList(ctx, r.list, s.rt) })
}

func (r *runtime) del(s *sandbox) error {
	return r.within(func(ctx context.Context) error { return r.cni.DelNetworkList(ctx, r.list, s.rt) })
}

// code is the code of a CNI error, 0 for none.
func code(err error) uint {
	var cerr *types.Error
	if errors.As(err, &cerr) {
		return cerr.Code
	}
	return 0
}

// ip runs ip in a namespace.
func (l *lab) ip(ns *netlab.Namespace, args ...string) (string, error) {
	cmd := exec.Command("ip", args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Do(cmd.Run)
	if err != nil {
		err = fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out.String())
	}
	return out.String(), err
}

// mustIP runs ip, which must succeed.
func (l *lab) mustIP(ns *netlab.Namespace, args ...string) string {
	l.t.Helper()
	out, err := l.ip(ns, args...)
	l.Expect(err).NotTo(HaveOccurred())
	return out
}

// links returns the names of the agent's links.
func (l *lab) links() (names []string) {
	var all []struct {
		Name  string `json:"ifname"`
		Alias string `json:"ifalias"`
	}
	l.Expect(json.Unmarshal([]byte(l.mustIP(l.host, "-j", "link", "show")), &all)).To(Succeed())
	for _, x := range all {
		if strings.HasPrefix(x.Alias, "cadastre:") {
			names = append(names, x.Name)
		}
	}
	return names
}

// exchange sends a message from one end to another by TCP and UDP, and back.
func (l *lab) exchange(from, to stage.End) error {
	for _, protocol := range []string{"tcp", "udp"} {
		if _, err := stage.Send(l.t.Context(), protocol, from, to); err != nil {
			return err
		}
	}
	return nil
}

// end is an end of an exchange at an address of a namespace.
func end(name string, ns *netlab.Namespace, addr netip.Addr) stage.End {
	return stage.End{Name: name, Address: addr, Within: ns.Do}
}
