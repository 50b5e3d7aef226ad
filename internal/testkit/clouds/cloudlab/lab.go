// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Patience bounds what a slow machine may take; Pace is the time between two looks.
const (
	Patience = 90 * time.Second
	Pace     = 100 * time.Millisecond
)

// Config describes a lab.
type Config struct {
	Root     string   // the folder of the provider's module
	Cloud    string   // its name, which ends the names of the provider's programs
	Modes    []string // of k8s/, which New applies; Apply adds others
	Ports    []int    // of 127.0.0.1, that nodes reach beside the API server: the cloud's
	Networks []Network
	Truth    func(ctx context.Context) (Truth, error)
}

// Network is a network of the cloud.
type Network struct {
	ID      string
	Subnets []Subnet
}

// Subnet is a subnet of the cloud.
type Subnet struct {
	CIDR    netip.Prefix
	Gateway netip.Addr
}

// Lab is a cluster of machines of a cloud.
type Lab struct {
	*WithT
	t       testing.TB
	config  Config
	dir     string
	bin     string
	plane   *plane
	Judge   *Judge
	Client  kubernetes.Interface
	Objects dynamic.Interface

	fabric     *netlab.Namespace // the bridges
	router     *netlab.Namespace
	hypervisor *hypervisor

	operators []*Operator
	nodes     []*Node
}

// Why returns the reason why the machine can run no lab, "" if it can.
func Why() string {
	assets := os.Getenv(AssetsVariable)
	if assets == "" {
		return AssetsVariable + " is not set: make ci SUITE=e2e-kube builds a control plane"
	}
	if os.Geteuid() != 0 {
		return "this user is not root"
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		if _, err := exec.LookPath(filepath.Join(assets, name)); err != nil {
			return fmt.Sprintf("%s=%s: %v", AssetsVariable, assets, err)
		}
	}
	return netlab.Why()
}

// Main is TestMain of a provider whose module is the parent folder. It builds the programs
// into the folder of an environment variable, by default a temporary one, and runs the tests.
func Main(m *testing.M, variable string) int {
	if why := Why(); why != "" {
		fmt.Fprintln(os.Stderr, "the tests on a lab: NOT RUN:", why)
		return m.Run()
	}
	if os.Getenv(variable) == "" {
		dir, err := os.MkdirTemp("", "cloudlab-bin-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = build(context.Background(), "..", dir)
		}
		if err == nil {
			err = os.Setenv(variable, dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// build builds the programs of a lab into a folder: cadastre-cni and cadastre, and those of
// the provider, whose module is in root.
func build(ctx context.Context, root, bin string) error {
	main := filepath.Join(root, "..", "..")
	if err := stage.Build(ctx, main, bin, "./cmd/cadastre-cni", "./cmd/cadastre"); err != nil {
		return err
	}
	return stage.Build(ctx, root, bin, "./cmd/...")
}

// New starts a control plane with the definitions of Cadastre's objects, the networks and
// the hypervisor. All of it ends with the test.
func New(t testing.TB, bin string, c Config) *Lab {
	t.Helper()
	if why := Why(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	l := &Lab{WithT: NewWithT(t), t: t, config: c, bin: bin, Judge: NewJudge()}
	dir, err := os.MkdirTemp("/tmp", "cloudlab-") // sockets have short paths
	l.must(err)
	l.dir = dir
	t.Cleanup(func() {
		if v := l.Judge.Verdict(); t.Failed() {
			t.Logf(
				"held twice: %q\ntaken away under a pod: %q\nreleased without agreement: %q",
				v.Twice,
				v.Foreign,
				v.Disagreed,
			)
		}
		l.must(errors.Join(l.keepLogs(), os.RemoveAll(dir)))
	})
	l.plane, err = startPlane(t.Context(), filepath.Join(dir, "plane"), os.Getenv(AssetsVariable))
	l.must(err)
	t.Cleanup(l.plane.stop)
	l.Client, err = kubernetes.NewForConfig(l.plane.config)
	l.must(err)
	l.Objects, err = dynamic.NewForConfig(l.plane.config)
	l.must(err)
	l.Kubectl("apply", "--kustomize="+filepath.Join(c.Root, "..", "..", "k8s", "crd"))
	l.Kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	for _, mode := range c.Modes {
		l.Apply(mode)
	}
	l.watchReleases()
	l.fabric, l.router = l.namespace(), l.namespace()
	l.must(l.router.Forward())
	for _, n := range c.Networks {
		l.addNetwork(n)
	}
	l.hypervisor = l.startHypervisor()
	return l
}

// LogsVariable names the environment variable with a folder to which the logs of all
// programs are copied.
const LogsVariable = "CADASTRE_TEST_LOGS"

func (l *Lab) keepLogs() error {
	to := os.Getenv(LogsVariable)
	if to == "" {
		return nil
	}
	return filepath.WalkDir(l.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".log") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(strings.TrimPrefix(path, l.dir+"/"), "/", "-")
		return os.WriteFile(filepath.Join(to, name), text, 0o600)
	})
}

func (l *Lab) must(err error) {
	l.t.Helper()
	l.Expect(err).NotTo(HaveOccurred())
}

// Kubectl runs kubectl as the administrator and returns its output.
func (l *Lab) Kubectl(args ...string) string {
	l.t.Helper()
	out, err := l.plane.kubectl(l.t.Context(), args...)
	l.must(err)
	return out
}

func (l *Lab) namespace() *netlab.Namespace {
	l.t.Helper()
	ns, err := netlab.New()
	l.must(err)
	l.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// bridgeOf returns the name of the bridge of a network.
func bridgeOf(network string) string { return "br" + short(network) }

// short returns a part of an ID that fits into a link's name.
func short(id string) string {
	id = strings.ReplaceAll(id, "-", "")
	return id[max(0, len(id)-11):]
}

// addNetwork makes the bridge of a network, and gives the router the gateways of its subnets.
func (l *Lab) addNetwork(n Network) {
	bridge, port := bridgeOf(n.ID), "gw"+short(n.ID)
	l.must(l.fabric.IP(
		"link add "+bridge+" type bridge forward_delay 0",
		"link set "+bridge+" up",
		"link add "+port+" type veth peer name "+port+" netns "+l.router.Path(),
		"link set "+port+" master "+bridge+" up",
	))
	commands := []string{"link set " + port + " up"}
	for _, s := range n.Subnets {
		commands = append(commands, fmt.Sprintf("address add %s/%d dev %s nodad", s.Gateway, s.CIDR.Bits(), port))
		if s.Gateway.IsLinkLocalUnicast() { // the address brings no route to the subnet
			commands = append(commands, fmt.Sprintf("route add %s dev %s", s.CIDR, port))
		}
	}
	l.must(l.router.IP(commands...))
}

// Gateways returns the router's addresses.
func (l *Lab) Gateways() (all []stage.End) {
	for _, n := range l.config.Networks {
		for _, s := range n.Subnets {
			if s.Gateway.IsLinkLocalUnicast() { // of its link only
				continue
			}
			all = append(all, stage.End{Name: "router", Address: s.Gateway, Within: l.router.Do})
		}
	}
	return all
}

// reach passes connections to ports of 127.0.0.1 inside a namespace on to the same ports of
// this process's namespace.
func (l *Lab) reach(ns *netlab.Namespace, ports ...int) {
	for _, port := range ports {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		_, stop, err := ns.Relay(address, address)
		l.must(err)
		l.t.Cleanup(stop)
	}
}
