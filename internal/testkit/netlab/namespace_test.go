// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// need skips where this process cannot make namespaces; TestEnter runs the same
// tests as root of a user namespace.
func need(t *testing.T) {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
}

func newNamespace(t *testing.T) *netlab.Namespace {
	t.Helper()
	n, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func links(t *testing.T) []string {
	t.Helper()
	all, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range all {
		names = append(names, l.Attrs().Name)
	}
	return names
}

func inode(t *testing.T, path string) string {
	t.Helper()
	target, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestNamespacesAreApart(t *testing.T) {
	need(t)
	const self = "/proc/thread-self/ns/net"
	a, b, home := newNamespace(t), newNamespace(t), inode(t, self)
	if inode(t, a.Path()) == inode(t, b.Path()) || inode(t, a.Path()) == home {
		t.Fatalf("namespaces %s, %s and ours, %s, are not three", inode(t, a.Path()), inode(t, b.Path()), home)
	}
	err := a.Do(func() error {
		if got := inode(t, self); got != inode(t, a.Path()) {
			t.Errorf("Do runs in %s, not in %s", got, inode(t, a.Path()))
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "only-in-a"}}); err != nil {
			return err
		}
		// another namespace from within, and back
		return b.Do(func() error {
			if got := links(t); len(got) != 1 || got[0] != "lo" {
				t.Errorf("a fresh namespace has %q", got)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := inode(t, self); got != home {
		t.Fatalf("Do left its thread in %s, not in %s", got, home)
	}
}

func TestProcessesStartInside(t *testing.T) {
	need(t)
	n := newNamespace(t)
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("readlink", "/proc/self/ns/net").Output()
		return err
	})
	if err != nil {
		t.Skipf("NOT RUN: readlink: %v", err)
	}
	if got, want := string(out), inode(t, n.Path())+"\n"; got != want {
		t.Fatalf("a process started inside is in %q, not in %q", got, want)
	}
}

// TestPackets sends a packet over a veth pair from one namespace to another.
func TestPackets(t *testing.T) {
	need(t)
	a, b := newNamespace(t), newNamespace(t)
	connect(t, a, b)
	var server net.PacketConn
	var client net.Conn
	err := b.Do(func() (err error) {
		server, err = net.ListenPacket("udp", "10.0.0.2:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	err = a.Do(func() (err error) {
		client, err = net.Dial("udp", server.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := server.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, from, err := server.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "hello" || from.String() != client.LocalAddr().String() {
		t.Fatalf("received %q from %v: %v", buf[:n], from, err)
	}
}

// connect lays a veth pair between a, 10.0.0.1, and b, 10.0.0.2.
func connect(t *testing.T, a, b *netlab.Namespace) {
	t.Helper()
	up := func(name, addr string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		ip, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, ip); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	err := a.Do(func() error {
		other, err := os.Open(b.Path())
		if err != nil {
			return err
		}
		defer other.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-b"}, PeerName: "to-a", PeerNamespace: netlink.NsFd(other.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return up("to-b", "10.0.0.1/24")
	})
	if err == nil {
		err = b.Do(func() error { return up("to-a", "10.0.0.2/24") })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEnter runs the tests above once more as root of a user namespace.
func TestEnter(t *testing.T) {
	const inside = "NETLAB_TEST_INSIDE"
	if os.Getenv(inside) != "" {
		t.Skip("this is the inside")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	probe := exec.Command(self, "-test.run=^$")
	netlab.Enter(probe)
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: this machine gives no user namespace: %v %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.v", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), inside+"=1")
	netlab.Enter(cmd)
	out, err := cmd.CombinedOutput()
	t.Logf("inside:\n%s", out)
	switch {
	case err != nil:
		t.Fatal(err)
	case bytes.Contains(out, []byte("NOT RUN")):
		t.Skip("NOT RUN: root of a user namespace cannot make network namespaces here, see above")
	}
}
