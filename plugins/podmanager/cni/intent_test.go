// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func intent(container string) cni.Intent {
	return cni.Intent{Network: "pods", ContainerID: container, IfName: "eth0"}
}

// intentDir returns the directory of intents of a run directory that an agent has
// marked as its own.
func intentDir(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	run := filepath.Join(t.TempDir(), "run")
	dir := cni.IntentDir(filepath.Join(run, "agent.sock"))
	g.Expect(os.MkdirAll(dir, 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(run, cni.LockFile), nil, 0o600)).To(Succeed())
	return dir
}

// readAll returns the intents of dir and the names of the files that were refused.
func readAll(g Gomega, dir string) (all []cni.Intent, refused []string) {
	all, bad, err := cni.ReadIntents(dir, os.Geteuid())
	g.Expect(err).NotTo(HaveOccurred())
	for _, r := range bad {
		g.Expect(r.Err).To(MatchError(ContainSubstring(filepath.Join(dir, r.Name))))
		refused = append(refused, r.Name)
	}
	return all, refused
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
	dir := intentDir(t)
	g.Expect(dir).To(HaveSuffix("/run/del"))
	in := intent("c1")
	g.Expect(in.Waiting(dir)).To(BeFalse())
	g.Expect(in.Remove(dir)).To(Succeed(), "what is not there is forgotten already")
	g.Expect(in.Write(dir)).To(Succeed())
	g.Expect(in.Waiting(dir)).To(BeTrue())
	g.Expect(in.Write(dir)).To(Succeed(), "again")
	g.Expect(files(g, dir)).To(Equal([]string{in.Name()}), "one attachment, one file, and nothing half done beside it")
	all, refused := readAll(g, dir)
	g.Expect(all).To(Equal([]cni.Intent{in}))
	g.Expect(refused).To(BeEmpty())
	g.Expect(in.Remove(dir)).To(Succeed())
	g.Expect(in.Waiting(dir)).To(BeFalse())
	all, _ = readAll(g, dir)
	g.Expect(all).To(BeEmpty())
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
	dir := intentDir(t)
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
	all, _ := readAll(g, dir)
	g.Expect(all).To(HaveLen(cni.MaxIntents))
}

// A file that is not an intent is refused by name, without waiting for it and
// without reading it whole, and keeps no intent from being read.
func TestFilesThatAreRefused(t *testing.T) {
	victim := intent("victim")
	text, err := json.Marshal(victim)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, plant := range map[string]func(g Gomega, path string){
		"garbage":       func(g Gomega, path string) { g.Expect(os.WriteFile(path, []byte("{"), 0o600)).To(Succeed()) },
		"an empty file": func(g Gomega, path string) { g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed()) },
		"a directory":   func(g Gomega, path string) { g.Expect(os.Mkdir(path, 0o700)).To(Succeed()) },
		"another one's intent": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path, []byte(`{"network": "x"}`), 0o600)).To(Succeed())
		},
		"a pipe": func(g Gomega, path string) { g.Expect(syscall.Mkfifo(path, 0o666)).To(Succeed()) },
		"a link": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path+".new", text, 0o600)).To(Succeed())
			g.Expect(os.Rename(path+".new", filepath.Dir(path)+"/.new-target")).To(Succeed())
			g.Expect(os.Symlink(".new-target", path)).To(Succeed())
		},
		"a second name": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
			g.Expect(os.Link(path, filepath.Join(filepath.Dir(filepath.Dir(path)), "other"))).To(Succeed())
		},
		"a huge file": func(g Gomega, path string) {
			g.Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
			g.Expect(os.Truncate(path, 3<<30)).To(Succeed()) // it has holes only
		},
		"another user's file": func(g Gomega, path string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			g.Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
			g.Expect(os.Chown(path, 65534, 65534)).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := intentDir(t)
			g.Expect(intent("c1").Write(dir)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, ".new-123"), []byte("half written"), 0o600)).To(Succeed())
			plant(g, filepath.Join(dir, victim.Name()))
			all, refused := readAll(g, dir)
			g.Expect(all).To(Equal([]cni.Intent{intent("c1")}))
			g.Expect(refused).To(Equal([]string{victim.Name()}))
			_, bad, err := cni.ReadIntents(dir, os.Geteuid())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(bad[0].Err).To(MatchError(ContainSubstring(map[string]string{
				"a directory": "a regular file", "a pipe": "a regular file", "a link": "a regular file", "a second name": "2 names",
				"a huge file": "at most 16384", "another user's file": "user 65534", "another one's intent": "its name",
			}[name])))
			path, err := cni.SetAside(dir, bad[0].Name)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = os.Lstat(path)
			g.Expect(err).NotTo(HaveOccurred(), "it is kept for people to look at")
			all, refused = readAll(g, dir)
			g.Expect(all).To(HaveLen(1))
			g.Expect(refused).To(BeEmpty(), "it is reported once")
		})
	}
}

