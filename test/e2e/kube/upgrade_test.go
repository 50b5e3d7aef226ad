// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// releaseEnv names the folder of the last release: its programs and its k8s/.
const releaseEnv = "E2E_UPGRADE"

// version is a release with its programs and manifests.
type version struct {
	name string
	bin  string // the folder of its programs
	root string // the folder of its k8s/
}

// versions returns the last release and this one.
func versions(t *testing.T) (last, this version) {
	t.Helper()
	mayRun(t)
	dir := os.Getenv(releaseEnv)
	if dir == "" {
		t.Skip("NOT RUN: " + releaseEnv + " is not set: make ci SUITE=e2e-upgrade builds the last release and sets it; none has a tag yet, or the clone is too shallow")
	}
	return version{"the last release", dir, dir}, version{"this release", os.Getenv(binEnv), filepath.Join("..", "..", "..")}
}

// upgraded is a cluster whose programs are replaced one after the other.
type upgraded struct {
	*cluster
	mode     string
	last     version
	this     version
	agents   []*agent
	operator *process
	accounts map[string]string            // the kubeconfig of a node's agent
	confs    map[string]map[string]string // contiv.conf of a version, by node
	told     map[string]string            // the address of each pod, by node and pod
}

// TestUpgrade follows docs/upgrade.md, and goes the way back: manifests, operator, agents
// one after the other. In between the versions run side by side. No pod loses its address,
// no address is held twice, and no node loses its ID or its podCIDR.
func TestUpgrade(t *testing.T) {
	last, this := versions(t)
	for _, mode := range []string{"external-kubernetes", "netresource-kubernetes"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // most of it waits
			u := &upgraded{
				cluster: openCluster(t, newPlane(t).kubeconfig), mode: mode, last: last, this: this,
				accounts: map[string]string{}, confs: map[string]map[string]string{}, told: map[string]string{},
			}
			u.manifests(last)
			u.operates(last)
			u.join("n1", last)
			u.join("n2", last)
			ids := u.identities()

			u.manifests(this)
			u.allocate("the new manifests below old programs")
			u.operates(this)
			u.allocate("a new operator, old agents")
			u.replace(u.agents[0], this)
			u.join("n3", last) // a node that the upgrade has not reached yet
			u.join("n4", this)
			u.replace(u.agents[1], this)
			u.replace(u.agents[2], this)
			u.g.Expect(u.identities()).To(HaveKeyWithValue("n1", ids["n1"]))
			u.g.Expect(u.identities()).To(HaveKeyWithValue("n2", ids["n2"]))
			ids = u.identities()

			u.replace(u.agents[0], last)
			u.operates(last)
			u.allocate("an old operator, new and old agents")
			u.manifests(last)
			for _, a := range u.agents[1:] {
				u.replace(a, last)
			}
			u.g.Expect(u.identities()).To(Equal(ids))
			u.release()
		})
	}
}

// manifests applies those of a version, whose configuration its agents have.
func (u *upgraded) manifests(v version) {
	u.t.Helper()
	u.applyModeOf(v.root, u.mode)
	if u.mode == "netresource-kubernetes" {
		_, err := u.kubectl("apply", "--validate=strict", "--filename="+filepath.Join(v.root, "k8s", u.mode, "addresspool.yaml"))
		u.g.Expect(err).NotTo(HaveOccurred())
	}
	u.confs[v.name] = map[string]string{}
	for _, node := range []string{"n1", "n2", "n3", "n4"} {
		if u.accounts[node] == "" {
			u.accounts[node] = u.agentAccount(node)
		}
		u.confs[v.name][node] = u.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": u.accounts[node]})
	}
}

// operates replaces the operator, as the Deployment does: the old one ends first.
func (u *upgraded) operates(v version) {
	u.t.Helper()
	if u.operator != nil {
		u.operator.stop(u.g)
	}
	u.operator = newOperatorOf(u.t, v.bin, u.mustAccount("cadastre-operator"), u.operatorArgs()...)
}

// join adds a node with the agent of a version.
func (u *upgraded) join(name string, v version) {
	u.t.Helper()
	u.create(name)
	a := prepareAgent(u.t, name, u.confs[v.name][name])
	a.bin = v.bin
	a.run()
	u.agents = append(u.agents, a)
	u.allocate("after " + name + " has joined with " + v.name)
}

// replace ends the agent of a node, and starts that of a version with its configuration.
func (u *upgraded) replace(a *agent, v version) {
	u.t.Helper()
	a.process.stop(u.g)
	u.g.Expect(os.WriteFile(a.conf, []byte(u.confs[v.name][a.name]), 0o600)).To(Succeed())
	a.bin = v.bin
	a.run()
	u.allocate(a.name + " with " + v.name)
}

