// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// kvdbPrefix is the prefix of the cluster's state in the etcd of a test.
const kvdbPrefix = "/cadastre-e2e/"

// viaEtcd is the configuration of nodes that follow podCIDRs through an etcd.
func viaEtcd(server *etcdtest.Server) string {
	return fmt.Sprintf(`
ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.64.0.0/11}
cadastre:
  coolDown: 0s
  nodeIDs: {quarantine: 0s}
  kvdb: {type: etcd, endpoints: ["%s"], prefix: %s}
  controller: {delayLocalResync: 1s, remoteDBProbingInterval: 1s, delayAfterErrorHealing: 100ms}
`, server.Endpoint(), kvdbPrefix)
}

// viaAPIServer is that of nodes that need no etcd.
func viaAPIServer(kubeconfig string) string {
	return fmt.Sprintf(`
ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.64.0.0/11}
cadastre:
  coolDown: 0s
  nodeIDs: {quarantine: 0s}
  kvdb: {type: kubernetes, kubeconfig: %s}
  controller: {delayLocalResync: 1s, remoteDBProbingInterval: 1s, delayAfterErrorHealing: 100ms}
`, kubeconfig)
}

// agent is a node's agent, and where it lives.
type agent struct {
	t       *testing.T
	g       *WithT
	name    string
	dir     string
	conf    string
	flags   []string
	bin     string // the folder of the program
	http    *http.Client
	process *process // the one that was started last
}

// newAgent starts the agent of a node and waits until it answers. It need not
// be ready: that takes a podCIDR.
func newAgent(t *testing.T, name, conf string, flags ...string) *agent {
	t.Helper()
	a := prepareAgent(t, name, conf, flags...)
	a.run()
	return a
}

// prepareAgent returns the agent of a node, which does not run yet.
func prepareAgent(t *testing.T, name, conf string, flags ...string) *agent {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "ek") // short, as the path of a socket is
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &agent{t: t, g: g, name: name, dir: dir, conf: filepath.Join(dir, "contiv.conf"), flags: flags, bin: os.Getenv(binEnv)}
	a.http = &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", a.socket())
		},
	}}
	t.Cleanup(a.http.CloseIdleConnections)
	g.Expect(os.WriteFile(a.conf, []byte(conf), 0o600)).To(Succeed())
	return a
}

func (a *agent) socket() string { return filepath.Join(a.dir, "r", "agent.sock") }

// run starts the agent, again or for the first time.
func (a *agent) run() {
	a.t.Helper()
	args := append([]string{"--config", a.conf, "--node-name", a.name, "--state-dir", filepath.Join(a.dir, "s"), "--run-dir", filepath.Join(a.dir, "r")}, a.flags...)
	a.process = startProcess(a.t, "cadastre-agent "+a.name, exec.Command(filepath.Join(a.bin, "cadastre-agent"), args...))
	a.g.Eventually(func() error {
		_, err := a.status()
		return err
	}, patience, pace).Should(Succeed(), "the agent of %s does not answer: %s", a.name, a.process.said())
}

// request asks the local API; an answer that is not 200 is an error.
func (a *agent) request(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, "http://agent"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return errors.Join(err, a.process.hasEnded())
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

func (a *agent) status() (s localapi.Status, err error) {
	err = a.request(http.MethodGet, localapi.PathStatus, nil, &s)
	return s, err
}

// blocks are "10.0.0.0/24 active" and so on, of the pod network.
func (a *agent) blocks() (all []string, err error) {
	s, err := a.status()
	for _, b := range s.Blocks {
		if b.Pool == cni.DefaultPool {
			all = append(all, b.Block+" "+b.State)
		}
	}
	slices.Sort(all)
	return all, err
}

// awaitBlocks waits until the agent has these blocks and, where one of them is
// active, is ready.
func (a *agent) awaitBlocks(want ...string) {
	a.t.Helper()
	a.g.Eventually(func(g Gomega) {
		s, err := a.status()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(a.blocks()).To(ConsistOf(want), "%s %s", s.ReadyError, s.KVDBError)
		g.Expect(s.Ready).To(Equal(slices.ContainsFunc(want, func(b string) bool { return strings.HasSuffix(b, " active") })), s.ReadyError)
	}, patience, pace).Should(Succeed())
}

// pod does one CNI command for a pod, and answers its addresses.
func (a *agent) pod(command, name string) (ips []string, err error) {
	reply, err := cniclient.Ask(a.t.Context(), a.http.Do, cni.Request{
		Command: command, Network: "net", ContainerID: "c-" + name, IfName: "eth0", Netns: "/run/netns/" + name, Pod: cni.Pod{Namespace: "default", Name: name},
	})
	if refusal, ok := errors.AsType[*cni.Error](err); ok {
		err = fmt.Errorf("%s of %s: code %d: %s", command, name, refusal.Code, refusal.Msg)
	}
	for _, ip := range reply.IPs {
		ips = append(ips, ip.Address)
	}
	return ips, err
}

// add gives a pod its address.
func (a *agent) add(name string) string {
	a.t.Helper()
	ips, err := a.pod("ADD", name)
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(ips).To(HaveLen(1))
	return ips[0]
}

// held are the addresses of pods, by container.
func (a *agent) held() map[string]string {
	a.t.Helper()
	var all []localapi.Lease
	a.g.Expect(a.request(http.MethodGet, localapi.PathLeases, nil, &all)).To(Succeed())
	held := map[string]string{}
	for _, l := range all {
		if l.Purpose == "pod" && l.State == "held" {
			held[l.ContainerID] = l.IP
		}
	}
	return held
}

// changes are the changes of this node's podCIDR that were handled, and when:
// the last for each CIDR.
func (a *agent) changes() (map[string]time.Time, error) {
	var all []struct {
		Name, Description, Error string
		ProcessingEnd            time.Time
	}
	if err := a.request(http.MethodGet, localapi.PathEventHistory, nil, &all); err != nil {
		return nil, err
	}
	at := map[string]time.Time{}
	for _, r := range all {
		_, cidr, is := strings.Cut(r.Description, "LocalPodCIDR: ")
		if is && r.Name == "Pod CIDR Change" && r.Error == "" {
			at[strings.TrimSpace(cidr)] = r.ProcessingEnd
		}
	}
	return at, nil
}

// sink reads the agent's southbound values as text.
func (a *agent) sink(into *string) error {
	var all json.RawMessage
	err := a.request(http.MethodGet, localapi.PathSink, nil, &all)
	*into = string(all)
	return err
}
