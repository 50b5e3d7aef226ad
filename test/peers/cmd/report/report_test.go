// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const raw = `goos: linux
cpu: Some Processor
BenchmarkIndex/lowest/24/churn/0-2         	 100	        20.0 ns/op	       0 B/op	       0 allocs/op
BenchmarkIndex/lowest/24/churn/0-2         	 100	        90.0 ns/op	       0 B/op	       1 allocs/op
BenchmarkIndex/lowest/24/churn/0-2         	 100	        30.0 ns/op	       0 B/op	       0 allocs/op
BenchmarkLedgerParallel/50/parallel         	 100	        7.5 ns/op
BenchmarkLedgerParallel/50/parallel-2         	 100	        8.5 ns/op
BenchmarkLog went wrong 1 2 3
PASS
`

func parsed(t *testing.T, name, text string) *results {
	t.Helper()
	r := &results{runs: map[place][]float64{}}
	if _, err := r.parse(name, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParse(t *testing.T) {
	r := parsed(t, "ours", raw)
	for _, c := range []struct {
		p    place
		want float64
	}{
		{place{"ours", "Index/lowest/24/churn/0", "ns/op"}, 30},
		{place{"ours", "Index/lowest/24/churn/0", "allocs/op"}, 0},
		{place{"ours", "LedgerParallel/50/parallel@1", "ns/op"}, 7.5},
		{place{"ours", "LedgerParallel/50/parallel@2", "ns/op"}, 8.5},
	} {
		if got, ok := r.at(c.p); !ok || got != c.want {
			t.Errorf("%v: got %v, %v; want %v", c.p, got, ok, c.want)
		}
	}
	if _, ok := r.at(place{"ours", "Log", "went"}); ok || len(r.runs) != 5 {
		t.Errorf("a line of a log was taken for a result: %v", r.runs)
	}
}

func TestBusy(t *testing.T) {
	r := parsed(t, "ours", "BenchmarkX-2 10 50 ns/op 40 cpu-ns\nBenchmarkY-2 10 50 ns/op\nBenchmarkZ-2 10 70 a-ns 60 a-p50-ns 50 a-p10-ns 60 b-p50-ns\n")
	for _, c := range []struct {
		bench, unit string
		calm, busy  float64
	}{{"X", "ns/op", 50, 40}, {"Y", "ns/op", 50, 50}, {"Z", "a-p50-ns", 60, 50}, {"Z", "b-p50-ns", 60, 60}, {"Z", "a-ns", 70, 70}} {
		for busy, want := range map[bool]float64{false: c.calm, true: c.busy} {
			r.busy = busy
			if got, ok := r.at(place{"ours", c.bench, c.unit}); !ok || got != want {
				t.Errorf("%s %s, busy %v: got %v, %v; want %v", c.bench, c.unit, busy, got, ok, want)
			}
		}
	}
}

func TestParseRefusesWhatIsNoNumber(t *testing.T) {
	r := &results{runs: map[place][]float64{}}
	if _, err := r.parse("ours", strings.NewReader("BenchmarkX 1 many ns/op\n")); err == nil {
		t.Error("no error")
	}
}

// judged is the verdict on an aim of at most 2 with some points of ours, each
// beside a limit of 10.
func judged(r *results, ours ...float64) (verdict, string) {
	a := aim{name: "a", most: 2, format: duration}
	for _, v := range ours {
		a.points = append(a.points, point{"here", constant(v), constant(10)})
	}
	var w strings.Builder
	writeAim(&w, a, r)
	return a.judge(r), w.String()
}

func TestAims(t *testing.T) {
	r := parsed(t, "ours", "")
	if v, text := judged(r, 5, 19, 12); v.ours != 19 || strings.Contains(text, "not") || !strings.Contains(text, "| met |") {
		t.Errorf("the worst of three points that hold: %v, %s", v, text)
	}
	if v, text := judged(r, 5, 21); v.ratio != 2.1 || !strings.Contains(text, "**not met**") {
		t.Errorf("one point does not hold: %v, %s", v, text)
	}
	if _, text := judged(r); !strings.Contains(text, "not measured") {
		t.Errorf("no point: %s", text)
	}
}

// A table shows what was measured, marks what was not, and is a table all the same.
func TestRender(t *testing.T) {
	r := parsed(t, "ours", raw+"BenchmarkIndex/lowest/16/churn/last-2 100 1234 ns/op\n")
	r.missing = []string{"a peer"}
	page := render(r, "A machine.")
	for _, want := range []string{"A machine.", "**Not in this run:** a peer.", "| Cadastre index, lowest first | 30.0 | – | – | – | – | – | – | 1\u202f234 | – |"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	columns := 0
	for line := range strings.Lines(page) {
		n := strings.Count(line, "|")
		if n > 0 && columns > 0 && n != columns {
			t.Errorf("%d columns, not %d: %s", n, columns, line)
		}
		columns = n
	}
}

const interfacesRaw = `BenchmarkNull/secondary/30/0-2 100 20000 aws-p50-ns 5000 cadastre-p50-ns
BenchmarkNull/secondary/16000/99-2 1 40000000 aws-p50-ns 10000 cadastre-p50-ns
BenchmarkFile/tmpfs/prefix/30/50-2 10 100000 aws-p50-ns 90000 cadastre-p50-ns
BenchmarkDelta/prefix/99-2 10 400000 bare-30-p50-ns 500000 delta-30-p50-ns 400000 bare-250-p50-ns 480000 delta-250-p50-ns 400000 bare-1000-p50-ns 600000 delta-1000-p50-ns 500000 bare-16000-p50-ns 540000 delta-16000-p50-ns
BenchmarkRestore/prefix/16000-2 1 3000000000 aws-p50-ns 600000000 cadastre-p50-ns 500000000 delta-p50-ns
BenchmarkMemory/prefix/aws-2 1 400 heapB/item
BenchmarkMemory/prefix/cadastre-2 1 500 heapB/item
`

// The lines of both interface datastores come to their places, and the aims judge them.
func TestInterfaces(t *testing.T) {
	r := parsed(t, interfacesPkg, interfacesRaw)
	if _, err := r.parse("netresource", strings.NewReader("BenchmarkRound/10000-2 1 1500000000 ns/op\n")); err != nil {
		t.Fatal(err)
	}
	page := render(r, "")
	for _, want := range []string{
		"| Cadastre, secondary | 5.00 | – |", "| AWS, secondary | 20.0 | – |",
		"| Cadastre, prefix, tmpfs | – | 90.0 | – |",
		"| prefix/99 % | 500 | 480 | 600 | 540 | 400 | 400 | 400 | 500 | **2.50** | **2.40** | **3.00** | **2.16** | **1.25×** |",
		"| 16 000 in prefixes | 600 | 500 | 3\u202f000 | **0.20×** |",
		"| 0.20× | secondary/30/0 % | 5\u202f000 ns | 20.0 µs | 0.25× | **not met** |",
		"| interface datastore, JSON file on the disk, beside AWS's | | | | | | not measured |",
		"| interface datastore, JSON file on a tmpfs, beside AWS's | 1.00× | prefix/30/50 % | 90.0 µs | 100 µs | 0.90× | met |",
		"| 2.60× | prefix/99 % of 1000 | 600 µs | 200 µs | 3.00× | **not met** |",
		"| 1.25× | prefix/99 % | 600 µs | 480 µs | 1.25× | met |",
		"| 1.00× | prefix | 500 | 400 | 1.25× | **not met** |",
		"| 1.00× | 10000 nodes | 1\u202f500 ms | 1\u202f000 ms | 1.50× | **not met** |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}

const mainRaw = `BenchmarkMainPlugin/0-2 1 20000000 bridge-add-p50-ns 5000000 cadastre-add-p50-ns 8000000 kindnet-add-p50-ns
BenchmarkMainPlugin/990-2 1 30000000 bridge-add-p50-ns 18000000 cadastre-add-p50-ns 400000000 bridge-add30-p50-ns 100000000 bridge-gone30-p50-ns
BenchmarkKilled-2 1 150000000 resync-p50-ns 190000000 serving-p50-ns
BenchmarkThroughput-2 1 107374182.4 cadastre-p50-ns 214748364.8 bridge-p50-ns
`

// The lines of the main plugins come to their places, and the aims judge them.
func TestMainPlugins(t *testing.T) {
	r := parsed(t, "cni", mainRaw)
	if _, err := r.parse("linux", strings.NewReader("BenchmarkThroughput/vxlan-2 1 9.5 Gbit/s\n")); err != nil {
		t.Fatal(err)
	}
	page := render(r, "")
	for _, want := range []string{
		"| `cadastre-cni`, 0 other pods | 5.00 | – |", "| kindnet, 0 other pods | 8.00 | – |",
		"| `bridge` + `host-local`, 990 other pods | 30.0 | – | 400 | – | 100 | 500 |",
		"| **ours / `bridge`** | **0.25×** | – |",
		"| Gbit/s | 20.0 | 10.0 | – | 9.50 | – |",
		"| 250 pods | 150 | 190 |",
		"| 0.50× | 990 other pods | 18.0 ms | 30.0 ms | 0.60× | **not met** |",
		"| 1.25× | add, 990 / 0 other pods | 18.0 ms | 5\u202f000 µs | 3.60× | **not met** |",
		"| 1.00× | 250 pods | 150 ms | 250 ms | 0.60× | met |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}

func TestManager(t *testing.T) {
	r := parsed(t, "ours", "BenchmarkManager/host/24/churn/0-2 1 100 ns/op\nBenchmarkManager/pool/16/drain-2 1 300 ns/op\nBenchmarkManager/host/24/full-2 1 900 ns/op\n")
	if _, err := r.parse("cilium115", strings.NewReader("BenchmarkHostScope/24/churn/0-2 1 1000 ns/op\nBenchmarkHostScope/16/drain-2 1 1000 ns/op\n")); err != nil {
		t.Fatal(err)
	}
	page := render(r, "")
	for _, want := range []string{
		"| Cadastre, host scope | 100 | – |", "| **host scope / Cilium agent** | **0.10×** | – |",
		"| 0.50× | host, /24, 0 % | 100 ns | 1\u202f000 ns | 0.10× | met |",
		"| 0.20× | pool, /16, drain | 300 ns | 1\u202f000 ns | 0.30× | **not met** |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
}

// All that is shown is of a package that is run.
func TestPlaces(t *testing.T) {
	known := map[string]bool{}
	for _, p := range packages() {
		if known[p.name] {
			t.Errorf("%s is there twice", p.name)
		}
		known[p.name] = true
		if _, err := os.Stat(filepath.Join("..", "..", "..", "..", p.dir)); err != nil {
			t.Error(err)
		}
	}
	r := &results{asked: map[place]bool{}}
	render(r, "")
	if len(r.asked) < 500 {
		t.Errorf("only %d numbers are shown", len(r.asked))
	}
	for p := range r.asked {
		if !known[p.pkg] {
			t.Errorf("%v is of no package", p)
		}
	}
}

func TestBenchtime(t *testing.T) {
	for _, c := range []struct {
		share     int
		all, want string
	}{{0, "0.3s", "0.3s"}, {3, "0.3s", "100ms"}, {3, "100x", "100x"}} {
		if got := (pkg{share: c.share}).benchtime(options{benchtime: c.all}); got != c.want {
			t.Errorf("1/%d of %s is %s, %s would be right", c.share, c.all, got, c.want)
		}
	}
}

func TestMostAndLeast(t *testing.T) {
	r := &results{}
	all := []expr{constant(3), constant(1), constant(2)}
	if v, ok := most(all[0], all[1:]...)(r); !ok || v != 3 {
		t.Errorf("most is %v, %v", v, ok)
	}
	if v, ok := least(all[0], all[1:]...)(r); !ok || v != 1 {
		t.Errorf("least is %v, %v", v, ok)
	}
	if _, ok := most(all[0], at("ours", "nothing"))(r); ok {
		t.Error("one is missing without an error")
	}
}

func TestDescribe(t *testing.T) {
	for sub, want := range map[string]string{"24/churn/0": "/24, 0 %", "64spread/churn/last": "/64 spread, one left", "8in27/churn/99": "/8 in /27, 99 %", "16/drain": "/16, drain", "24/specific/50": "/24, named"} {
		if got := describe(sub); got != want {
			t.Errorf("describe(%q) = %q, want %q", sub, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 6.54321: "6.54", 65.4321: "65.4", 654.321: "654", 1234567: "1\u202f234\u202f567"} {
		if got := plain(v); got != want {
			t.Errorf("plain(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{12: "12.0 ns", 123456: "123 µs", 5e8: "500 ms"} {
		if got := duration(v); got != want {
			t.Errorf("duration(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	if ps, err := choose([]string{"cni", "ours"}); err != nil || names(ps) != "cni, ours" {
		t.Errorf("got %v, %v", ps, err)
	}
	if _, err := choose([]string{"unknown"}); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("an unknown package: %v", err)
	}
}
