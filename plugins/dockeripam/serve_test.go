// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// abandoned leaves a socket's file behind, as a killed process does.
func abandoned(g Gomega, path string) {
	l, err := net.Listen("unix", path)
	g.Expect(err).NotTo(HaveOccurred())
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	g.Expect(l.Close()).To(Succeed())
}

func TestSocket(t *testing.T) {
	n := newNode(t)
	n.Expect(os.MkdirAll(filepath.Dir(n.socket), 0o755)).To(Succeed())
	abandoned(n, n.socket)
	abandoned(n, n.socket+".new")
	n.assemble()
	n.start(n.plugin.Serve)
	n.Eventually(func() error { return newEngine(t, n.socket).call("Plugin.Activate", nil, &struct{}{}) }, patience).Should(Succeed())
	info, err := os.Stat(n.socket)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)), "every process that connects can take every address")
	n.Expect(n.socket + ".new").NotTo(BeAnExistingFile())

	other := newNode(t)
	other.socket = n.socket
	other.assemble()
	n.Expect(other.plugin.Serve(t.Context())).To(MatchError(And(ContainSubstring("another program answers there"), ContainSubstring("cadastre.docker.socket"))))
	n.Expect(newEngine(t, n.socket).call("Plugin.Activate", nil, &struct{}{})).To(Succeed(), "it is as it was")
	n.Expect(n.stop()).To(BeEmpty())
	n.Expect(n.socket).NotTo(BeAnExistingFile())
}

func TestInvalidSockets(t *testing.T) {
	n := newNode(t)
	dir := filepath.Dir(filepath.Dir(n.socket))
	n.Expect(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)).To(Succeed())
	n.Expect(os.MkdirAll(filepath.Join(dir, "full.sock", "x"), 0o700)).To(Succeed())
	for path, why := range map[string]string{
		filepath.Join(dir, "file", "x.sock"):                     "not a directory",
		filepath.Join(dir, "full.sock"):                          "file exists",
		filepath.Join(dir, strings.Repeat("long", 30), "x.sock"): "Linux takes 103: set cadastre.docker.socket",
	} {
		n.socket = path
		n.assemble()
		n.Expect(n.plugin.Serve(t.Context())).To(MatchError(And(HavePrefix("listen for Docker on "+path), ContainSubstring(why))))
		_, err := os.Lstat(path + ".new")
		n.Expect(err).To(HaveOccurred())
	}
}

// The socket of a listener that the plugin gets stays when the plugin ends.
func TestActivatedListener(t *testing.T) {
	n := newNode(t)
	n.Expect(os.MkdirAll(filepath.Dir(n.socket), 0o755)).To(Succeed())
	supervisor, err := net.Listen("unix", n.socket)
	n.Expect(err).NotTo(HaveOccurred())
	defer supervisor.Close()
	given := func() net.Listener {
		file, err := supervisor.(*net.UnixListener).File()
		n.Expect(err).NotTo(HaveOccurred())
		defer file.Close()
		l, err := net.FileListener(file)
		n.Expect(err).NotTo(HaveOccurred())
		return l
	}
	answered := make(chan error, 1)
	ask := func() {
		c, err := net.Dial("unix", n.socket) // before the plugin listens
		n.Expect(err).NotTo(HaveOccurred())
		go func() {
			defer c.Close()
			_, err := fmt.Fprintf(c, "POST /IpamDriver.GetDefaultAddressSpaces HTTP/1.0\r\n\r\n")
			buf := make([]byte, 12)
			if err == nil {
				_, err = c.Read(buf)
			}
			if err == nil && string(buf) != "HTTP/1.0 200" {
				err = fmt.Errorf("%s", buf)
			}
			answered <- err
		}()
	}
	for range 2 {
		ask()
		n.Consistently(answered, 50*time.Millisecond).ShouldNot(Receive())
		n.deps.Listener = given()
		n.begin()
		n.Expect(<-answered).To(Succeed())
		n.Expect(n.stop()).To(BeEmpty())
		n.Expect(n.socket).To(BeAnExistingFile(), "it is the supervisor's")
	}
}

// Serve ends with an error if its listener fails.
func TestListenerFails(t *testing.T) {
	n := newNode(t)
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(filepath.Dir(n.socket)), "x.sock"))
	n.Expect(err).NotTo(HaveOccurred())
	n.deps.Listener = l
	n.assemble()
	n.start(n.plugin.Serve)
	n.Expect(l.Close()).To(Succeed())
	n.Eventually(n.ended, patience).Should(Receive(MatchError(HavePrefix("answer on "))))
	n.running = 0
}

