// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func intent(container string) cni.Intent {
	return cni.Intent{Network: "pods", ContainerID: container, IfName: "eth0"}
}

func files(g Gomega, dir string) []string {
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTheLifeOfAnIntent(t *testing.T) {
	g := NewWithT(t)
	dir := cni.IntentDir(filepath.Join(t.TempDir(), "run", "agent.sock"))
	g.Expect(dir).To(HaveSuffix("/run/del"))
	in := intent("c1")
	g.Expect(in.Waiting(dir)).To(BeFalse())
	g.Expect(in.Remove(dir)).To(Succeed(), "what is not there is forgotten already")
	g.Expect(in.Write(dir)).To(Succeed())
	g.Expect(in.Waiting(dir)).To(BeTrue())
	g.Expect(in.Write(dir)).To(Succeed(), "again")
	g.Expect(files(g, dir)).To(Equal([]string{in.Name()}), "one attachment, one file, and nothing half done beside it")
	info, err := os.Stat(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o700)))
	g.Expect(cni.ReadIntents(dir)).To(Equal([]cni.Intent{in}))
	g.Expect(in.Remove(dir)).To(Succeed())
	g.Expect(in.Waiting(dir)).To(BeFalse())
	g.Expect(cni.ReadIntents(dir)).To(BeEmpty())
}

// A name is the same for the same attachment, always, and for no other.
func TestTheNameOfAnIntent(t *testing.T) {
	g := NewWithT(t)
	g.Expect(intent("c1").Name()).To(Equal(intent("c1").Name()))
	names := map[string]bool{}
	all := []cni.Intent{
		intent("c1"), intent("c2"), {Network: "pods", ContainerID: "c1", IfName: "net1"}, {Network: "other", ContainerID: "c1", IfName: "eth0"},
		{Network: "podsc1", IfName: "eth0"}, {Network: "pods", ContainerID: "c1eth0"}, {},
	}
	for _, in := range all {
		g.Expect(in.Name()).To(MatchRegexp(`^[0-9a-f]+\.json$`))
		names[in.Name()] = true
	}
	g.Expect(names).To(HaveLen(len(all)))
}

// As many as that and no more; those that are there can still be repeated.
func TestTheLimitOfIntents(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	for i := range cni.MaxIntents {
		in := intent(fmt.Sprint("c", i))
		data, err := json.Marshal(in)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(dir, in.Name()), data, 0o600)).To(Succeed())
	}
	err := intent("one too many").Write(dir)
	g.Expect(err).To(MatchError(And(ContainSubstring("1024"), ContainSubstring(dir))))
	g.Expect(intent("one too many").Waiting(dir)).To(BeFalse())
	g.Expect(intent("c7").Write(dir)).To(Succeed())
	g.Expect(intent("c8").Remove(dir)).To(Succeed())
	g.Expect(intent("one too many").Write(dir)).To(Succeed())
	g.Expect(cni.ReadIntents(dir)).To(HaveLen(cni.MaxIntents))
}

// Files that are none are reported, by name, and left alone.
func TestFilesThatAreNoIntents(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(intent("c1").Write(dir)).To(Succeed())
	stolen, err := json.Marshal(intent("c2"))
	g.Expect(err).NotTo(HaveOccurred())
	for name, data := range map[string]string{
		"garbage.json": "{", "empty.json": "", intent("c3").Name(): string(stolen), "README": "do not touch", ".new-123": "half written",
	} {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600)).To(Succeed())
	}
	g.Expect(os.Mkdir(filepath.Join(dir, "dir"), 0o700)).To(Succeed())
	before := files(g, dir)
	all, err := cni.ReadIntents(dir)
	g.Expect(all).To(Equal([]cni.Intent{intent("c1")}))
	for _, name := range []string{"garbage.json", "empty.json", intent("c3").Name(), "README", "dir"} {
		g.Expect(err).To(MatchError(ContainSubstring(filepath.Join(dir, name))))
	}
	g.Expect(err.Error()).NotTo(ContainSubstring(".new-"))
	g.Expect(files(g, dir)).To(Equal(before))
}

func TestAnIntentThatCannotBeWritten(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	g.Expect(intent("c1").Write(filepath.Join(file, "del"))).To(MatchError(ContainSubstring("keep the DEL for the agent")))
	_, err := cni.ReadIntents(file)
	g.Expect(err).To(MatchError(ContainSubstring("read the DELs that wait")))
	g.Expect(cni.ReadIntents(filepath.Join(t.TempDir(), "was never made"))).To(BeEmpty())
}