// A DEL is kept only in a directory that an agent has made and marked, and that no
// other user may write to.
func TestADirectoryThatNoAgentReads(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(g Gomega, run string)
		say   string
	}{
		"there is none":        {func(g Gomega, run string) { g.Expect(os.RemoveAll(run)).To(Succeed()) }, cni.LockFile},
		"no agent was there":   {func(g Gomega, run string) { g.Expect(os.Remove(filepath.Join(run, cni.LockFile))).To(Succeed()) }, cni.LockFile},
		"no agent has made it": {func(g Gomega, run string) { g.Expect(os.Remove(filepath.Join(run, "del"))).To(Succeed()) }, "del"},
		"the mark is a link": {func(g Gomega, run string) {
			g.Expect(os.Rename(filepath.Join(run, cni.LockFile), filepath.Join(run, "x"))).To(Succeed())
			g.Expect(os.Symlink("x", filepath.Join(run, cni.LockFile))).To(Succeed())
		}, "regular"},
		"other users may write into the run directory": {func(g Gomega, run string) { g.Expect(os.Chmod(run, 0o777)).To(Succeed()) }, "0777"},
		"other users may write into it":                {func(g Gomega, run string) { g.Expect(os.Chmod(filepath.Join(run, "del"), 0o770)).To(Succeed()) }, "0770"},
		"it is another user's": {func(g Gomega, run string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory away")
			}
			g.Expect(os.Chown(filepath.Join(run, "del"), 65534, 65534)).To(Succeed())
		}, "65534"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := intentDir(t)
			c.spoil(g, filepath.Dir(dir))
			g.Expect(intent("c1").Write(dir)).To(MatchError(And(ContainSubstring("no agent reads "+dir), ContainSubstring(c.say))))
			g.Expect(intent("c1").Waiting(dir)).To(BeFalse())
		})
	}
}

func TestADirectoryThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	_, _, err := cni.ReadIntents(file, os.Geteuid())
	g.Expect(err).To(MatchError(ContainSubstring("read the DELs that wait")))
	dir := intentDir(t)
	g.Expect(intent("c1").Write(dir)).To(Succeed())
	g.Expect(os.Chmod(dir, 0o777)).To(Succeed())
	_, _, err = cni.ReadIntents(dir, os.Geteuid())
	g.Expect(err).To(MatchError(And(ContainSubstring(dir), ContainSubstring("0777"), ContainSubstring("0700"))))
	all, _ := readAll(g, filepath.Join(t.TempDir(), "was never made"))
	g.Expect(all).To(BeEmpty())
}

// A runtime repeats its DELs, and the agent applies some meanwhile. An intent that is
// written again or goes while it is read is not refused: a refusal would lose the DEL.
func TestAnIntentIsWrittenAgainWhileItIsRead(t *testing.T) {
	g := NewWithT(t)
	dir := intentDir(t)
	stays, comes := intent("stays"), intent("comes and goes")
	g.Expect(stays.Write(dir)).To(Succeed())
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := errors.Join(stays.Write(dir), comes.Write(dir), comes.Remove(dir)); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 5000 {
		_, refused, _ := cni.ReadIntents(dir, os.Geteuid()) // one that is not listed or read now is read the next time
		g.Expect(refused).To(BeEmpty())
	}
	close(stop)
	g.Expect(<-done).To(Succeed())
	all, _ := readAll(g, dir)
	g.Expect(all).To(Equal([]cni.Intent{stays}))
}

// The agent of a run directory may be another user than cadastre-cni, which is root.
func TestAnAgentThatIsNotRootReadsTheIntentsOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	g := NewWithT(t)
	dir := intentDir(t)
	const agent = 65534
	for _, path := range []string{filepath.Dir(dir), filepath.Join(filepath.Dir(dir), cni.LockFile), dir} {
		g.Expect(os.Chown(path, agent, agent)).To(Succeed())
	}
	g.Expect(intent("c1").Write(dir)).To(Succeed())
	info, err := os.Stat(filepath.Join(dir, intent("c1").Name()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	g.Expect(info.Sys().(*syscall.Stat_t).Uid).To(BeEquivalentTo(agent), "only its owner may read it")
	all, refused, err := cni.ReadIntents(dir, agent)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(refused).To(BeEmpty())
	g.Expect(all).To(Equal([]cni.Intent{intent("c1")}))
}
