// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness/kernel"
	"github.com/cadastre/cadastre/witness/runtime"
)

// BenchmarkRound runs whole rounds over 250 pods with real namespaces and a runtime behind a
// real socket: kernel, runtime, ledger and judge. cpu-ms/op is the processor time of the
// process, in user and kernel mode; the runtime's own side of the socket is part of it.
func BenchmarkRound(b *testing.B) {
	if err := netlab.Try(); err != nil {
		b.Skipf("this machine makes no network namespaces: %v", err)
	}
	const pods = 250
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	home, err := netlab.New()
	must(err)
	defer func() { _ = home.Close() }()
	book, err := ledger.Open(b.Context(), ledger.NullJournal{}, ledger.Options{})
	must(err)
	st := book.Begin()
	must(st.SetPool(ledger.Pool{Name: "default"}))
	must(st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.97.0.0/23")}))
	must(st.Commit(b.Context()))
	dir, err := os.MkdirTemp("", "rb")
	must(err)
	defer func() { _ = os.RemoveAll(dir) }()
	cri := critest.New(filepath.Join(dir, "cri.sock"))
	must(cri.Start())
	defer cri.Stop()
	var sandboxes []critest.Sandbox
	for i := range pods {
		ns, err := netlab.New()
		must(err)
		defer func() { _ = ns.Close() }()
		name := fmt.Sprintf("pod%d", i)
		leases, _, err := book.Claim(b.Context(), ledger.Request{
			Pool: "default", Key: ledger.Key{Network: "pods", ContainerID: name, IfName: "eth0"}, NetNS: ns.Path(),
		})
		must(err)
		must(connect(home, ns, name, leases[0].Addr))
		sandboxes = append(sandboxes, critest.Sandbox{ID: name, Namespace: "shop", Name: name, NetNS: ns.Path()})
	}
	cri.Set(sandboxes...)
	began := time.Now()
	p := reclaim.NewPlugin(reclaim.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)},
		Config:     reclaim.Config{Enabled: true, Interval: 20 * time.Second, Grace: time.Minute, Undo: time.Minute},
		Ledger:     book,
		Readers: reclaim.Readers{
			Kernel:  kernel.New(kernel.Options{Host: home.Path(), Dirs: []string{}}),
			Runtime: runtime.New(runtime.Options{Endpoint: "unix://" + filepath.Join(dir, "cri.sock")}),
		},
		Now:      time.Now,
		Uptime:   func() time.Duration { return time.Since(began) },
		BootID:   func() (string, error) { return "b", nil },
		Degraded: func() string { return "" },
		Starting: func() string { return "" },
	})
	before := processorTime(b)
	for b.Loop() {
		w, err := p.Round(b.Context())
		must(err)
		if w.Kernel == nil || w.Runtime == nil || len(w.Kernel.Namespaces) <= pods || len(w.Runtime.Sandboxes) != pods {
			b.Fatalf("not all is seen: %+v", w.Reports)
		}
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// connect lays a pair of links between the host and a pod.
func connect(home, pod *netlab.Namespace, name string, a netip.Addr) error {
	err := home.Do(func() error {
		file, err := os.Open(pod.Path())
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(file.Fd()),
		})
	})
	if err != nil {
		return err
	}
	return pod.Do(func() error { return changeAddress("eth0", netip.Addr{}, a) })
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkADD compares ADD and DEL of a pod through the sockets of two real agents that take
// turns, each beside 250 pods. One runs a round every 20 seconds, as by default, and the other
// none. Taking turns, both meet the same load of the machine; ratio is that of the medians.
func BenchmarkADD(b *testing.B) {
	labs := []*lab{
		newLab(b, settings{interval: "1h", grace: "1h"}),
		newLab(b, settings{interval: "20s", grace: "1h", further: 1}),
	}
	for _, l := range labs {
		for i := range 250 {
			l.add(fmt.Sprint("pod", i))
		}
	}
	took := make([][]time.Duration, len(labs))
	for b.Loop() {
		for i, l := range labs {
			began := time.Now()
			l.addAgain("more")
			if _, failure := l.request(l.requestFor("DEL", "more")); failure != nil {
				b.Fatal(failure)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	median := func(all []time.Duration) float64 { slices.Sort(all); return float64(all[len(all)/2].Microseconds()) }
	without, with := median(took[0]), median(took[1])
	b.ReportMetric(without, "without-us")
	b.ReportMetric(with, "with-us")
	b.ReportMetric(with/without, "ratio")
}

// BenchmarkLock compares how long a claim and the reading of 250 leases hold the ledger's
// lock. The NullJournal does not wait, so that a claim is nothing but its time under the lock.
func BenchmarkLock(b *testing.B) {
	book, err := ledger.Open(b.Context(), ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		b.Fatal(err)
	}
	st := book.Begin()
	err = st.SetPool(ledger.Pool{Name: "default"})
	if err == nil {
		err = st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.97.0.0/23")})
	}
	if err == nil {
		err = st.Commit(b.Context())
	}
	claim := func(name string) error {
		_, _, err := book.Claim(context.Background(), ledger.Request{Pool: "default", Key: ledger.Key{Network: "pods", ContainerID: name, IfName: "eth0"}})
		return err
	}
	for i := range 250 {
		if err == nil {
			err = claim(fmt.Sprint("pod", i))
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Run("claim and release", func(b *testing.B) {
		for b.Loop() {
			if err := claim("more"); err != nil {
				b.Fatal(err)
			}
			if _, _, err := book.FreeKey(b.Context(), ledger.Key{Network: "pods", ContainerID: "more", IfName: "eth0"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("a step of a round", func(b *testing.B) {
		n, steps := 0, 250/4
		for b.Loop() {
			for range book.AllInSteps(4) {
				n++
			}
		}
		if n != b.N*250 {
			b.Fatalf("%d leases in %d walks", n, b.N)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*steps), "ns/step")
	})
}
