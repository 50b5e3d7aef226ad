// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// insideEnv is set in the mount namespace that TestFullDisk makes.
const insideEnv = "CHAOS_INSIDE"

// TestFullDisk fills the disk of an agent: what was answered stays, the rest
// fails cleanly, a restart serves what there is, and with room all goes on.
// The disk is a tmpfs in a mount namespace of the test's own.
func TestFullDisk(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		t.Run("one client", func(t *testing.T) { fillDisk(t, 1) })
		t.Run("eight clients", func(t *testing.T) { fillDisk(t, 8) })
		t.Run("start", startOnFullDisk)
		return
	}
	attack.Begin(t, attack.FullDisk) // what is tried is counted inside
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Skipf("SKIPPED, NOT TESTED: no mount namespace can be made here: %v", err)
	}
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case err != nil:
		t.Fatalf("%v\n%s", err, out.Bytes())
	case strings.Contains(out.String(), "--- SKIP"):
		t.Skipf("SKIPPED, NOT TESTED:\n%s", out.Bytes())
	}
	t.Logf("%s", out.Bytes())
}

// newSmallDisk puts a node's state directory on a disk of its own.
func newSmallDisk(t *testing.T, size string) *node {
	t.Helper()
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	g.Expect(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")).To(Succeed())
	g.Expect(os.MkdirAll(n.stateDir, 0o700)).To(Succeed())
	if err := syscall.Mount("tmpfs", n.stateDir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(n.stateDir, syscall.MNT_DETACH) })
	return n
}

func (n *node) resize(t *testing.T, size string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(syscall.Mount("tmpfs", n.stateDir, "tmpfs", syscall.MS_REMOUNT, "mode=0700,size="+size)).To(Succeed())
}

// occupy takes all room that there is.
func (n *node) occupy(t *testing.T) (free func()) {
	t.Helper()
	path := filepath.Join(n.stateDir, "filler")
	err := os.WriteFile(path, make([]byte, 16<<20), 0o600)
	NewWithT(t).Expect(errors.Is(err, syscall.ENOSPC)).To(BeTrue(), "%v", err)
	return func() { _ = os.Remove(path) }
}

// filler holds the clients' knowledge of a disk that fills.
type filler struct {
	mu     sync.Mutex
	node   *node
	oracle *Oracle
	told   []Key
	codes  map[string]int
	errs   []error
}

// ask sends one request. A refusal must be a clean one; what it left on the
// disk is for the next start to say.
func (f *filler) ask(k Key, v Verb) Fate {
	f.mu.Lock()
	f.oracle.Begin(k, v)
	f.mu.Unlock()
	r, fate, err := ask(f.node.socket(), k.request(v), leaving{})
	out := Outcome{Fate: fate}
	switch {
	case err == nil && fate == Answered && v == Add:
		out.Addrs, err = addresses(r.IPs)
	case err == nil && fate == Refused:
		if r.Error.Code != cni.CodeTryAgain || strings.Contains(r.Error.Msg, "\n") || strings.Contains(r.Error.Msg, "goroutine") {
			err = fmt.Errorf("%s %s: code %d: %q", v, k, r.Error.Code, r.Error.Msg)
		}
		out.Fate = Lost
	case err == nil && fate != Answered:
		err = fmt.Errorf("%s %s: %s", v, k, fate)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.codes[fmt.Sprint(v, " ", fate)]++
	if v == Add && fate == Answered {
		f.told = append(f.told, k)
	}
	f.errs = append(f.errs, err, f.oracle.End(k, v, out))
	return fate
}

// compare compares leases with answers, while nothing is under way.
func (f *filler) compare(g *WithT) {
	g.Expect(errors.Join(f.errs...)).To(Succeed())
	book, infra, err := readBook(f.node.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.oracle.Check(book, nil)).To(Succeed())
	g.Expect(infra).To(Equal(4))
	var report localapi.CheckReport
	g.Expect(get(f.node.socket(), localapi.PathCheckLedger, &report)).To(Succeed())
	g.Expect(report.Findings).To(BeEmpty())
}

// fill asks for attachments until each client was refused a few times.
func (f *filler) fill(clients int, name string) {
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for x, refused := 0, 0; refused < 10 && x < 4000/clients; x++ {
				if f.ask(Key{"net", fmt.Sprintf("%s%d-%d", name, i, x), "eth0"}, Add) == Refused {
					refused++
				}
			}
		})
	}
	wg.Wait()
}

