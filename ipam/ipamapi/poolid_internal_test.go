// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"encoding/json"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPoolIDs(t *testing.T) {
	p := netip.MustParsePrefix
	for text, id := range map[string]poolID{
		"default/172.27.0.0/16":                      {space: "default", prefix: p("172.27.0.0/16")},
		"default/172.27.0.0/16/172.27.3.0/24":        {space: "default", prefix: p("172.27.0.0/16"), sub: p("172.27.3.0/24")},
		"default/fd00::/64/fd00::/80":                {space: "default", prefix: p("fd00::/64"), sub: p("fd00::/80")},
		"default/172.27.0.0/16?group=blue":           {space: "default", prefix: p("172.27.0.0/16"), group: "blue"},
		"default/10.1.5.16/28?pods=default":          {space: "default", prefix: p("10.1.5.16/28"), pods: "default"},
		"a b/10.0.0.0/8?group=%2F%3F%26+x%00&pods=y": {space: "a b", prefix: p("10.0.0.0/8"), group: "/?& x\x00", pods: "y"},
	} {
		g := NewWithT(t)
		g.Expect(id.String()).To(Equal(text))
		got, err := parsePoolID(text)
		g.Expect(err).NotTo(HaveOccurred(), text)
		g.Expect(got).To(Equal(id))
	}
	for _, text := range []string{
		"", "default", "default/172.27.0.0", "default/172.27.0.0/16/172.27.3.0", "default/172.27.0.0/16/", "/172.27.0.0/16",
		"default/172.27.0.0/16/172.27.3.0/24/x", "default/172.27.0.1/16", "default/172.27.0.0/33", "default/172.27.0.0/16/172.28.0.0/24",
		"default/172.27.0.0/16/172.27.0.0/16", "default/172.27.0.0/16/172.27.3.1/24", "default/172.27.0.0/16/fd00::/64", "default/0.0.0.0/0",
		"default/172.27.0.0/16?", "default/172.27.0.0/16?group=", "default/172.27.0.0/16?group=a&group=b", "default/172.27.0.0/16?x=y",
		"default/172.27.0.0/16?pods=a&group=b", "default/172.27.0.0/16?group=%", "default/172.027.0.0/16", "default/FD00::/64", "default/::ffff:10.0.0.0/104",
	} {
		_, err := parsePoolID(text)
		NewWithT(t).Expect(err).To(MatchError(ErrBadPool), text)
	}
}

func FuzzPoolID(f *testing.F) {
	f.Add("default/172.27.0.0/16/172.27.3.0/24?group=blue&pods=default")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := parsePoolID(text); err == nil && id.String() != text {
			t.Errorf("%q is read as %q", text, id)
		}
	})
}

func TestHostPrefix(t *testing.T) {
	g := NewWithT(t)
	g.Expect(hostPrefix("").String()).To(Equal("fd42:98fc:1c14::/48"))
	g.Expect(hostPrefix("499d4bc0-b0b3-416f-b1ee-cf6486315593").String()).To(Equal("fd62:fb69:18af::/48"))
}

func TestPredefinedPools(t *testing.T) {
	g := NewWithT(t)
	list := func(pairs ...any) (all []Predefined) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, Predefined{netip.MustParsePrefix(pairs[i].(string)), pairs[i+1].(int)})
		}
		return all
	}
	got, err := predefined("Pools", list("192.168.0.0/24", 24, "10.0.0.0/8", 16, "10.0.0.0/8", 24, "fd01::/48", 64, "10.10.0.0/8", 24, "10.0.100.0/8", 24, "fd00::/64", 64, "10.5.0.0/16", 24))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got[0]).To(Equal(list("10.0.0.0/8", 16, "192.168.0.0/24", 24)), "what is in another one is left out")
	g.Expect(got[1]).To(Equal(list("fd00::/64", 64, "fd01::/48", 64)))
	for text, bad := range map[string][]Predefined{
		"Pools[1]: size 8 of base 10.0.0.0/16: want 16 to 32": list("10.1.0.0/16", 24, "10.0.0.0/16", 8),
		"Pools[0]: size 33 of base 10.0.0.0/16":               list("10.0.0.0/16", 33),
		"Pools[0]: the base is not a prefix":                  {{}},
	} {
		_, err := predefined("Pools", bad)
		g.Expect(err).To(MatchError(ContainSubstring(text)))
	}
}

func TestConfig(t *testing.T) {
	g := NewWithT(t)
	c, err := Config{}.defaults()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Local.Name + " " + c.Global.Name).To(Equal("LocalDefault GlobalDefault"))
	g.Expect(c.Local.Pools).To(HaveLen(8))
	g.Expect(c.Local.Pools[7]).To(Equal(Predefined{netip.MustParsePrefix("fd42:98fc:1c14::/48"), 64}))
	six := Predefined{netip.MustParsePrefix("fd77::/48"), 64}
	c, err = Config{Local: Space{Pools: []Predefined{six}}}.defaults()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Local.Pools).To(Equal([]Predefined{six}), "a list with IPv6 pools gets no further ones")
	for text, bad := range map[string]Config{
		`Local.Name: "a/b" contains /`:         {Local: Space{Name: "a/b"}},
		`Global.Name: "a?" contains / or`:      {Global: Space{Name: "a?"}},
		`Global.Name: "x" is also the name`:    {Local: Space{Name: "x"}, Global: Space{Name: "x"}},
		`CoolDown: -1s is negative`:            {CoolDown: -1e9},
		`FromPods.Pool: "docker/x" contains /`: {FromPods: FromPods{Pool: "docker/x"}},
	} {
		_, err := bad.defaults()
		g.Expect(err).To(MatchError(ContainSubstring(text)))
	}
}

// TestRecordText: what is written by hand is what reflection writes.
func TestRecordText(t *testing.T) {
	g := NewWithT(t)
	for _, r := range []record{
		{}, {Version: 1, Refs: 1}, {Version: 1, Refs: 12, Chosen: true}, {Version: 1, Refs: 1, Closing: true}, {Version: 1, Refs: -3, Gateways: map[string]int{"10.1.0.1": 2}, Chosen: true},
	} {
		want, err := json.Marshal(r)
		g.Expect(err).NotTo(HaveOccurred())
		have, err := r.text()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(have)).To(Equal(string(want)))
	}
}
