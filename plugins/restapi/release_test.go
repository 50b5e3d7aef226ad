// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// release asks for a release that is served, and returns the addresses that
// were freed, or would be, and what was skipped.
func (a *agent) release(body string) (freed, skipped []string) {
	code, answer := ask(a.handler, "POST", localapi.PathRelease, body)
	a.g.Expect(code).To(Equal(200), answer)
	var r localapi.ReleaseReply
	a.g.Expect(json.Unmarshal([]byte(answer), &r)).To(Succeed())
	freed = []string{}
	for _, l := range r.Leases {
		freed = append(freed, l.IP)
	}
	return freed, r.Skipped
}

func TestRelease(t *testing.T) {
	for _, c := range []struct {
		name, body string
		freed      []string
		skipped    string // a part of the one reason
		left       []string
	}{
		{"by address", `{"ip": "10.1.5.2"}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by an IPv4 address in IPv6 clothes", `{"ip": "::ffff:10.1.5.2"}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by address and pool", `{"ip": "10.1.5.2", "pool": "default"}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by address in another pool", `{"ip": "10.1.5.2", "pool": "blue"}`, []string{}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"an address that is free", `{"ip": "10.1.5.200"}`, []string{}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by container", `{"containerID": "c1"}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by container and interface", `{"containerID": "c1", "ifName": "eth0"}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by container and another interface", `{"containerID": "c1", "ifName": "net1"}`, []string{}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by pod, all its sandboxes", `{"pod": "ns/web-0"}`, []string{"10.1.5.2", "10.1.5.3"}, "", []string{"10.1.5.4", "10.1.5.77"}},
		{"by a pod of another namespace", `{"pod": "other/web-0"}`, []string{}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"only to look", `{"pod": "ns/web-0", "dryRun": true}`, []string{"10.1.5.2", "10.1.5.3"}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"the gateway", `{"ip": "10.1.5.1"}`, []string{}, "gateway", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"by the ledger's own container", `{"containerID": "10.1.5.0/24"}`, []string{}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"one that cools down", `{"ip": "10.1.5.5"}`, []string{}, "cools down", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"one in quarantine", `{"ip": "10.1.5.77"}`, []string{}, "a host uses it", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"one in quarantine, by its pod", `{"pod": "ns/stranger"}`, []string{}, "quarantined", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"one in quarantine, said so", `{"ip": "10.1.5.77", "quarantined": true}`, []string{"10.1.5.77"}, "", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4"}},
		{"quarantine is not asked for, but allowed", `{"ip": "10.1.5.2", "quarantined": true}`, []string{"10.1.5.2"}, "", []string{"10.1.5.3", "10.1.5.4", "10.1.5.77"}},
		{"those of a look before, and there are none", `{"ip": "10.1.5.2", "only": []}`, []string{}, "not there before", []string{"10.1.5.2", "10.1.5.3", "10.1.5.4", "10.1.5.77"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t)
			freed, skipped := a.release(c.body)
			g.Expect(freed).To(Equal(c.freed))
			if c.skipped == "" {
				g.Expect(skipped).To(BeEmpty())
			} else {
				g.Expect(skipped).To(ConsistOf(ContainSubstring(c.skipped)))
			}
			g.Expect(a.held()).To(Equal(c.left))
		})
	}
}

func TestReleasesThatAreRefused(t *testing.T) {
	for body, saying := range map[string]string{
		`{}`: "exactly one", `{"pool": "default"}`: "exactly one", `{"ip": "10.1.5.2", "pod": "ns/web-0"}`: "exactly one",
		`{"ip": "10.1.5"}`: `"10.1.5"`, `{"ip": "10.1.5.2/24"}`: `"10.1.5.2/24"`,
		`{"pod": "web-0"}`: `"web-0"`, `{"pod": "/web-0"}`: `"/web-0"`, `{"pod": "ns/"}`: `"ns/"`,
	} {
		g := NewWithT(t)
		a := newAgent(t)
		before := a.held()
		code, answer := ask(a.handler, "POST", localapi.PathRelease, body)
		g.Expect(code).To(Equal(http.StatusBadRequest), body)
		g.Expect(reason(g, answer)).To(ContainSubstring(saying))
		g.Expect(a.held()).To(Equal(before))
	}
}

// Pods go through the loop, which knows what else their addresses are for.
func TestPodsAreReleasedThroughTheLoop(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.release(`{"pod": "ns/web-0"}`)
	g.Expect(a.deleted).To(Equal([]string{"pods/c1/eth0", "pods/c2/eth0"}))
	a.release(`{"ip": "10.1.5.77", "quarantined": true}`)
	g.Expect(a.deleted).To(HaveLen(2), "that one is free")
}

// A lease of a pod that runs is released by force only: the agent asks the witnesses itself,
// whatever its caller has seen.
func TestAReleaseOfWhatIsInUseIsRefused(t *testing.T) {
	hidden := func(w *witness.World) { w.Kernel.Hidden = "net:[4026532001]" }
	for _, c := range []struct {
		name, body string
		change     []func(*witness.World)
		code       int
		saying     string
	}{
		{"a living pod", `{"pod": "ns/web-0"}`, nil, http.StatusConflict, "10.1.5.2 is on eth0 of pod ns/web-0 (/var/run/netns/c1): another one may get the address"},
		{"a living pod, by its address", `{"ip": "10.1.5.2"}`, nil, http.StatusConflict, "10.1.5.2 is on eth0"},
		{"a living pod, by force", `{"ip": "10.1.5.2", "force": true}`, nil, http.StatusOK, "10.1.5.2 is on eth0"},
		{"only to look", `{"ip": "10.1.5.2", "dryRun": true}`, nil, http.StatusOK, "nothing was released"},
		{"one that is gone", `{"containerID": "c1"}`, []func(*witness.World){gone("c1")}, http.StatusOK, ""},
		{"a sandbox that runs, and the kernel shows nothing", `{"containerID": "c1"}`, []func(*witness.World){noLink("c1")}, http.StatusConflict, "containerd has sandbox c1"},
		{"a quarantined address in use", `{"ip": "10.1.5.77", "quarantined": true}`, []func(*witness.World){uses("10.1.5.77")}, http.StatusConflict, "10.1.5.77 is on eth9"},
		{"a quarantined address without a use", `{"ip": "10.1.5.77", "quarantined": true}`, nil, http.StatusOK, ""},
		{"hidden namespaces", `{"containerID": "c1"}`, []func(*witness.World){gone("c1"), hidden}, http.StatusConflict, "hidden"},
		{"hidden namespaces, by force", `{"containerID": "c1", "force": true}`, []func(*witness.World){gone("c1"), hidden}, http.StatusOK, "hidden"},
		{"what is free already", `{"ip": "10.1.5.200"}`, []func(*witness.World){hidden}, http.StatusOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t)
			names := map[string]string{"c1": "web-0", "c2": "web-0", "c3": "web-1"}
			named := func(w *witness.World) {
				for i := range w.Runtime.Sandboxes {
					s := &w.Runtime.Sandboxes[i]
					s.Name, s.NetNS = names[s.ID], "/var/run/netns/"+s.ID
				}
			}
			h := a.with(func(d *restapi.Deps) {
				d.Checker = restapi.NewChecks(restapi.Checks{
					Ledger: a.book, Subnets: subnets{}, Witnesses: &rounds{worlds: []func() *witness.World{world(append(c.change, named)...)}},
				})
			})
			before := a.held()
			code, answer := ask(h, "POST", localapi.PathRelease, c.body)
			g.Expect(code).To(Equal(c.code), answer)
			g.Expect(answer).To(ContainSubstring(c.saying))
			if c.saying == "" {
				g.Expect(answer).To(ContainSubstring(`"inUse":[],"incomplete":[]`))
			}
			if c.code == http.StatusConflict {
				g.Expect(a.held()).To(Equal(before))
			}
		})
	}
}

// noLink removes the interface of a pod of the harness. Its sandbox stays.
func noLink(name string) func(w *witness.World) {
	return func(w *witness.World) {
		w.Kernel.Namespaces = slices.DeleteFunc(w.Kernel.Namespaces, func(ns witness.Namespace) bool {
			return slices.Contains(ns.Paths, "/var/run/netns/"+name)
		})
	}
}

// uses shows an address on a link of a namespace that no lease names.
func uses(addr string) func(w *witness.World) {
	return func(w *witness.World) {
		a := netip.MustParseAddr(addr)
		w.Kernel.Namespaces = append(w.Kernel.Namespaces, witness.Namespace{
			ID: witness.NamespaceID{Inode: 99}, Counts: true,
			Links: []witness.Link{{Index: 2, Name: "eth9", MAC: "02:00:00:00:00:09", Addrs: []netip.Prefix{netip.PrefixFrom(a, 24)}}},
		})
	}
}

// What a person has seen and said yes to is what is freed, and nothing that came since.
func TestOnlyWhatWasSeen(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	seen := a.book.ByKey(key("c1"))[0].Generation
	_, err := a.book.Release(ctx(), ledger.Selector{Key: key("c1")})
	g.Expect(err).NotTo(HaveOccurred())
	a.lease("c1", "web-0") // again, and another claim
	only, err := json.Marshal(localapi.ReleaseRequest{Pod: "ns/web-0", Only: []uint64{seen, a.book.ByKey(key("c2"))[0].Generation}})
	g.Expect(err).NotTo(HaveOccurred())
	freed, skipped := a.release(string(only))
	g.Expect(freed).To(Equal([]string{"10.1.5.3"}))
	g.Expect(skipped).To(ConsistOf(ContainSubstring("cools down"), ContainSubstring("not there before")))
	g.Expect(a.book.ByKey(key("c1"))).To(HaveLen(1))
}

func TestAReleaseThatFails(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.err = errInjected
	before := a.held()
	code, body := ask(a.handler, "POST", localapi.PathRelease, `{"containerID": "c1"}`)
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	g.Expect(reason(g, body)).To(ContainSubstring("injected"))
	g.Expect(a.held()).To(Equal(before))
}
