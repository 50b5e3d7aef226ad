// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package conflist_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

func TestPortMapVersions(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(conflist.PortMapVersions(t.Context(), dir)).To(BeNil(), "there is no portmap")
	g.Expect(conflist.PortMapVersions(t.Context(), filepath.Join(dir, "none"))).To(BeNil())
	script := func(text string) {
		path := filepath.Join(dir, conflist.PortMap)
		g.Expect(os.RemoveAll(path)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700)).To(Succeed())
	}
	script(`[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'`)
	g.Expect(conflist.PortMapVersions(t.Context(), dir)).To(Equal([]string{"0.4.0", "1.0.0"}))
	for _, bad := range []string{"exit 1", "echo x", "echo '{}'"} {
		script(bad)
		_, err := conflist.PortMapVersions(t.Context(), dir)
		g.Expect(err).To(MatchError(ContainSubstring(filepath.Join(dir, conflist.PortMap))), bad)
	}
}

// The portmap of the distribution, as a node has it.
func TestARealPortMap(t *testing.T) {
	const dir = "/usr/lib/cni"
	if _, err := os.Stat(filepath.Join(dir, conflist.PortMap)); errors.Is(err, fs.ErrNotExist) {
		t.Skip("NOT RUN: this machine has no portmap (apt-get install containernetworking-plugins)")
	}
	g := NewWithT(t)
	versions, err := conflist.PortMapVersions(t.Context(), dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(strings.Join(versions, " ")).To(ContainSubstring("1.0.0"))
}