// Open requests are answered, requests that wait for the driver are refused, and
// neither keeps the agent from ending.
func TestShutdown(t *testing.T) {
	n, g := gate(t)
	e := n.begin()
	g.open <- struct{}{}
	id := e.pool(n, "10.1.0.0/16")
	<-g.at
	answered := make(chan error, 1)
	go func() {
		_, _, err := e.RequestAddress(id, nil, nil)
		answered <- err
	}()
	<-g.at
	n.cancel()
	n.Consistently(answered, 50*time.Millisecond).ShouldNot(Receive())
	g.open <- struct{}{}
	n.Expect(<-answered).To(Succeed())
	n.Expect(n.stop()).To(BeEmpty())
	n.Expect(n.leases()).To(Equal([]string{"10.1.0.1"}))
}

func TestShutdownBeforeTheDriver(t *testing.T) {
	n := newNode(t)
	n.deps.Patience = time.Hour
	n.assemble()
	n.start(n.loop.Run, n.plugin.Run, n.plugin.Serve) // there is no resync
	e := n.engine()
	answered := make(chan error, 1)
	go func() {
		_, _, err := e.GetDefaultAddressSpaces()
		answered <- err
	}()
	n.Consistently(answered, 50*time.Millisecond).ShouldNot(Receive())
	n.Expect(n.stop()).To(BeEmpty()) // long before Patience has gone by
	n.Expect(<-answered).To(HaveOccurred())
}

// A client that never finishes its request does not keep the agent from ending.
func TestShutdownWithAnUnfinishedRequest(t *testing.T) {
	t.Parallel() // it takes as long as an agent waits
	n, _ := run(t)
	c, err := net.Dial("unix", n.socket)
	n.Expect(err).NotTo(HaveOccurred())
	defer c.Close()
	_, err = fmt.Fprintf(c, "POST /IpamDriver.ReleasePool HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(newEngine(t, n.socket).call("Plugin.Activate", nil, &struct{}{})).To(Succeed()) // by now it is being read
	n.Expect(n.stop()).To(BeEmpty(), "the agent has not failed")
}

// Without the loop no pool is opened, and addresses are allocated as before.
func TestAddressesWithoutTheLoop(t *testing.T) {
	n := newNode(t)
	n.assemble()
	ctx, cancel := context.WithCancel(t.Context())
	loop := make(chan error, 1)
	go func() { loop <- n.loop.Run(ctx) }()
	n.start(n.plugin.Run, n.plugin.Serve)
	n.resync()
	e := n.engine()
	id := e.pool(n, "10.1.0.0/16")
	n.Expect(e.address(n, id, "")).To(Equal("10.1.0.1/16"))
	cancel()
	n.Expect(<-loop).To(Succeed())
	_, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault"})
	n.Expect(err).To(MatchError(ContainSubstring("change the ledger's pools")))
	n.Expect(e.address(n, id, "")).To(Equal("10.1.0.2/16"), "an address needs no change of pools")
}

// Every answered address is durable, and only these are held.
func TestShutdownUnderLoad(t *testing.T) {
	n, e := run(t)
	shared := e.pool(n, "10.1.0.0/16")
	const callers, each = 32, 25
	var mu sync.Mutex
	held, unheard := map[string]bool{}, 0 // what callers have, and how many do not know
	begun := make(chan struct{})
	var once sync.Once
	var wait sync.WaitGroup
	for w := range callers {
		wait.Go(func() {
			mine := newEngine(t, n.socket)
			for i := range each {
				a, _, err := mine.RequestAddress(shared, nil, map[string]string{ipamapi.EndpointMAC: fmt.Sprintf("02:42:00:00:%02x:%02x", w, i)})
				mu.Lock()
				switch {
				case err != nil:
					unheard++
				case held[a.IP.String()]:
					t.Errorf("%s was given twice", a)
				default:
					held[a.IP.String()] = i%3 > 0
				}
				mu.Unlock()
				if i == each/2 {
					once.Do(func() { close(begun) })
				}
				if err == nil && i%3 == 0 && mine.ReleaseAddress(shared, a.IP) != nil {
					mu.Lock()
					unheard++
					mu.Unlock()
				}
			}
		})
	}
	<-begun
	n.Expect(n.stop()).To(BeEmpty()) // in the middle of it
	wait.Wait()
	n.begin()
	now := n.leases()
	kept := 0
	for a, keeps := range held {
		if keeps {
			kept++
			n.Expect(now).To(ContainElement(a), "it was answered")
		}
	}
	n.Expect(len(now) - kept).To(BeNumerically("<=", unheard))
	n.Expect(unheard).To(BeNumerically(">", 0), "the agent ended before they did")
	n.expectSound()
}

// An idle connection does not keep another one waiting.
func TestManyConnections(t *testing.T) {
	n, e := run(t)
	for range 200 {
		c, err := net.Dial("unix", n.socket)
		n.Expect(err).NotTo(HaveOccurred())
		defer c.Close()
	}
	status, _, err := e.post("Plugin.Activate", nil)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(status).To(Equal(http.StatusOK))
}
