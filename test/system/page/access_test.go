// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// paths returns everything that the page asks a server for.
func paths() []string {
	return []string{
		"/page/", "/page/page.js", "/v1/map", "/v1/map?pool=default&prefix=10.1.0.0/16", "/v1/map/search?q=a", "/v1/map/findings",
		"/v1/explain?pool=default", "/v1/events?follow=true&last=1", "/v1/status",
	}
}

// writeCertificate writes a certificate for 127.0.0.1, which is its own authority, and its
// key.
func writeCertificate(g Gomega, dir string) (cert, key string) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	g.Expect(err).NotTo(HaveOccurred())
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	g.Expect(err).NotTo(HaveOccurred())
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	g.Expect(os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)).To(Succeed())
	return cert, key
}

// clientOf returns a client that trusts cert, with the certificates of its own.
func clientOf(g Gomega, cert string, own ...tls.Certificate) *http.Client {
	text, err := os.ReadFile(cert)
	g.Expect(err).NotTo(HaveOccurred())
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: own}
	g.Expect(config.RootCAs.AppendCertsFromPEM(text)).To(BeTrue())
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
}

// status returns the status of an answer, or the error of the connection. The body of a
// stream is not read.
func status(ctx context.Context, client *http.Client, method, url string) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err.Error()
	}
	answer, err := client.Do(r)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	return fmt.Sprint(answer.StatusCode)
}

// changes returns requests that would change something on an agent.
func changes() []string {
	return []string{"/v1/release", "/v1/resync", "/v1/repair", "/v1/apply", "/v1/cni", "/v1/map"}
}

// testAccess asks from outside: without a certificate nothing is answered, neither the page nor
// the stream of events, and with one nothing can be changed.
func testAccess(t *testing.T, g Gomega, origin, cert, key string, refused OmegaMatcher) {
	own, err := tls.LoadX509KeyPair(cert, key)
	g.Expect(err).NotTo(HaveOccurred())
	with, without := clientOf(g, cert, own), clientOf(g, cert)
	g.Eventually(func() string { return status(t.Context(), with, http.MethodGet, origin+"/v1/status") }, patience).Should(Equal("200"))
	for _, path := range paths() {
		g.Expect(status(t.Context(), without, http.MethodGet, origin+path)).To(refused, path)
		g.Expect(status(t.Context(), with, http.MethodGet, origin+path)).To(Or(Equal("200"), Equal("400")), path)
	}
	for _, path := range changes() {
		g.Expect(status(t.Context(), with, http.MethodPost, origin+path)).To(Or(Equal("404"), Equal("405")), path)
	}
}

// testAgentAccess runs a second agent, with the listener of cadastre.rest.
func testAgentAccess(t *testing.T, root, bin string) {
	g := NewWithT(t)
	dir := t.TempDir()
	cert, key := writeCertificate(g, dir)
	text, err := os.ReadFile(filepath.Join(root, "conf/contiv.conf"))
	g.Expect(err).NotTo(HaveOccurred())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := l.Addr().String()
	g.Expect(l.Close()).To(Succeed())
	config := filepath.Join(dir, "contiv.conf")
	g.Expect(os.WriteFile(config, fmt.Appendf(text, "  rest:\n    listen: %s\n    cert: %s\n    key: %s\n    clientCA: %s\n",
		address, cert, key, cert), 0o600)).To(Succeed())
	a := launchAgent(t, g, root, bin, config)
	testAccess(t, g, "https://"+address, cert, key, ContainSubstring("certificate required"))

	page, err := url.Parse(servePage(t, g, a))
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range paths() {
		g.Expect(status(t.Context(), http.DefaultClient, http.MethodGet, "http://"+page.Host+path)).To(Equal("403"), path)
	}
}

// testOperatorAccess runs a second operator, with TLS, which waits to lead.
func testOperatorAccess(t *testing.T, p *plane) {
	g := NewWithT(t)
	cert, key := writeCertificate(g, t.TempDir())
	address := p.startOperator(t, g, "--tls-cert-file="+cert, "--tls-private-key-file="+key, "--client-ca-file="+cert)
	testAccess(t, g, "https://"+address, cert, key, Equal("403"))
	answer, err := clientOf(g, cert).Get("https://" + address + "/livez")
	g.Expect(err).NotTo(HaveOccurred(), "probes need no certificate")
	_, _ = io.Copy(io.Discard, answer.Body)
	g.Expect(answer.Body.Close()).To(Succeed())
}
