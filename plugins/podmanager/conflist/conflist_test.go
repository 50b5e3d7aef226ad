// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// plugins16 returns the versions of a portmap of containernetworking/plugins 1.6.
func plugins16() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

// libcni 1.2 takes the newest version of the list; an older one ignores cniVersions.
func TestVersionsOfAList(t *testing.T) {
	for name, c := range map[string]struct {
		portmap  []string
		old, now string // that an old libcni takes, and the current one
	}{
		"alone":                   {nil, "1.0.0", "1.1.0"},
		"with a new portmap":      {plugins16(), "1.0.0", "1.1.0"},
		"with Debian 12's":        {plugins16()[:6], "1.0.0", "1.0.0"},
		"with an old portmap":     {plugins16()[:5], "0.4.0", "0.4.0"},
		"with one of the future":  {[]string{"1.1.0", "2.0.0"}, "1.1.0", "1.1.0"},
		"with one in other order": {[]string{"1.1.0", "1.0.0"}, "1.0.0", "1.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			text, err := conflist.List{Network: "pods", PortMap: c.portmap}.Render()
			g.Expect(err).NotTo(HaveOccurred())
			list, err := libcni.ConfListFromBytes(text)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(list.CNIVersion).To(Equal(c.now))
			g.Expect(string(text)).To(ContainSubstring(`"cniVersion": "` + c.old + `"`))
			g.Expect(conflist.IsOurs(text)).To(BeTrue())
		})
	}
	g := NewWithT(t)
	_, err := conflist.List{Network: "pods", PortMap: []string{"0.2.0"}}.Render()
	g.Expect(err).To(MatchError(And(ContainSubstring("[0.2.0]"), ContainSubstring("want one in common"))))
}

func TestPluginsOfAList(t *testing.T) {
	g := NewWithT(t)
	text, err := conflist.List{Network: "pods", Socket: "/x/agent.sock", PortMap: plugins16()}.Render()
	g.Expect(err).NotTo(HaveOccurred())
	list, err := libcni.ConfListFromBytes(text)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(list.Name).To(Equal("pods"))
	g.Expect(list.Plugins).To(HaveLen(2))
	main, portmap := list.Plugins[0], list.Plugins[1]
	g.Expect(main.Network.Type).To(Equal("cadastre-cni"))
	g.Expect(main.Network.Capabilities).To(Equal(map[string]bool{"ips": true, "mac": true}))
	g.Expect(string(main.Bytes)).To(ContainSubstring(`"/x/agent.sock"`))
	g.Expect(portmap.Network.Type).To(Equal("portmap"))
	g.Expect(portmap.Network.Capabilities).To(Equal(map[string]bool{"portMappings": true}))

	text, err = conflist.List{Network: "pods"}.Render()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).NotTo(Or(ContainSubstring("portmap"), ContainSubstring("ipam")))
}

func TestIsOurs(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type": "cadastre-cni"}`: true, `{"plugins": [{"type": "cadastre-cni"}, {"type": "portmap"}]}`: true,
		`{"plugins": [{"type": "bridge", "ipam": {"type": "cadastre-cni"}}]}`: false, `{"plugins": [{"type": "x"}, {"type": "cadastre-cni"}]}`: false,
		`{"plugins": []}`: false, "": false, "x": false,
	} {
		NewWithT(t).Expect(conflist.IsOurs([]byte(text))).To(Equal(want), text)
	}
}

