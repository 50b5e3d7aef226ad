// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// acceptable answers what a database in doubt may not know.
func (a *fakeAgent) acceptable(r localapi.AcceptReport) {
	a.mux.HandleFunc(localapi.PathAccept, func(w http.ResponseWriter, req *http.Request) {
		answer := r
		answer.Accepted = req.Method == http.MethodPost && r.Reason != ""
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func TestAccept(t *testing.T) {
	g := NewWithT(t)
	a := bareAgent(t)
	a.acceptable(localapi.AcceptReport{
		Reason:   "the database came back older than it was",
		Noted:    localapi.Commit{Lineage: "aa", Sequence: 140, At: noon()},
		Database: localapi.Commit{Lineage: "aa", Sequence: 120, At: noon().Add(-time.Hour)},
		Leases:   make([]localapi.Lease, 31), Unleased: []localapi.Lease{{IP: "10.1.5.7", PodNamespace: "default", PodName: "web-0"}},
	})
	accept := func(args ...string) outcome {
		return callWith(t.Context(), a.socket, "", nil, append([]string{"accept"}, args...)...)
	}
	shown := `
why       the database came back older than it was
noted     commit 140 of 2026-03-04 12:00:00
database  commit 120 of 2026-03-04 11:00:00
-         31 leases in it
forgotten: what 20 commits after commit 120 changed
in use, and not leased to the pod that reports it:
  10.1.5.7 default/web-0
`
	got := accept()
	g.Expect(got.code).To(Equal(exitFailed))
	expectText(t, got.out, shown+"nothing was changed: to accept this database, repeat with --yes\n")
	got = accept("--yes")
	g.Expect(got.code).To(BeZero())
	expectText(t, got.out, shown+"accepted: new addresses are allocated again\n")
	g.Expect(accept("--yes", "-o", "wide").out).To(ContainSubstring("commit 140 of 2026-03-04 12:00:00, lineage aa"))
	g.Expect(accept("-o", "json").code).To(Equal(exitFailed))
}

func TestAcceptOfADatabaseThatIsNotInDoubt(t *testing.T) {
	a := bareAgent(t)
	a.acceptable(localapi.AcceptReport{Database: localapi.Commit{Sequence: 7}})
	for _, args := range [][]string{{"accept"}, {"accept", "--yes"}} {
		got := callWith(t.Context(), a.socket, "", nil, args...)
		NewWithT(t).Expect(got.code).To(BeZero())
		expectText(t, got.out, "\nnothing to accept: the database is the one that this agent wrote, at commit 7\n")
	}
}

func TestDowngrade(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := filepath.Join(dir, databaseName)
	downgrade := func() outcome {
		return callWith(context.Background(), "", "", nil, "database", "downgrade", "--state-dir", dir, "--run-dir", filepath.Join(dir, "run"), "-o", "json")
	}
	got := downgrade()
	g.Expect(got.code).To(Equal(exitFailed))
	g.Expect(got.err).To(And(ContainSubstring(path), ContainSubstring("no such file")))
	g.Expect(path).NotTo(BeAnExistingFile())

	f, err := bolt.OpenFile(path, bolt.FileOptions{Holder: "a test"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(downgrade().err).To(ContainSubstring("in use by a test"))
	g.Expect(f.Close()).To(Succeed())
	g.Expect(downgrade().out).To(MatchJSON(`{"database":"` + path + `","format":1,"kept":"` + path + `.format-2"}`))
	g.Expect(path + ".format-2").To(BeAnExistingFile())
	level, err := os.ReadFile(filepath.Join(dir, "run", "db.level"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(level)).To(HaveSuffix(" suspect\n"), "it had no notes")
	g.Expect(downgrade().err).To(ContainSubstring("it is of format 1 already"))
}
