// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// metric returns the value of a metric.
func (m *machine) metric(name string) string {
	resp, err := via(m.socket).Get("http://localhost/metrics")
	m.Expect(err).NotTo(HaveOccurred())
	out, err := io.ReadAll(resp.Body)
	m.Expect(errors.Join(err, resp.Body.Close())).To(Succeed())
	for _, line := range strings.Split(string(out), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return value
		}
	}
	return ""
}

// A contiv.conf with another pod network than the cluster uses is a problem in the
// status and a metric as long as it differs.
func TestAConfigurationThatDiffers(t *testing.T) {
	const right = "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}"
	m := newMachine(t, right)
	for _, x := range []struct{ conf, problem, metric string }{
		{right, "", "0"},
		{strings.Replace(right, "10.1.", "10.9.", 1), "problem     contiv.conf has podSubnetCIDR 10.9.0.0/16 (a /24 for each node), but the cluster has pool default with 10.1.0.0/16 (a /24 for each node), " +
			"and the cluster's pools count: write the ranges of one of them into contiv.conf, or change the pools with cadastre apply\n", "1"},
		{right, "", "0"},
	} {
		m.write("contiv.conf", x.conf)
		stop := m.startAgent()
		status := m.cadastre("status").Out
		if x.problem == "" {
			m.Expect(status).NotTo(ContainSubstring("problem "))
		} else {
			m.Expect(status).To(ContainSubstring(x.problem))
		}
		m.Expect(m.metric("cadastre_config_differs")).To(Equal(x.metric))
		stop()
	}
}