// allocate adds a pod on each node, and asks again for all that are there: their addresses
// are as they were.
func (u *upgraded) allocate(when string) {
	u.t.Helper()
	for _, a := range u.agents {
		u.told[a.name+"/"+fmt.Sprint("p", len(u.told))] = ""
		for key, was := range u.told {
			node, pod, _ := strings.Cut(key, "/")
			if node != a.name {
				continue
			}
			var ips []string
			u.g.Eventually(func() (err error) { // a node waits for its podCIDR, or for a block
				ips, err = a.pod("ADD", pod)
				return err
			}, patience, pace).Should(Succeed(), "%s: %s", when, key)
			u.g.Expect(ips).To(HaveLen(1))
			if was != "" {
				u.g.Expect(ips[0]).To(Equal(was), "%s: %s", when, key)
			}
			u.told[key] = ips[0]
		}
	}
	holders := map[string]string{}
	for key, cidr := range u.told {
		ip, _, _ := strings.Cut(cidr, "/")
		u.g.Expect(holders).NotTo(HaveKey(ip), "%s: %s and %s", when, key, holders[ip])
		holders[ip] = key
	}
}

// identities returns the node ID and the podCIDR of each node.
func (u *upgraded) identities() map[string]string {
	u.t.Helper()
	all := map[string]string{}
	for _, a := range u.agents {
		s, err := a.status()
		u.g.Expect(err).NotTo(HaveOccurred())
		u.g.Expect(s.NodeID).NotTo(BeZero())
		all[a.name] = fmt.Sprint(s.NodeID, " ", u.node(a.name).Spec.PodCIDRs)
	}
	return all
}

// release deletes all pods.
func (u *upgraded) release() {
	u.t.Helper()
	for _, a := range u.agents {
		for key := range u.told {
			if node, pod, _ := strings.Cut(key, "/"); node == a.name {
				_, err := a.pod("DEL", pod)
				u.g.Expect(err).NotTo(HaveOccurred(), key)
			}
		}
		u.g.Expect(a.held()).To(BeEmpty())
	}
}

// TestUpgradeDatabase lets both versions open the database of the other one: each has every
// lease, and allocates beside them. The programs that an administrator and the runtime run
// beside an agent of the other version work: the CLI and the CNI plugin.
func TestUpgradeDatabase(t *testing.T) {
	last, this := versions(t)
	g := NewWithT(t)
	a := prepareAgent(t, "n1", "cadastre: {coolDown: 0s}\n")
	told := map[string]string{}
	for i, v := range []version{last, this, last, this} {
		a.bin = v.bin
		a.run()
		for pod, was := range told {
			g.Expect(a.add(pod)).To(Equal(was), "%s, step %d", v.name, i)
		}
		for _, with := range []version{last, this} {
			container := fmt.Sprint("c", i, strings.Fields(with.name)[1])
			address, err := a.plugin(with, "ADD", container)
			g.Expect(err).NotTo(HaveOccurred(), "the plugin of %s, the agent of %s", with.name, v.name)
			g.Expect(address).NotTo(BeElementOf(told))
			g.Expect(a.held()).To(HaveKey(container))
			_, err = a.plugin(with, "DEL", container)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.held()).NotTo(HaveKey(container))
			for _, command := range []string{"status", "leases", "events"} {
				cli := exec.CommandContext(t.Context(), filepath.Join(with.bin, "cadastre"), command, "--socket="+a.socket())
				out, err := cli.CombinedOutput()
				g.Expect(err).NotTo(HaveOccurred(), "%s %s, the agent of %s: %s", with.name, command, v.name, out)
			}
		}
		pod := fmt.Sprint("p", i)
		told[pod] = a.add(pod)
		g.Expect(slices.Compact(slices.Sorted(maps.Values(told)))).To(HaveLen(len(told)))
		a.process.stop(g)
	}
}

// plugin runs the CNI plugin of a version for a container, below another main plugin.
func (a *agent) plugin(v version, command, container string) (address string, err error) {
	cmd := exec.CommandContext(a.t.Context(), filepath.Join(v.bin, "cadastre-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+container, "CNI_NETNS=/run/netns/"+container,
		"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+container)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": %q}}`, a.socket()))
	out, err := cmd.Output()
	if err != nil || command != "ADD" {
		if err != nil {
			err = fmt.Errorf("%s of %s: %w: %s", command, container, err, out)
		}
		return "", err
	}
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return "", fmt.Errorf("read the result %s: %w", out, err)
	}
	if len(result.IPs) != 1 {
		return "", fmt.Errorf("%d addresses in %s, want one", len(result.IPs), out)
	}
	return result.IPs[0].Address, nil
}
