// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	. "github.com/cadastre/cadastre/ipam/datastore"
)

func checkpointFile(t *testing.T) string { return filepath.Join(t.TempDir(), "ipam.json") }

func TestJSONFile(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	f := NewJSONFile(path)
	var d CheckpointData
	g.Expect(errors.Is(f.Restore(&d), fs.ErrNotExist)).To(BeTrue())

	since := 3 * time.Second
	whole := data(
		CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1"},
		CheckpointEntry{IPAMKey: IPAMKey{NetworkName: `quote " and <ü>`, ContainerID: "\\\n"}, IPv6: "fd00::1", AllocationTimestamp: -1, Metadata: pod(1), BootID: "b"},
	)
	whole.Cooling = []CheckpointEntry{{IPv4: "1.1.1.2", BootID: "b", CoolingSince: &since}}
	for _, d := range []*CheckpointData{whole, data([]CheckpointEntry{}...), whole} {
		g.Expect(f.Checkpoint(d)).To(Succeed())
		text, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		var read CheckpointData
		g.Expect(json.Unmarshal(text, &read)).To(Succeed(), "any reader of JSON can read it")
		g.Expect(read).To(BeComparableTo(*d))
		read = CheckpointData{}
		g.Expect(NewJSONFile(path).Restore(&read)).To(Succeed())
		g.Expect(read).To(BeComparableTo(*d))
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode() &^ 0o600).To(BeZero())
	}
	g.Expect(f.Checkpoint(map[string]int{"any": 1})).To(Succeed())
	g.Expect(NewJSONFile(checkpointFile(t) + "/not/there").Checkpoint(whole)).NotTo(Succeed())
}

func TestFileEqualsEncodingJSON(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	since := time.Duration(0)
	d := data(
		CheckpointEntry{IPAMKey: key(1), IPv4: "1.1.1.1", AllocationTimestamp: 5, Metadata: pod(3), BootID: "x"},
		CheckpointEntry{IPAMKey: IPAMKey{ContainerID: "\x7f\u2028&>"}, IPv6: "::1"}, CheckpointEntry{CoolingSince: &since},
	)
	g.Expect(NewJSONFile(path).Checkpoint(d)).To(Succeed())
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	want, err := json.Marshal(d.Allocations)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).To(ContainSubstring(string(want)))
}

// write writes checkpoints of these pods, one after the other.
func write(g Gomega, f *JSONFile, states ...[]int) {
	for _, pods := range states {
		d := data()
		for _, n := range pods {
			d.Allocations = append(d.Allocations, CheckpointEntry{IPAMKey: key(n), IPv4: "1.1.1." + string(rune('0'+n))})
		}
		g.ExpectWithOffset(1, f.Checkpoint(d)).To(Succeed())
	}
}

func restoredPods(d CheckpointData) (pods []int) {
	for _, e := range d.Allocations {
		pods = append(pods, int(e.IPv4[len(e.IPv4)-1]-'0'))
	}
	return pods
}

// damage changes what is in a file, and nothing else of it.
func damage(g Gomega, path string, text []byte) {
	mode := fs.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode()
		g.Expect(os.Chmod(path, 0o600)).To(Succeed())
	}
	g.Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	g.Expect(os.Chmod(path, mode)).To(Succeed())
}

func TestDamagedFile(t *testing.T) {
	cut := func(text []byte) []byte { return text[:len(text)/2] }
	flip := func(text []byte) []byte { return bytes.Replace(text, []byte("1.1.1.1"), []byte("1.1.1.9"), 1) }
	for name, c := range map[string]struct {
		states  [][]int
		damage  func([]byte) []byte
		foreign bool
		want    []int // nil: refused
	}{
		"released last, an address changed": {states: [][]int{{1}, {1, 2}, {1}}, damage: flip, want: []int{1, 2}},
		"released last, cut off":            {states: [][]int{{1}, {1, 2}, {1}}, damage: func(b []byte) []byte { return cut(bytes.TrimSpace(b)) }, want: []int{1, 2}},
		"released last, empty":              {states: [][]int{{1}, {1, 2}, {1}}, damage: func([]byte) []byte { return nil }, want: []int{1, 2}},
		"nothing changed":                   {states: [][]int{{1}, {1}}, damage: flip, want: []int{1}},
		"data after the object":             {states: [][]int{{1}, {1}}, damage: func(b []byte) []byte { return append(b, "x"...) }, want: []int{1}},
		"assigned last":                     {states: [][]int{{1, 2}, {1}, {1, 2}}, damage: flip},
		"assigned to another one":           {states: [][]int{{1, 2}, {1, 3}}, damage: flip},
		"the first one":                     {states: [][]int{{1}}, damage: flip},
		"written by another program since":  {states: [][]int{{1}, {1, 2}, {1}}, damage: flip, foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := checkpointFile(t)
			write(g, NewJSONFile(path), c.states...)
			text, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			if c.foreign {
				g.Expect(os.Remove(path)).To(Succeed())
			}
			broken := c.damage(text)
			damage(g, path, broken)

			f := NewJSONFile(path)
			var d CheckpointData
			err = f.Restore(&d)
			if c.want == nil {
				g.Expect(err).To(MatchError(And(ContainSubstring(path), ContainSubstring("drain the node"))))
				g.Expect(os.ReadFile(path)).To(BeEquivalentTo(broken), "it stays")
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(restoredPods(d)).To(Equal(c.want))
			g.Expect(f.Recovered()).To(ContainSubstring("cannot be read"))
			d = CheckpointData{}
			g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed(), "it is the file now")
			g.Expect(restoredPods(d)).To(Equal(c.want))
			write(g, f, []int{5})
			d = CheckpointData{}
			g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
			g.Expect(restoredPods(d)).To(Equal([]int{5}))
		})
	}
}

