// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// crashVariable makes the test below change wires until it is killed. It has the path of
// the node's namespace, then those of the pods.
const crashVariable = "CADASTRE_TEST_CRASH"

// podAt returns a pod like podWith whose namespace another process holds.
func (l *wireLab) podAt(path string, n int) *labPod {
	p := l.podWith(nil, fmt.Sprintf("pod/k8s/crash%d/eth0", n), n+1)
	p.value.Wire.Netns, p.value.Wire.Namespace = path, namespaceAt(path)
	return p
}

// TestChangesUntilKilled is run by TestAKilledProcessLeavesWhatTheNextOneRepairs.
func TestChangesUntilKilled(t *testing.T) {
	paths := strings.Fields(os.Getenv(crashVariable))
	if len(paths) == 0 {
		t.Skip("only as a child process")
	}
	made, err := newWires(Options{Namespace: paths[0]})
	if err != nil {
		t.Fatal(err)
	}
	wires := openWires{made.kind().Descriptor(), made}
	l := &wireLab{Gomega: NewWithT(t), t: t, wires: wires}
	fmt.Println("ready")
	for {
		n := rand.IntN(len(paths) - 1)
		p := l.podAt(paths[n+1], n)
		switch rand.IntN(4) {
		case 0, 1:
			l.create(p)
		case 2:
			l.delete(p)
		case 3:
			p.value.Addresses[0] = "10.1.70.7/24"
			p.value.Wire.Mtu = 1300
			l.must(wires.Update(context.Background(), p.key, p.value, p.value))
		}
	}
}

// TestAKilledProcessLeavesWhatTheNextOneRepairs kills a process that makes, changes and
// detaches wires, again and again. A process that knows nothing makes the wanted wires
// complete and removes the others.
func TestAKilledProcessLeavesWhatTheNextOneRepairs(t *testing.T) {
	l := newWireLab(t, Options{})
	paths := []string{l.host.Path()}
	var namespaces []*netlab.Namespace
	for range 4 {
		ns := l.namespace()
		namespaces, paths = append(namespaces, ns), append(paths, ns.Path())
	}
	seed, _ := effort.Seeds(t, 1)
	random := rand.New(rand.NewPCG(seed, 0))
	for range effort.Times(t, 150) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChangesUntilKilled$")
		cmd.Env = append(os.Environ(), crashVariable+"="+strings.Join(paths, " "))
		out, err := cmd.StdoutPipe()
		l.must(err)
		l.must(cmd.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "ready" {
			t.Log(lines.Text())
		}
		timer := time.After(time.Duration(random.IntN(8000)) * time.Microsecond)
		<-timer
		l.must(cmd.Process.Kill())
		_ = cmd.Wait()

		l.wires = l.open(Options{})
		var wanted []*labPod
		for i := range 3 { // the fourth is not wanted
			wanted = append(wanted, l.podAt(paths[i+1], i))
		}
		l.resync(wanted...)
		l.complete(wanted...)
		for i, ip := range wanted[1].ip {
			_, err := l.exchange(namespaces[0], namespaces[1], ip, 10)
			l.Expect(err).NotTo(HaveOccurred(), "address %d", i)
		}
		l.sweep()
		l.Expect(l.links()).To(HaveLen(3))
	}
}

// resync does what the scheduler does: it removes what is not wanted and makes the rest.
func (l *wireLab) resync(pods ...*labPod) {
	l.t.Helper()
	ctx, found, wanted := context.Background(), l.messages(pods...), map[string]bool{}
	for _, p := range pods {
		wanted[p.key] = true
	}
	for key, m := range found {
		if !wanted[key] {
			l.must(l.wires.Delete(ctx, key, m))
		}
	}
	for _, p := range pods {
		if before := found[p.key]; before != nil {
			l.must(l.wires.Update(ctx, p.key, before, p.value))
		} else {
			l.must(l.wires.Create(ctx, p.key, p.value))
		}
	}
}

// TestThirtyADDsDuringTheSweep makes wires while others are removed.
func TestThirtyADDsDuringTheSweep(t *testing.T) {
	l := newWireLab(t, Options{})
	var old, fresh []*labPod
	for range 60 {
		p := l.pod()
		old = append(old, p)
		l.create(p)
	}
	for range 30 {
		fresh = append(fresh, l.pod())
	}
	for _, p := range old {
		l.delete(p)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for more := true; more; {
			var err error
			if more, err = l.wires.Sweep(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	var longest time.Duration
	began := time.Now()
	for _, p := range fresh {
		start := time.Now()
		l.create(p)
		longest = max(longest, time.Since(start))
	}
	t.Logf("30 ADDs took %v, the longest %v", time.Since(began), longest)
	group.Wait()
	l.complete(fresh...)
	l.sweep()
}

// TestADDsFromManyGoroutines has callers that do not wait for each other.
func TestADDsFromManyGoroutines(t *testing.T) {
	l := newWireLab(t, Options{})
	var pods []*labPod
	for range 30 {
		pods = append(pods, l.pod())
	}
	for _, change := range []func(context.Context, *labPod) error{
		func(ctx context.Context, p *labPod) error { return l.wires.Create(ctx, p.key, p.value) },
		func(ctx context.Context, p *labPod) error { return l.wires.Delete(ctx, p.key, p.value) },
		func(ctx context.Context, p *labPod) error { return l.wires.Create(ctx, p.key, p.value) },
	} {
		var group sync.WaitGroup
		for _, p := range pods {
			group.Go(func() {
				if err := change(t.Context(), p); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	l.complete(pods...)
}
