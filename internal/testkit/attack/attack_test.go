// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package attack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

func TestRecords(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "records")
	t.Setenv(attack.FileEnv, path)
	t.Run("counts", func(t *testing.T) {
		c := attack.Begin(t, attack.Kill)
		c.Add(2)
		c.Add(3)
		c.Except("released", 1)
		c.Except("released", 1)
	})
	t.Run("skips", func(t *testing.T) {
		attack.Begin(t, attack.Wipe)
		t.Skip("to see the record")
	})
	data, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	var all []attack.Record
	for line := range strings.Lines(string(data)) {
		var r attack.Record
		g.Expect(json.Unmarshal([]byte(line), &r)).To(Succeed())
		all = append(all, r)
	}
	g.Expect(all).To(Equal([]attack.Record{
		{Kind: attack.Kill, Test: "TestRecords/counts", Outcome: attack.Began},
		{Kind: attack.Kill, Test: "TestRecords/counts", Outcome: attack.Passed, Count: 5, Excepted: map[string]int{"released": 2}},
		{Kind: attack.Wipe, Test: "TestRecords/skips", Outcome: attack.Began},
		{Kind: attack.Wipe, Test: "TestRecords/skips", Outcome: attack.Skipped},
	}))
}

func TestWithoutAFileNothingIsRecorded(t *testing.T) {
	t.Setenv(attack.FileEnv, "")
	attack.Begin(t, attack.Kill).Add(1)
}

func TestKindsAreDescribedOnce(t *testing.T) {
	g := NewWithT(t)
	seen := map[attack.Kind]bool{}
	for _, a := range attack.All() {
		g.Expect(seen[a.Kind]).To(BeFalse(), "%s", a.Kind)
		seen[a.Kind] = true
		g.Expect(a.Checks).NotTo(BeZero(), "%s", a.Kind)
		g.Expect(a.Stated != "").To(Equal(a.Checks&attack.Late != 0), "%s", a.Kind)
	}
}