func TestDamagedFileAfterAnIncompleteWrite(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	write(g, NewJSONFile(path), []int{1, 2, 3}, []int{1, 2}, []int{1})
	// The process ended before the last but one had the name of the previous one.
	g.Expect(os.Rename(path+".previous", path+".tmp")).To(Succeed())
	damage(g, path, nil)
	var d CheckpointData
	g.Expect(NewJSONFile(path).Restore(&d)).To(MatchError(ContainSubstring("not completed")))
	g.Expect(d.Allocations).To(BeEmpty())
}

func TestDamagedFileAfterARestart(t *testing.T) {
	for last, want := range map[int][]int{1: {1, 2}, 3: nil} {
		g := NewWithT(t)
		path := checkpointFile(t)
		write(g, NewJSONFile(path), []int{1, 2})
		f := NewJSONFile(path)
		var d CheckpointData
		g.Expect(f.Restore(&d)).To(Succeed())
		write(g, f, []int{last})
		damage(g, path, []byte("{}}"))
		d = CheckpointData{}
		err := NewJSONFile(path).Restore(&d)
		g.Expect(err == nil).To(Equal(want != nil), "%v", err)
		g.Expect(restoredPods(d)).To(Equal(want))
	}
}

func TestRemovedFile(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	f := NewJSONFile(path)
	write(g, f, []int{1, 2}, []int{1})
	g.Expect(os.Remove(path)).To(Succeed())
	write(g, f, []int{1})
	var d CheckpointData
	g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
	damage(g, path, nil)
	g.Expect(NewJSONFile(path).Restore(&d)).NotTo(Succeed(), "there is no previous one")
}

func TestFailedWriteLeavesTheFile(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "ipam.json")
	f := NewJSONFile(path)
	write(g, f, []int{1, 2})
	g.Expect(os.Mkdir(path+".tmp", 0o700)).To(Succeed()) // no file can be made
	g.Expect(os.WriteFile(path+".tmp/x", nil, 0o600)).To(Succeed())
	g.Expect(f.Checkpoint(data())).NotTo(Succeed())
	var d CheckpointData
	g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
	g.Expect(restoredPods(d)).To(Equal([]int{1, 2}), "the file is as it was")
	g.Expect(os.RemoveAll(path + ".tmp")).To(Succeed())
	write(g, f, []int{1})
	g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
	g.Expect(restoredPods(d)).To(Equal([]int{1}))
}

// TestNumberOfOpenGenerations counts the files that are held open: the file, the
// previous one, and the one that the next write gives back.
func TestNumberOfOpenGenerations(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	f := NewJSONFile(path)
	for i := range 40 {
		write(g, f, []int{1, 2}[:1+i%2])
		if i%10 == 9 {
			g.Expect(os.Remove(path)).To(Succeed())
		}
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	g.Expect(err).NotTo(HaveOccurred())
	n := 0
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, path) {
			n++
		}
	}
	g.Expect(n).To(BeNumerically("<=", 3))
}

func TestFileIsWrittenAgainAfterLeftovers(t *testing.T) {
	g := NewWithT(t)
	path := checkpointFile(t)
	for i := range 6 {
		g.Expect(os.WriteFile(path+".tmp", []byte("left by a crash"), 0o600)).To(Succeed())
		f := NewJSONFile(path)
		write(g, f, []int{i}, []int{i})
		if i == 3 { // the published program in between
			g.Expect(os.Remove(path)).To(Succeed())
			g.Expect(os.WriteFile(path, []byte(foreignFile), 0o600)).To(Succeed())
		}
		g.Expect(filepath.Glob(filepath.Join(filepath.Dir(path), "*"))).To(HaveLen(3), "the file, the one before, and the lock")
	}
	var d CheckpointData
	g.Expect(NewJSONFile(path).Restore(&d)).To(Succeed())
	g.Expect(restoredPods(d)).To(Equal([]int{5}))
}
