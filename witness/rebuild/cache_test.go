// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild_test

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
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
	of := func(addrs ...netip.Addr) []rebuild.Attachment {
		return []rebuild.Attachment{{
			Key: ledger.Key{Network: "k8s", ContainerID: "c1", IfName: "eth0"}, Pod: ledger.Pod{Namespace: "default", Name: "web", UID: "u"},
			NetNS: "/run/netns/c1", Addrs: addrs,
		}}
	}
	wired := func(mac string, addrs ...netip.Addr) []rebuild.Attachment {
		all := of(addrs...)
		all[0].Wired, all[0].MAC = true, mac
		return all
	}
	for name, c := range map[string]struct {
		text string
		want []rebuild.Attachment
		err  string
	}{
		"IPAM below another plugin": {text: result(list, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.5.7/24"},{"address":"fd00::7/64"}]}`), want: of(addr("10.1.5.7"), addr("fd00::7"))},
		"the main plugin":           {text: result(`{"name":"k8s","type":"cadastre-cni"}`, `{"ips":[{"address":"10.1.5.7/24"}]}`), want: wired("", addr("10.1.5.7"))},
		"the main plugin's wire": {text: result(`{"name":"k8s","plugins":[{"type":"cadastre-cni"},{"type":"portmap"}]}`, `{"interfaces":[{"name":"cad1","mac":"02:00:00:00:00:01"},
			{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/run/netns/c1"}],"ips":[{"address":"10.1.5.7/32"}]}`), want: wired("02:00:00:00:00:02", addr("10.1.5.7"))},
		"CNI 0.2":                 {text: result(list, `{"ip4":{"ip":"10.1.5.7/24"},"ip6":{"ip":"fd00::7/64"}}`), want: of(addr("10.1.5.7"), addr("fd00::7"))},
		"another plugin":          {text: result(`{"name":"k8s","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`, `{"ips":[{"address":"10.1.5.7/24"}]}`)},
		"another kind of file":    {text: `{"kind":"other"}`},
		"a damaged file":          {text: `{"kind":"cniCacheV1`, err: "read the CNI result .*/f: unexpected end"},
		"a damaged configuration": {text: result(`{`, `{}`), err: "its configuration"},
		"a damaged address":       {text: result(list, `{"ips":[{"address":"10.1.5.7"}]}`), err: "10.1.5.7"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			dir := t.TempDir()
			g.Expect(os.WriteFile(filepath.Join(dir, "f"), []byte(c.text), 0o600)).To(Succeed())
			got, err := rebuild.ReadCache(dir, "cadastre-cni")
			if c.err != "" {
				g.Expect(err).To(MatchError(MatchRegexp(c.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(c.want))
		})
	}
	got, err := rebuild.ReadCache(filepath.Join(t.TempDir(), "not-there"), "cadastre-cni")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(got).To(BeEmpty())
}
