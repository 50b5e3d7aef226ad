// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// written is a file with the text.
func written(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	NewWithT(t).Expect(os.WriteFile(name, []byte(text), 0o600)).To(Succeed())
	return name
}

// clientFiles of a server that asks for certificates.
func clientFiles(server *etcdtest.Server) (f etcd.Files) {
	f.CA, f.Cert, f.Key = server.ClientFiles()
	return f
}

func TestFilesOpenAStore(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t, etcdtest.TLS())
	cfg := at(server.Endpoint())
	g.Expect(clientFiles(server).Read(&cfg)).To(Succeed())
	g.Expect(cfg.TLS.MinVersion).To(BeEquivalentTo(tls.VersionTLS12))
	for what, err := range everything(t.Context(), open(t, cfg)) {
		g.Expect(err).NotTo(HaveOccurred(), what)
	}
	stranger := clientFiles(etcdtest.Start(t, etcdtest.TLS()))
	for name, spoil := range map[string]func(*etcd.Files){
		"the authority of another server": func(f *etcd.Files) { f.CA = stranger.CA },
		"another authority's certificate": func(f *etcd.Files) { f.Cert, f.Key = stranger.Cert, stranger.Key },
	} {
		wrong, files := at(server.Endpoint()), clientFiles(server)
		spoil(&files)
		g.Expect(files.Read(&wrong)).To(Succeed(), name)
		wrong.RequestTimeout = time.Second
		g.Expect(open(t, wrong).Probe(t.Context())).NotTo(Succeed(), name)
	}
}

func TestPasswordsInFiles(t *testing.T) {
	for text, want := range map[string]string{
		"secret": "secret", "secret\n": "secret", "secret\r\n": "secret", " with spaces \n": " with spaces ", "in two\nlines": "in two\nlines",
	} {
		g := NewWithT(t)
		var cfg etcd.Config
		g.Expect(etcd.Files{Password: written(t, text)}.Read(&cfg)).To(Succeed(), "%q", text)
		g.Expect(cfg).To(Equal(etcd.Config{Password: want}), "%q, and no TLS", text)
	}
}

// TestFilesThatCannotBeUsed: the error says which file it is, and where.
func TestFilesThatCannotBeUsed(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.TLS())
	other := clientFiles(etcdtest.Start(t, etcdtest.TLS()))
	missing := filepath.Join(t.TempDir(), "missing")
	damaged := written(t, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	for name, c := range map[string]struct {
		spoil func(*etcd.Files)
		file  etcd.File
		path  func(etcd.Files) string // what the error names
		says  string
	}{
		"no CA":                  {func(f *etcd.Files) { f.CA = missing }, etcd.FileCA, caOf, "no such file"},
		"a folder as CA":         {func(f *etcd.Files) { f.CA = t.TempDir() }, etcd.FileCA, caOf, "is a directory"},
		"a CA without PEM":       {func(f *etcd.Files) { f.CA = written(t, "certificate") }, etcd.FileCA, caOf, "has no certificate"},
		"a damaged CA":           {func(f *etcd.Files) { f.CA = damaged }, etcd.FileCA, caOf, "has no certificate"},
		"a key as CA":            {func(f *etcd.Files) { f.CA = f.Key }, etcd.FileCA, caOf, "has no certificate"},
		"no certificate":         {func(f *etcd.Files) { f.Cert = missing }, etcd.FileCert, nil, missing},
		"no key":                 {func(f *etcd.Files) { f.Key = missing }, etcd.FileCert, nil, missing},
		"a damaged certificate":  {func(f *etcd.Files) { f.Cert = damaged }, etcd.FileCert, nil, "x509"},
		"a key without PEM":      {func(f *etcd.Files) { f.Key = written(t, "key") }, etcd.FileCert, nil, "PEM"},
		"another's key":          {func(f *etcd.Files) { f.Key = other.Key }, etcd.FileCert, nil, "does not match"},
		"the two exchanged":      {func(f *etcd.Files) { f.Cert, f.Key = f.Key, f.Cert }, etcd.FileCert, nil, "PEM"},
		"a certificate alone":    {func(f *etcd.Files) { f.Key = "" }, etcd.FileCert, nil, "no such file"},
		"a key alone":            {func(f *etcd.Files) { f.CA, f.Cert = "", "" }, etcd.FileCert, nil, "no such file"},
		"no password":            {func(f *etcd.Files) { f.Password = missing }, etcd.FilePassword, passwordOf, "no such file"},
		"an empty password":      {func(f *etcd.Files) { f.Password = written(t, "") }, etcd.FilePassword, passwordOf, "is empty"},
		"a password of one line": {func(f *etcd.Files) { f.Password = written(t, "\r\n") }, etcd.FilePassword, passwordOf, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			files := clientFiles(server)
			files.Password = written(t, "secret")
			c.spoil(&files)
			before := etcd.Config{TLS: &tls.Config{ServerName: "as it was"}, Password: "as it was"}
			cfg := before
			err := files.Read(&cfg)
			bad := new(etcd.FileError)
			g.Expect(errors.As(err, &bad)).To(BeTrue(), "%v", err)
			g.Expect(bad.File).To(Equal(c.file))
			g.Expect(bad.Err).To(MatchError(ContainSubstring(c.says)))
			g.Expect(err).To(MatchError(HavePrefix(string(c.file) + ": ")))
			if c.path != nil {
				g.Expect(bad.Err).To(MatchError(ContainSubstring(c.path(files))))
			}
			g.Expect(err).NotTo(MatchError(ContainSubstring("secret")))
			g.Expect(cfg).To(Equal(before))
		})
	}
}

func caOf(f etcd.Files) string       { return f.CA }
func passwordOf(f etcd.Files) string { return f.Password }
