// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/witness/findings"
)

func TestTwoObservationsAgree(t *testing.T) {
	g := NewWithT(t)
	at := func(seconds int, text string) findings.Seen {
		d := time.Duration(seconds) * time.Second
		return findings.Seen{Uptime: d, Wall: now().Add(d), Text: text}
	}
	memory := findings.Twice[string]{}
	observe := func(seconds int, text string, shown ...string) map[string]findings.Seen {
		all := map[string]findings.Seen{}
		for _, k := range shown {
			all[k] = at(seconds, text)
		}
		return memory.Observe(all, 20*time.Second)
	}
	g.Expect(observe(0, "none", "a", "b")).To(BeEmpty())
	g.Expect(observe(19, "none", "a", "b")).To(BeEmpty(), "too soon")
	g.Expect(observe(20, "none", "a")).To(Equal(map[string]findings.Seen{"a": at(0, "none")}))
	g.Expect(observe(40, "some", "a", "b")).To(HaveLen(1), "an observation between did not show b")
	g.Expect(observe(60, "some", "b")).To(Equal(map[string]findings.Seen{"b": at(40, "some")}))

	g.Expect(at(0, "none").And(at(20, "none"))).To(Equal("2026-11-23T12:00:00Z and 2026-11-23T12:00:20Z: none"))
	g.Expect(at(0, "none").And(at(20, "two"))).To(Equal("2026-11-23T12:00:00Z: none; 2026-11-23T12:00:20Z: two"))
}
