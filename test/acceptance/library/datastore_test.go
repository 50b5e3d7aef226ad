// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package library

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/datastore"
)

// openStore opens a DataStore as AWS's daemon does: the interfaces first, then the checkpoint.
func openStore(file *datastore.JSONFile) (*datastore.DataStore, error) {
	ds := datastore.NewDataStore(nil, file)
	errs := []error{ds.AddENI("eni-1", 0, true, false)}
	for i := range 64 {
		errs = append(errs, ds.AddIPv4AddressToStore("eni-1", fmt.Sprint("10.0.0.", 10+i)))
	}
	return ds, errors.Join(append(errs, ds.ReadBackingStore())...)
}

func containerKey(id string) datastore.IPAMKey {
	return datastore.IPAMKey{NetworkName: "aws-cni", ContainerID: id, IfName: "eth0"}
}

// Of two stores with one file, the one that wrote first goes on. The other one assigns nothing
// until it has read the file again.
func TestTwoStoresWithOneCheckpoint(t *testing.T) {
	for name, twice := range map[string]func(path string) (a, b *datastore.JSONFile){
		"two files of one path": func(p string) (a, b *datastore.JSONFile) {
			return datastore.NewJSONFile(p), datastore.NewJSONFile(p)
		},
		"one file": func(p string) (a, b *datastore.JSONFile) {
			one := datastore.NewJSONFile(p)
			return one, one
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, path := NewWithT(t), filepath.Join(t.TempDir(), "ipam.json")
			fileA, fileB := twice(path)
			a, err := openStore(fileA)
			g.Expect(err).NotTo(HaveOccurred())
			b, err := openStore(fileB)
			g.Expect(err).NotTo(HaveOccurred())
			first, _, err := a.AssignPodIPv4Address(containerKey("a1"))
			g.Expect(err).NotTo(HaveOccurred())
			text, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())

			for _, id := range []string{"b1", "b2"} {
				_, _, err = b.AssignPodIPv4Address(containerKey(id))
				g.Expect(err).To(MatchError(And(ContainSubstring("checkpoint "+path), ContainSubstring("only one store may have a checkpoint"))))
			}
			g.Expect(b.AllocatedIPs()).To(BeEmpty())
			g.Expect(os.ReadFile(path)).To(Equal(text), "it stays")

			g.Expect(b.ReadBackingStore()).To(Succeed())
			second, _, err := b.AssignPodIPv4Address(containerKey("b1"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(second).NotTo(Equal(first))
			_, _, err = a.AssignPodIPv4Address(containerKey("a2"))
			g.Expect(err).To(MatchError(ContainSubstring("it has changed since this store")))
			g.Expect(a.AllocatedIPs()).To(HaveLen(1))
			_, _, err = a.UnassignPodIPv4Address(containerKey("a1"))
			g.Expect(err).To(HaveOccurred(), "a release would remove the other store's assignment")
		})
	}
}

// A store that has not read the file writes nothing over it.
func TestAStoreThatHasNotReadItsCheckpoint(t *testing.T) {
	g, path := NewWithT(t), filepath.Join(t.TempDir(), "ipam.json")
	a, err := openStore(datastore.NewJSONFile(path))
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = a.AssignPodIPv4Address(containerKey("a1"))
	g.Expect(err).NotTo(HaveOccurred())

	b := datastore.NewDataStore(nil, datastore.NewJSONFile(path))
	g.Expect(b.AddENI("eni-1", 0, true, false)).To(Succeed())
	g.Expect(b.AddIPv4AddressToStore("eni-1", "10.0.0.10")).To(Succeed())
	_, _, err = b.AssignPodIPv4Address(containerKey("b1"))
	g.Expect(err).To(MatchError(ContainSubstring("it has assignments that this store has not read")))
}

// storeInAnotherProcess names the environment variable with the file and the name of a process.
const storeInAnotherProcess = "CADASTRE_TEST_STORE"

const perProcess = 8 // addresses that a process wants

// Processes that assign addresses of one file at once never assign one twice.
func TestProcessesWithOneCheckpoint(t *testing.T) {
	if job := os.Getenv(storeInAnotherProcess); job != "" {
		path, name, _ := strings.Cut(job, "|")
		assignAll(t, path, name)
		return
	}
	g, path := NewWithT(t), filepath.Join(t.TempDir(), "ipam.json")
	var running []*exec.Cmd
	var outputs []*strings.Builder
	for i := range 4 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestProcessesWithOneCheckpoint$", "-test.count=1")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|p%d", storeInAnotherProcess, path, i))
		out := &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, out
		g.Expect(cmd.Start()).To(Succeed())
		running, outputs = append(running, cmd), append(outputs, out)
	}
	owners := map[string]string{}
	for i, cmd := range running {
		g.Expect(cmd.Wait()).To(Succeed(), outputs[i].String())
		for line := range strings.Lines(outputs[i].String()) {
			if address, ok := strings.CutPrefix(strings.TrimSpace(line), "assigned "); ok {
				g.Expect(owners).NotTo(HaveKey(address))
				owners[address] = fmt.Sprint("p", i)
			}
		}
	}
	g.Expect(owners).To(HaveLen(len(running) * perProcess))
}

// assignAll assigns addresses, each with a store of its own: another process may have
// written since.
func assignAll(t *testing.T, path, name string) {
	g := NewWithT(t)
	for i := 0; i < perProcess; {
		ds, err := openStore(datastore.NewJSONFile(path))
		g.Expect(err).NotTo(HaveOccurred())
		address, _, err := ds.AssignPodIPv4Address(containerKey(fmt.Sprint(name, "-", i)))
		if err == nil {
			fmt.Println("assigned", address)
			i++
			continue
		}
		g.Expect(err).To(MatchError(ContainSubstring("only one store may have a checkpoint")))
	}
}
