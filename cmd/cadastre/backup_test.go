// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// sends is an agent whose backup is content, with a trailer that has its length, or says why
// it failed.
func sends(t *testing.T, content, trailer string, abort bool) *fakeAgent {
	agent := bareAgent(t)
	agent.mux.HandleFunc(localapi.PathBackup, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Bytes, X-Error")
		_, _ = io.WriteString(w, content)
		if abort {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if why, failed := strings.CutPrefix(trailer, "failed: "); failed {
			w.Header().Set("X-Error", why)
		} else if trailer != "" {
			w.Header().Set("X-Bytes", trailer)
		}
	})
	return agent
}

func TestBackup(t *testing.T) {
	g := NewWithT(t)
	agent, file := sends(t, "a database", "10", false), filepath.Join(t.TempDir(), "copy.db")
	g.Expect(call(t, agent.socket, "", "backup", file)).To(Equal(outcome{0, "wrote " + file + ", 10 bytes\n", ""}))
	g.Expect(os.ReadFile(file)).To(BeEquivalentTo("a database"))
	info, err := os.Stat(file)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))

	got := call(t, agent.socket, "", "backup", file)
	g.Expect(got).To(Equal(outcome{exitFailed, "", "cadastre: backup: FILE: \"" + file + "\" exists: name another file, or overwrite it with --force\n"}))
	g.Expect(os.WriteFile(file, []byte("old"), 0o600)).To(Succeed())
	g.Expect(call(t, agent.socket, "", "backup", file, "--force", "-o", "json").out).To(MatchJSON(`{"file":"` + file + `","bytes":10}`))
	g.Expect(os.ReadFile(file)).To(BeEquivalentTo("a database"))

	g.Expect(call(t, agent.socket, "", "backup", "-")).To(Equal(outcome{0, "a database", ""}))
	g.Expect(os.ReadDir(filepath.Dir(file))).To(HaveLen(1))
}

// A backup that is not whole is none: nothing is left, nothing is overwritten.
func TestBackupFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "copy.db")
	for _, c := range []struct {
		name, file, want string
		agent            *fakeAgent
	}{
		{"cut off", file, "broke off its answer: it may have stopped, see its log", sends(t, "half of", "", true)},
		{"fewer bytes than there were", file, `the agent sent 4 bytes, but says that the database has "10": try again`, sends(t, "some", "10", false)},
		{"a failure", file, "the agent failed after 4 bytes: read page 7: input/output error", sends(t, "some", "failed: read page 7: input/output error", false)},
		{"no length", file, `the agent sent 4 bytes, but says that the database has ""`, sends(t, "some", "", false)},
		{"no bytes", file, "the agent sent 0 bytes", sends(t, "", "", false)},
		{"a directory", dir, "is a directory: name a file in it", sends(t, "a database", "10", false)},
		{"no such directory", filepath.Join(dir, "none", "copy.db"), "no such file or directory", sends(t, "a database", "10", false)},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(os.WriteFile(file, []byte("old"), 0o600)).To(Succeed())
			got := call(t, c.agent.socket, "", "backup", c.file, "--force")
			g.Expect(got.code).To(Equal(exitFailed))
			g.Expect(got.out).To(BeEmpty())
			g.Expect(got.err).To(And(HavePrefix("cadastre: backup: "), ContainSubstring(c.want)))
			g.Expect(strings.Count(got.err, "\n")).To(Equal(1))
			g.Expect(os.ReadFile(file)).To(BeEquivalentTo("old"))
			g.Expect(os.ReadDir(dir)).To(HaveLen(1))
		})
	}
}
