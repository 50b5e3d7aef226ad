// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// listeners returns what a process listens on: addresses of TCP and UDP, and names of unix
// sockets, of which one that begins with @ has no file.
func listeners(g Gomega, pid int) (all []string) {
	inodes := map[string]bool{}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []struct {
		name                 string
		inode, state, accept int // columns
		listens              string
	}{{"tcp", 9, 3, 1, "0A"}, {"tcp6", 9, 3, 1, "0A"}, {"udp", 9, 3, 1, "07"}, {"udp6", 9, 3, 1, "07"}, {"unix", 6, 3, 7, "00010000"}} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table.name))
		g.Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > table.inode && inodes[f[table.inode]] && f[table.state] == table.listens {
				all = append(all, table.name+" "+strings.Join(f[min(table.accept, len(f)):min(table.accept+1, len(f))], ""))
			}
		}
	}
	return all
}

// A pod with hostNetwork shares the network namespace of the node, not its files: an agent
// listens on nothing that it could reach, unless a listener is configured.
func TestAnAgentListensOnItsSocketOnly(t *testing.T) {
	address := freePort(NewWithT(t))
	n := newNode(t, "node-1", fmt.Sprintf("ipamConfig: {podSubnetCIDR: 10.1.0.0/16}\ncadastre: {metrics: {enabled: true, listen: %q}}\n", address))
	n.add(sandbox{"web", "s1", "eth0"})
	port := netip.MustParseAddrPort(address).Port()
	n.Eventually(func() []string { return listeners(n, n.process.PID()) }, patience).
		Should(ConsistOf("unix "+n.Socket()+".new", fmt.Sprintf("tcp 0100007F:%04X", port)), "the socket was renamed")
	n.kill()
	n.configure("ipamConfig: {podSubnetCIDR: 10.1.0.0/16}")
	n.start(t)
	n.Expect(listeners(n, n.process.PID())).To(ConsistOf("unix " + n.Socket() + ".new"))
}

// freePort returns an address on which nothing listens.
func freePort(g Gomega) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	return l.Addr().String()
}

// certify writes a certificate for 127.0.0.1 and returns it.
func certify(g Gomega, dir, name string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	g.Expect(os.WriteFile(filepath.Join(dir, name+".pem"), cert, 0o600)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(dir, name+".key"), private, 0o600)).To(Succeed())
	pair, err := tls.X509KeyPair(cert, private)
	g.Expect(err).NotTo(HaveOccurred())
	return pair
}

// The listener for the network shows leases only to a caller with a certificate of the
// configured authority, and changes nothing for it either.
func TestTheNetworkOnlyReads(t *testing.T) {
	g, dir := NewWithT(t), t.TempDir()
	server, client, stranger := certify(g, dir, "server"), certify(g, dir, "client"), certify(g, dir, "stranger")
	address := freePort(g)
	n := newNode(t, "node-1", fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre: {rest: {listen: %q, cert: %[2]s/server.pem, key: %[2]s/server.key, clientCA: %[2]s/client.pem}}
`, address, dir))
	n.add(sandbox{"web", "s1", "eth0"})
	roots := x509.NewCertPool()
	roots.AddCert(server.Leaf)
	ask := func(method, path string, own ...tls.Certificate) (int, error) {
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: own}}
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+address+path, strings.NewReader(`{"ip": "10.1.1.2"}`))
		g.Expect(err).NotTo(HaveOccurred())
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	g.Eventually(func() (int, error) { return ask("GET", "/v1/leases", client) }, patience).Should(Equal(200))
	for name, own := range map[string][]tls.Certificate{"none": nil, "of another authority": {stranger}} {
		_, err := ask("GET", "/v1/leases", own...)
		g.Expect(err).To(HaveOccurred(), name)
	}
	for _, request := range [][2]string{
		{"POST", "/v1/release"}, {"POST", "/v1/cni"}, {"POST", "/v1/resync"}, {"POST", "/v1/accept"}, {"POST", "/v1/pools/apply"},
		{"POST", "/v1/nodes/release"}, {"POST", "/controller/resync"}, {"GET", "/v1/backup"}, {"GET", "/v1/logs"}, {"GET", "/v1/check"},
	} {
		code, err := ask(request[0], request[1], client)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(code).To(BeElementOf(http.StatusNotFound, http.StatusMethodNotAllowed), request[1])
	}
	resp, err := http.Get("http://" + address + "/v1/leases")
	if err == nil { // plain text is answered with an error, without a lease
		g.Expect(resp.StatusCode).To(Equal(http.StatusBadRequest))
		g.Expect(resp.Body.Close()).To(Succeed())
	}
	g.Expect(n.holders(t)).To(HaveLen(1))
}

// A client of the store that may write every key replaces each value by garbage, and then
// deletes all of them. The agents keep their leases and go on to serve them, none of them
// ends, and no address is held by two nodes.
func TestAHostileClientOfTheStore(t *testing.T) {
	server := etcdtest.Start(t)
	conf := fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre: {nodeIDs: {quarantine: 0s}, kvdb: {type: etcd, endpoints: [%q]}, controller: {remoteDBProbingInterval: 1s, delayLocalResync: 100ms}}
`, server.Endpoint())
	nodes := []*node{newNode(t, "node-1", conf), newNode(t, "node-2", conf)}
	g := NewWithT(t)
	owner := map[string]int{}
	for i, n := range nodes {
		owner[n.add(sandbox{"web", "s1", "eth0"}).String()] = i
	}
	g.Expect(owner).To(HaveLen(2))
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/cadastre/"})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = store.Close() })

	for _, attack := range []func(key string) kvdb.Op{
		func(key string) kvdb.Op { return kvdb.Put(key, []byte("\xff\x00garbage")) },
		func(key string) kvdb.Op { return kvdb.Put(key, bytes.Repeat([]byte{0x0a}, 1000)) },
		func(key string) kvdb.Op { return kvdb.Put(key, nil) },
		kvdb.Delete,
	} {
		all, _, err := store.List(t.Context(), "")
		g.Expect(err).NotTo(HaveOccurred())
		for _, x := range all {
			_, err := store.Txn(t.Context(), nil, []kvdb.Op{attack(x.Key)})
			g.Expect(err).NotTo(HaveOccurred())
		}
		for i, n := range nodes {
			g.Expect(n.process.Done()).NotTo(BeClosed())
			for address := range n.holders(t) {
				g.Expect(owner).To(HaveKeyWithValue(address, i))
			}
			p, err := n.cni("ADD", sandbox{"web", "s1", "eth0"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(owner).To(HaveKeyWithValue(p.Addr().String(), i), "the pod keeps its address")
			if p, err = n.cni("ADD", sandbox{"db", "s2", "eth0"}); err == nil { // it may also refuse
				other, known := owner[p.Addr().String()]
				g.Expect(!known || other == i).To(BeTrue(), "%s is node-%d's", p, other+1)
				owner[p.Addr().String()] = i
			}
			_, err = n.cni("DEL", sandbox{"gone", "s9", "eth0"})
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	for _, n := range nodes { // also from the disk
		n.kill()
		n.start(t)
	}
	for i, n := range nodes {
		for address := range n.holders(t) {
			g.Expect(owner).To(HaveKeyWithValue(address, i))
		}
		g.Expect(n.holders(t)).NotTo(BeEmpty())
	}
}