// names are the files of a folder.
func names(g Gomega, dir string) (all []string) {
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWrite(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "cni", "net.d")
	path := filepath.Join(dir, conflist.FileName)
	changed, err := conflist.Write(dir, []byte("one"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeTrue())
	first, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.Mode()).To(Equal(fs.FileMode(0o600)))

	changed, err = conflist.Write(dir, []byte("one"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeFalse())
	same, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.SameFile(first, same)).To(BeTrue(), "it was not written again: runtimes watch the folder")

	changed, err = conflist.Write(dir, []byte("two"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeTrue())
	other, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.SameFile(first, other)).To(BeFalse(), "it was renamed: a reader of the old one reads it to its end")
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("two"))

	g.Expect(os.Chmod(path, 0o666)).To(Succeed())
	changed, err = conflist.Write(dir, []byte("two"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(changed).To(BeTrue(), "every user could write it")
	g.Expect(names(g, dir)).To(Equal([]string{conflist.FileName}))
}

// A failed write leaves the list as it was, and nothing that a runtime would read.
func TestAWriteThatFails(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.MkdirAll(filepath.Join(dir, conflist.FileName, "x"), 0o700)).To(Succeed()) // cannot be replaced by a file
	_, err := conflist.Write(dir, []byte("one"))
	g.Expect(err).To(MatchError(ContainSubstring(conflist.FileName)))
	g.Expect(names(g, dir)).To(Equal([]string{conflist.FileName}))

	file := filepath.Join(dir, "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	_, err = conflist.Write(file, []byte("one"))
	g.Expect(err).To(MatchError(ContainSubstring(file)))
}

// The order is that of libcni.
func TestBefore(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(conflist.Before(filepath.Join(dir, "none"))).To(BeEmpty())
	for _, name := range []string{
		"10-bridge.conf", "05-cilium.conflist", "10-aws.conflist", "10-flannel.conflist", "87-podman.conflist", "00-x.json", "00-readme", "00-multus.conf.bak",
		conflist.FileName, "100-crio-bridge.conflist",
	} {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600)).To(Succeed())
	}
	g.Expect(os.Mkdir(filepath.Join(dir, "00-folder.conf"), 0o700)).To(Succeed())
	before, err := conflist.Before(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(before).To(Equal([]string{"00-x.json", "05-cilium.conflist", "10-aws.conflist", "10-bridge.conf"}))
	all, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	g.Expect(err).NotTo(HaveOccurred())
	for i, name := range append(before, conflist.FileName) {
		g.Expect(all[i]).To(Equal(filepath.Join(dir, name)))
	}
}

func TestRemove(t *testing.T) {
	ours := `{"plugins": [{"type": "cadastre-cni"}]}`
	for name, c := range map[string]struct {
		list    string // "": none
		removed bool
		saying  string
	}{
		"ours":              {ours, true, ""},
		"none":              {"", false, ""},
		"of another plugin": {`{"plugins": [{"type": "bridge"}]}`, false, "by hand"},
		"not JSON":          {"x", false, "by hand"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			want := []string{"10-flannel.conflist"}
			g.Expect(os.WriteFile(filepath.Join(dir, want[0]), []byte(ours), 0o600)).To(Succeed())
			rest := "." + conflist.FileName + ".123.tmp"
			g.Expect(os.WriteFile(filepath.Join(dir, rest), nil, 0o600)).To(Succeed())
			if c.list != "" {
				g.Expect(os.WriteFile(filepath.Join(dir, conflist.FileName), []byte(c.list), 0o600)).To(Succeed())
			}
			removed, err := conflist.Remove(dir)
			g.Expect(removed).To(Equal(c.removed))
			if c.saying != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
				want = []string{rest, conflist.FileName, want[0]}
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(names(g, dir)).To(Equal(want))
		})
	}
	g := NewWithT(t)
	removed, err := conflist.Remove(filepath.Join(t.TempDir(), "none"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(removed).To(BeFalse())
}

func TestVersionsOfPortMap(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	path := filepath.Join(dir, conflist.PortMap)
	g.Expect(os.WriteFile(path, []byte(`#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'
`), 0o700)).To(Succeed())
	g.Expect(conflist.FindPortMap(t.Context(), dir)).To(Equal(conflist.HostPorts{Versions: []string{"0.4.0", "1.0.0"}}))
	link := t.TempDir()
	g.Expect(os.Symlink(path, filepath.Join(link, conflist.PortMap))).To(Succeed())
	g.Expect(conflist.FindPortMap(t.Context(), link).Versions).To(Equal([]string{"0.4.0", "1.0.0"}))
}

// needsLoader is a program that is dynamically linked, with a loader that is not on this machine.
func needsLoader(g Gomega) []byte {
	program, err := os.ReadFile("/bin/sh")
	g.Expect(err).NotTo(HaveOccurred())
	const loader = "/ld-linux"
	g.Expect(bytes.Contains(program, []byte(loader))).To(BeTrue(), "this machine's shell is linked statically")
	return bytes.ReplaceAll(program, []byte(loader), []byte("/ld-nowhe"))
}

// An agent in a container does not see all that the runtime sees, which runs portmap.
func TestAPortMapThatCannotRunHere(t *testing.T) {
	for name, put := range map[string]func(g Gomega, path string) string{
		"its loader is on the node": func(g Gomega, path string) string {
			g.Expect(os.WriteFile(path, needsLoader(g), 0o700)).To(Succeed())
			return "no such file or directory"
		},
		"its interpreter is on the node": func(g Gomega, path string) string {
			g.Expect(os.WriteFile(path, []byte("#!/nowhere/sh\n"), 0o700)).To(Succeed())
			return "no such file or directory"
		},
		"a link to a folder of the node": func(g Gomega, path string) string {
			g.Expect(os.Symlink("/nowhere/lib/cni/portmap", path)).To(Succeed())
			return "is a link to /nowhere/lib/cni/portmap, whose folder this agent does not see"
		},
		"a relative link to a folder of the node": func(g Gomega, path string) string {
			g.Expect(os.Symlink("../nowhere/portmap", path)).To(Succeed())
			return "whose folder this agent does not see"
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), conflist.PortMap)
			saying := put(g, path)
			found := conflist.FindPortMap(t.Context(), filepath.Dir(path))
			g.Expect(found.Versions).To(Equal([]string{"0.3.1", "0.4.0", "1.0.0"}))
			g.Expect(found.Reason).To(And(ContainSubstring(path), ContainSubstring(saying), ContainSubstring("are assumed")))
		})
	}
}

