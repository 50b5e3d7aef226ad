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
		want value
	}{
		{place{"ours", "Index/lowest/24/churn/0", "ns/op"}, value{30, 20, 90}},
		{place{"ours", "Index/lowest/24/churn/0", "allocs/op"}, value{0, 0, 1}},
		{place{"ours", "LedgerParallel/50/parallel@1", "ns/op"}, value{7.5, 7.5, 7.5}},
		{place{"ours", "LedgerParallel/50/parallel@2", "ns/op"}, value{8.5, 8.5, 8.5}},
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
	r := parsed(t, "ours", "BenchmarkX-2 10 50 ns/op 40 cpu-ns\nBenchmarkY-2 10 50 ns/op\n")
	r.busy = true
	for bench, want := range map[string]float64{"X": 40, "Y": 50} {
		if got, ok := r.at(place{"ours", bench, "ns/op"}); !ok || got.mid != want {
			t.Errorf("%s: got %v, %v; want %v", bench, got, ok, want)
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
	r.missing = []string{"somebody"}
	page := render(r, "A machine.")
	for _, want := range []string{"A machine.", "**Not in this run:** somebody.", "| Cadastre index, lowest first | 30.0 | – | – | – | – | – | – | 1\u202f234 | – |"} {
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

func TestDescribe(t *testing.T) {
	for sub, want := range map[string]string{"24/churn/0": "/24, 0 %", "64spread/churn/last": "/64 spread, one left", "8in27/churn/99": "/8 in /27, 99 %"} {
		if got := describe(sub); got != want {
			t.Errorf("describe(%q) = %q, want %q", sub, got, want)
		}
	}
}

func TestReplaceSection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + beginMark + "\nold\n" + endMark + "\nafter\n")
	for range 2 {
		if err := replaceSection(file, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "before\n" + beginMark + "\nnew\n" + endMark + "\nafter\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	write("no markers")
	if err := replaceSection(file, "new"); err == nil {
		t.Error("a page without markers is no error")
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
	if _, err := choose([]string{"nobody"}); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("an unknown package: %v", err)
	}
}
