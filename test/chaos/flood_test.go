// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
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
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// fewFiles is the limit of descriptors of an agent that is flooded, and manyCallers
// is how many connections each flood has.
const (
	fewFiles    = 256
	manyCallers = 1100
)

// newLimitedNode makes a node whose agent may open few files, with all listeners.
func newLimitedNode(t *testing.T) (n *node, rest string) {
	t.Helper()
	g := NewWithT(t)
	n = newNode(t, "")
	rest = freePort(g)
	certificate(g, n.dir)
	conf := fmt.Sprintf("%[1]s  docker: {enabled: true, socket: %[2]s/docker.sock}\n  rest: {listen: %[3]s, cert: %[2]s/cert.pem, key: %[2]s/key.pem}\n",
		strings.Replace(roomyConf, "cadastre: {reclaim: {enabled: false}}", "cadastre:\n  reclaim: {enabled: false}", 1), n.dir, rest)
	g.Expect(os.WriteFile(n.conf, []byte(conf), 0o600)).To(Succeed())
	n.program = filepath.Join(n.dir, "limited")
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d && exec %s \"$@\"\n", fewFiles, program("cadastre-agent"))
	g.Expect(os.WriteFile(n.program, []byte(script), 0o700)).To(Succeed())
	return n, rest
}

// freePort returns an address of this machine that is free at the moment.
func freePort(g Gomega) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	return l.Addr().String()
}

// certificate writes cert.pem and key.pem for 127.0.0.1.
func certificate(g Gomega, dir string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	der, err := x509.MarshalPKCS8PrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)).To(Succeed())
}

// trusting returns a TLS configuration that trusts the node's certificate alone.
func (n *node) trusting(g Gomega) *tls.Config {
	text, err := os.ReadFile(filepath.Join(n.dir, "cert.pem"))
	g.Expect(err).NotTo(HaveOccurred())
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1"}
	g.Expect(c.RootCAs.AppendCertsFromPEM(text)).To(BeTrue())
	return c
}

// flood is many callers of one listener, each of which sends half of a body.
type flood struct {
	conns []net.Conn
	sent  atomic.Int64 // callers whose half was taken
}

// open connects all callers. wrap returns the connection to talk on, which may block
// as long as the listener does not accept.
func (f *flood) open(g Gomega, network, address string, wrap func(net.Conn) net.Conn) {
	for range manyCallers {
		c, err := net.Dial(network, address)
		g.Expect(err).NotTo(HaveOccurred())
		f.conns = append(f.conns, c)
		go func() {
			if _, err := io.WriteString(wrap(c), "POST /IpamDriver.RequestPool HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"); err == nil {
				f.sent.Add(1)
			}
		}()
	}
}

func (f *flood) close() {
	for _, c := range f.conns {
		_ = c.Close()
	}
}

// TestHalfSentBodies: more callers than the agent has descriptors keep two of its
// listeners busy. Pods get their addresses meanwhile, and once the callers have gone
// both listeners answer.
func TestHalfSentBodies(t *testing.T) {
	g := NewWithT(t)
	n, rest := newLimitedNode(t)
	a := n.start(t)
	config := n.trusting(g)
	g.Eventually(filepath.Join(n.dir, "docker.sock"), patience).Should(BeAnExistingFile())

	g.Eventually(func() error {
		c, err := net.Dial("tcp", rest)
		if err == nil {
			err = c.Close()
		}
		return err
	}, patience).Should(Succeed(), "the listener opens after the sockets")

	docker, https := new(flood), new(flood)
	defer docker.close()
	defer https.close()
	https.open(g, "tcp", rest, func(c net.Conn) net.Conn { return tls.Client(c, config) })
	g.Eventually(https.sent.Load, patience).Should(BeNumerically(">", 0))
	docker.open(g, "unix", filepath.Join(n.dir, "docker.sock"), func(c net.Conn) net.Conn { return c })
	g.Eventually(docker.sent.Load, patience).Should(BeEquivalentTo(manyCallers))

	for i := range 50 {
		k, addresses := n.mustAdd(t, fmt.Sprintf("pod%d", i))
		g.Expect(addresses).NotTo(BeEmpty())
		_, fate, err := ask(n.socket(), k.request(Del), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(fate).To(Equal(Answered))
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.cmd.Process.Pid))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(open)).To(BeNumerically("<", fewFiles-64), "descriptors are left for whatever the agent opens")
	}
	var status localapi.Status
	g.Expect(get(n.socket(), localapi.PathStatus, &status)).To(Succeed())
	g.Expect(status.Ready).To(BeTrue(), status.ReadyError)

	docker.close()
	https.close()
	code, answer, err := exchange(filepath.Join(n.dir, "docker.sock"), http.MethodPost, "/Plugin.Activate", nil, leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(code).To(Equal(http.StatusOK), "%s", answer)
	client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	r, err := client.Get("https://" + rest + localapi.PathHealthz)
	g.Expect(err).NotTo(HaveOccurred())
	defer r.Body.Close()
	g.Expect(r.StatusCode).To(Equal(http.StatusOK))
}