// A list with a portmap that no runtime can run would fail the ADD of every pod.
func TestAPortMapThatIsNone(t *testing.T) {
	script := func(text string) func(Gomega, string) {
		return func(g Gomega, path string) {
			g.Expect(os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700)).To(Succeed())
		}
	}
	for name, c := range map[string]struct {
		put    func(g Gomega, path string)
		saying string
	}{
		"none":               {func(Gomega, string) {}, "does not exist"},
		"no folder":          {func(g Gomega, path string) { g.Expect(os.Remove(filepath.Dir(path))).To(Succeed()) }, "does not exist"},
		"a folder":           {func(g Gomega, path string) { g.Expect(os.Mkdir(path, 0o700)).To(Succeed()) }, "is of type"},
		"not executable":     {func(g Gomega, path string) { g.Expect(os.WriteFile(path, needsLoader(g), 0o600)).To(Succeed()) }, "not executable"},
		"a dangling link":    {func(g Gomega, path string) { g.Expect(os.Symlink("multi", path)).To(Succeed()) }, "which does not exist"},
		"a link to itself":   {func(g Gomega, path string) { g.Expect(os.Symlink(conflist.PortMap, path)).To(Succeed()) }, "too many levels"},
		"one that fails":     {script("exit 1"), "exit status 1"},
		"no JSON":            {script("echo x"), "invalid character"},
		"no versions":        {script("echo '{}'"), "names no version"},
		"of another machine": {func(g Gomega, path string) { g.Expect(os.WriteFile(path, []byte("x"), 0o700)).To(Succeed()) }, "exec format error"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), conflist.PortMap)
			c.put(g, path)
			found := conflist.FindPortMap(t.Context(), filepath.Dir(path))
			g.Expect(found.Versions).To(BeNil())
			g.Expect(found.Reason).To(And(ContainSubstring(path), ContainSubstring(c.saying)))
		})
	}
}

// The portmap of the distribution, as a node has it.
func TestARealPortMap(t *testing.T) {
	const dir = "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(dir, conflist.PortMap)); errors.Is(err, fs.ErrNotExist) {
		t.Skip("NOT RUN: this machine has no portmap (apt-get install containernetworking-plugins)")
	}
	g := NewWithT(t)
	found := conflist.FindPortMap(t.Context(), dir)
	g.Expect(found.Reason).To(BeEmpty())
	g.Expect(found.Versions).To(ContainElement("1.0.0"))
}