func fillDisk(t *testing.T, clients int) {
	attack.Begin(t, attack.FullDisk).Add(2)
	g := NewWithT(t)
	n := newSmallDisk(t, "256k")
	a := n.start(t)
	f := &filler{node: n, oracle: NewOracle(), codes: map[string]int{}}
	f.fill(clients, "a")
	g.Expect(f.codes["ADD refused"]).To(BeNumerically(">=", 10), "the disk was never full: %v", f.codes)
	g.Expect(a.log()).To(ContainSubstring("no space left on device"))
	full := len(f.told)
	for _, k := range f.told { // whatever failed was about other leases
		g.Expect(f.ask(k, Add)).To(Equal(Answered), "%s", k)
	}
	n.expectBackup(t, full)

	for i, k := range f.told[:20] { // each of these may fail, cleanly
		f.ask(k, []Verb{Add, Check, Del}[i%3])
	}
	f.oracle.died()
	a.kill()
	a = n.start(t)
	f.compare(g)
	f.fill(clients, "b")

	a.kill()
	n.resize(t, "8m")
	a = n.start(t, "--check-database-every", "50ms")
	f.compare(g)
	g.Expect(f.ask(Key{"net", "room", "eth0"}, Add)).To(Equal(Answered))
	for _, k := range f.told {
		g.Expect(f.ask(k, Del)).To(Equal(Answered))
	}
	f.compare(g)

	free := n.occupy(t)
	refused := f.codes["ADD refused"]
	f.fill(clients, "c")
	g.Expect(f.codes["ADD refused"]).To(BeNumerically(">", refused), "the disk was not full again: %v", f.codes)
	g.Eventually(n.whyNotReady, patience, 10*time.Millisecond).Should(And(ContainSubstring("a commit to the database failed"), ContainSubstring("no space left on device")))
	r, _, err := ask(n.socket(), cni.Request{Command: "STATUS", Network: "net"}, leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Error).NotTo(BeNil())
	g.Expect(r.Error.Code).To(BeEquivalentTo(cni.CodeNotAvailable))
	live, _, err := exchange(n.socket(), http.MethodGet, localapi.PathHealthz, nil, leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(live).To(Equal(http.StatusOK), "a restart does not help")
	free() // room, without a restart and without traffic
	g.Eventually(n.whyNotReady, patience, 10*time.Millisecond).Should(BeEmpty())
	g.Expect(f.ask(Key{"net", "again", "eth0"}, Add)).To(Equal(Answered))
	f.compare(g)
	t.Logf("full at %d attachments; %v", full, f.codes)
	g.Expect(a.stop()).To(Succeed())
}

// whyNotReady returns the message of the readiness probe, "" if the agent is ready.
func (n *node) whyNotReady() (string, error) {
	status, answer, err := exchange(n.socket(), http.MethodGet, localapi.PathReadyz, nil, leaving{})
	if err != nil || status == http.StatusOK {
		return "", err
	}
	return string(answer), nil
}

// startOnFullDisk starts an agent where nothing at all can be written: it
// needs nothing to serve the leases that there are.
func startOnFullDisk(t *testing.T) {
	attack.Begin(t, attack.FullDisk).Add(1)
	g := NewWithT(t)
	n := newSmallDisk(t, "1m")
	a := n.start(t)
	f := &filler{node: n, oracle: NewOracle(), codes: map[string]int{}}
	for i := range 20 {
		g.Expect(f.ask(Key{"net", fmt.Sprint("a", i), "eth0"}, Add)).To(Equal(Answered))
	}
	g.Expect(a.stop()).To(Succeed())
	n.occupy(t)
	a = n.start(t)
	f.compare(g)
	for _, k := range f.told {
		g.Expect(f.ask(k, Add)).To(Equal(Answered))
	}
	g.Eventually(n.whyNotReady, patience, 10*time.Millisecond).Should(ContainSubstring("no space left on device"), "before the first new ADD")
	g.Expect(a.stop()).To(Succeed())
}

// expectBackup makes a backup on another disk, and expects at least so many leases in it.
func (n *node) expectBackup(t *testing.T, leases int) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "backup.db")
	out, err := n.cli("backup", path)
	g.Expect(err).NotTo(HaveOccurred(), out)
	f, err := bolt.OpenFile(path, bolt.FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	found := 0
	g.Expect(f.Journal().Load(t.Context(), func(r kvdb.KeyValue) error {
		if r.Key[:1] == "L" {
			found++
		}
		return nil
	})).To(Succeed())
	g.Expect(found).To(BeNumerically(">=", leases))
}
