// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cadastre/cadastre/ipam"
)

// counted is an IPAM in host scope with metrics, after some calls.
func counted(g Gomega) *ipam.Metrics {
	metrics := ipam.NewMetrics()
	m, err := ipam.New(context.Background(), ipam.Deps{
		Name: "n1", Config: mode("kubernetes"), Node: node{"10.1.5.0/29", "fd00::/125"}, Metrics: metrics,
	})
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		_, _, err = m.AllocateNext("", "default/a")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(m.AllocateIPString("10.1.5.6", "default/b")).To(Succeed())
	g.Expect(m.ReleaseIPString("10.1.5.6")).To(Succeed())
	g.Expect(m.ReleaseIPString("10.1.5.6")).To(Succeed(), "a free address is not counted")
	g.Expect(m.ReleaseIPString("default/a")).To(Succeed())
	c := ipam.NewServer(m)
	for range 2 { // a repeated ADD allocates nothing
		_, _, err = c.ADD("ipv4", "default/c", "container", "")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(m.AllocateIPString("10.9.9.9", "default/d")).NotTo(Succeed())
	for range 6 {
		_, _, err = m.AllocateNext("ipv4", "default/e")
	}
	g.Expect(err).To(HaveOccurred())
	return metrics
}

func TestMetricsHaveThePublishedNames(t *testing.T) {
	g := NewWithT(t)
	metrics := counted(g)
	r := prometheus.NewPedanticRegistry()
	g.Expect(r.Register(metrics)).To(Succeed())
	family := func(name, help, typ string, lines ...string) string {
		text := "# HELP " + name + " " + help + "\n# TYPE " + name + " " + typ + "\n"
		for _, l := range lines {
			text += name + l + "\n"
		}
		return text
	}
	const (
		events   = "Addresses that were allocated or released, by action (allocate, release) and family."
		errs     = "Calls that failed, by error (exhausted, refused, disabled, other), kind and name of the resource."
		capacity = "Addresses that the node can allocate, and those that it has allocated, by family."
	)
	want := ""
	for _, name := range []string{"cadastre_ipam_events_total", "cilium_ipam_events_total", "cce_ipam_events_total"} {
		want += family(name, events, "counter",
			`{action="allocate",family="ipv4"} 9`, `{action="allocate",family="ipv6"} 2`,
			`{action="release",family="ipv4"} 3`, `{action="release",family="ipv6"} 2`)
	}
	for _, name := range []string{"cadastre_ipam_errors_total", "cce_ipam_error_counter"} {
		want += family(name, errs, "counter",
			`{error="exhausted",kind="NetResourceSet",name="n1"} 1`, `{error="other",kind="NetResourceSet",name="n1"} 1`)
	}
	for _, name := range []string{"cadastre_ipam_addresses", "cilium_ip_addresses"} {
		want += family(name, "Allocated addresses by family.", "gauge", `{family="ipv4"} 6`, `{family="ipv6"} 0`)
	}
	for _, name := range []string{"cadastre_ipam_capacity", "cilium_ipam_capacity"} {
		want += family(name, capacity, "gauge", `{family="ipv4"} 6`, `{family="ipv6"} 6`)
	}
	want += family("cadastre_ipam_cooling_addresses", "Released addresses that are not allocated again yet, by family.",
		"gauge", `{family="ipv4"} 0`, `{family="ipv6"} 0`)
	g.Expect(testutil.GatherAndCompare(r, strings.NewReader(want))).To(Succeed())
}

// TestOurMetricsFollowPrometheusConventions leaves the published names out: one of them
// does not end in _total.
func TestOurMetricsFollowPrometheusConventions(t *testing.T) {
	g := NewWithT(t)
	r := prometheus.NewPedanticRegistry()
	g.Expect(r.Register(counted(g))).To(Succeed())
	all, err := r.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var ours []string
	for _, f := range all {
		if strings.HasPrefix(f.GetName(), "cadastre_") {
			ours = append(ours, f.GetName())
		}
	}
	g.Expect(ours).To(HaveLen(5))
	problems, err := testutil.GatherAndLint(r, ours...)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(problems).To(BeEmpty())
}
