// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild_test

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/rebuild"
)

// result returns a file of libcni's cache.
func result(config, result string) string {
	return fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"k8s","netns":"/run/netns/c1",
		"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","web"],["K8S_POD_UID","u"]],"result":%s}`,
		base64.StdEncoding.EncodeToString([]byte(config)), result)
}

func TestReadCache(t *testing.T) {
	const list = `{"name":"k8s","plugins":[{"type":"bridge","ipam":{"type":"cadastre-cni"}},{"type":"portmap"}]}`
	of := func(addrs ...netip.Addr) []witness.Attachment {
		return []witness.Attachment{{
			Key: ledger.Key{Network: "k8s", ContainerID: "c1", IfName: "eth0"}, Pod: ledger.Pod{Namespace: "default", Name: "web", UID: "u"},
			NetNS: "/run/netns/c1", Addrs: addrs,
		}}
	}
	wired := func(mac string, addrs ...netip.Addr) []witness.Attachment {
		all := of(addrs...)
		all[0].Wired, all[0].MAC = true, mac
		return all
	}
	for name, c := range map[string]struct {
		text string
		want []witness.Attachment
		err  string // "": it is read
	}{
		"IPAM below another plugin": {text: result(list, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.5.7/24"},{"address":"fd00::7/64"}]}`), want: of(addr("10.1.5.7"), addr("fd00::7"))},
		"the main plugin":           {text: result(`{"name":"k8s","type":"cadastre-cni"}`, `{"ips":[{"address":"10.1.5.7/24"}]}`), want: wired("", addr("10.1.5.7"))},
		"the main plugin's wire": {text: result(`{"name":"k8s","plugins":[{"type":"cadastre-cni"},{"type":"portmap"}]}`, `{"interfaces":[{"name":"cad1","mac":"02:00:00:00:00:01"},
			{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.5.7/32"}]}`), want: wired("02:00:00:00:00:02", addr("10.1.5.7"))},
		"CNI 0.2":                 {text: result(list, `{"ip4":{"ip":"10.1.5.7/24"},"ip6":{"ip":"fd00::7/64"}}`), want: of(addr("10.1.5.7"), addr("fd00::7"))},
		"another plugin":          {text: result(`{"name":"k8s","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`, `{"ips":[{"address":"10.1.5.7/24"}]}`)},
		"another kind of file":    {text: `{"kind":"other"}`},
		"an empty file":           {text: "", err: "the CNI result .*/f cannot be read: it is empty"},
		"a huge file":             {text: result(list, `{}`) + strings.Repeat(" ", 5<<20), err: "want at most"},
		"a damaged file":          {text: `{"kind":"cniCacheV1`, err: "the CNI result .*/f cannot be read: unexpected end"},
		"a damaged configuration": {text: result(`{`, `{}`), err: "its configuration"},
		"a damaged address":       {text: result(list, `{"ips":[{"address":"10.1.5.7"}]}`), err: "10.1.5.7"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(os.WriteFile(filepath.Join(dir, "f"), []byte(c.text), 0o600)).To(Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, "g"), []byte(result(list, `{"ips":[{"address":"10.1.5.9/24"}]}`)), 0o600)).To(Succeed())
			got, unread, err := rebuild.ReadCache(dir, "cadastre-cni")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(append(c.want, of(addr("10.1.5.9"))...)), "another file is read all the same")
			if c.err == "" {
				g.Expect(unread).To(BeEmpty())
			} else {
				g.Expect(unread).To(ConsistOf(MatchRegexp(c.err)))
			}
		})
	}
	got, unread, err := rebuild.ReadCache(filepath.Join(t.TempDir(), "not-there"), "cadastre-cni")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(got).To(BeEmpty())
	NewWithT(t).Expect(unread).To(BeEmpty())
}

// A pipe has no end as long as nothing writes into it.
func TestAPipeAmongTheResults(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600)).To(Succeed())
	g.Expect(os.Mkdir(filepath.Join(dir, "folder"), 0o700)).To(Succeed())
	_, unread, err := rebuild.ReadCache(dir, "cadastre-cni")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(unread).To(ConsistOf(ContainSubstring("/pipe cannot be read"), ContainSubstring("/folder cannot be read")))
}

// What a result that cannot be read says is not known, so a person decides.
func TestAResultThatCannotBeReadIsMissing(t *testing.T) {
	g := NewWithT(t)
	w := &witness.World{Kernel: &witness.KernelView{}, Runtime: &witness.RuntimeView{}, Engine: &witness.EngineView{}}
	g.Expect(new(rebuild.Make(w, rebuild.Input{})).Complete()).To(BeTrue())
	p := rebuild.Make(w, rebuild.Input{Unread: []string{"the CNI result f cannot be read: it is empty"}})
	g.Expect(p.Complete()).To(BeFalse())
	g.Expect(p.Missing).To(ConsistOf(ContainSubstring("it is empty")))
}

// The agent reads the folder in each round: a damaged file, as a crash leaves it, hides no other
// one, and a file that has changed is read again.
func TestResults(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "results")
	r := rebuild.NewResults(dir, "cadastre-cni")
	read := func() (addrs []netip.Addr) {
		all, err := r.Read()
		g.Expect(err).NotTo(HaveOccurred())
		for _, a := range all {
			g.Expect(a.NetNS).To(Equal("/run/netns/c1"))
			addrs = append(addrs, a.Addrs...)
		}
		return addrs
	}
	write := func(name, text string) {
		g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)).To(Succeed())
	}
	g.Expect(read()).To(BeEmpty(), "there is no folder")
	g.Expect(os.MkdirAll(filepath.Join(dir, "folder"), 0o700)).To(Succeed())
	const ours = `{"name":"k8s","type":"cadastre-cni"}`
	write("empty", "")
	write("damaged", `{"kind":"cniCacheV1`)
	write("c1", result(ours, `{"ips":[{"address":"10.1.5.7/24"}]}`))
	g.Expect(read()).To(Equal([]netip.Addr{addr("10.1.5.7")}))
	g.Expect(read()).To(Equal([]netip.Addr{addr("10.1.5.7")}))
	write("c1", result(ours, `{"ips":[{"address":"10.1.5.77/24"}]}`))
	write("empty", result(ours, `{"ips":[{"address":"10.1.5.8/24"}]}`))
	g.Expect(read()).To(Equal([]netip.Addr{addr("10.1.5.77"), addr("10.1.5.8")}))
	g.Expect(os.Remove(filepath.Join(dir, "c1"))).To(Succeed())
	g.Expect(read()).To(Equal([]netip.Addr{addr("10.1.5.8")}))

	g.Expect(os.RemoveAll(dir)).To(Succeed())
	g.Expect(os.WriteFile(dir, nil, 0o600)).To(Succeed())
	_, err := r.Read()
	g.Expect(err).To(MatchError(ContainSubstring("read the CNI results")))
}
