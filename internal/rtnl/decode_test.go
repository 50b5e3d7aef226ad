// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// decoder is a decoder without its type, with the size of the header of its messages.
type decoder struct {
	kind   uint16 // of the request that lists the objects
	header int
	decode func([]byte) (any, error)
}

func decoders() map[string]decoder {
	return map[string]decoder{
		"link":      {unix.RTM_GETLINK, 16, func(b []byte) (any, error) { return rtnl.DecodeLink(b) }},
		"address":   {unix.RTM_GETADDR, 8, func(b []byte) (any, error) { return rtnl.DecodeAddress(b) }},
		"neighbour": {unix.RTM_GETNEIGH, 12, func(b []byte) (any, error) { return rtnl.DecodeNeighbour(b) }},
		"route":     {unix.RTM_GETROUTE, 12, func(b []byte) (any, error) { return rtnl.DecodeRoute(b) }},
		"rule":      {unix.RTM_GETRULE, 12, func(b []byte) (any, error) { return rtnl.DecodeRule(b) }},
	}
}

// recorded is a message that Linux has sent on a little-endian machine, and its content.
type recorded struct {
	kind, message string
	want          any
}

func records() []recorded {
	const rest = rtnl.AllRoutes
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	mac := func(last byte) []byte { return []byte{2, 0, 0, 0, 0, last} }
	return []recorded{
		{"link", "000001000300000043100100000000000700030076300000080004007805000008001b00070000000f00140063616461737472653a780000" +
			"0a0001000200000000010000100012000900010076657468000000000800050002000000", rtnl.Link{
			Index: 3, Flags: 0x11043, Name: "v0", Alias: "cadastre:x", Kind: "veth", MAC: mac(1), Group: 7, MTU: 1400,
			Lower: 2, LowerNSID: rtnl.Here, Target: rtnl.Here,
		}},
		{"address", "0220800003000000080001000a090002080002000a09000107000300763000000800080080000000" +
			"14000600ffffffffffffffffa2835b00a2835b00", rtnl.Address{
			Link: 3, Prefix: prefix("10.9.0.1/32"), Flags: unix.IFA_F_PERMANENT, Target: rtnl.Here,
		}},
		{"address", "0a4082000300000014000100fd000000000000000000000000000007" +
			"14000600ffffffffffffffffa2835b00a2835b000800080082000000", rtnl.Address{
			Link: 3, Prefix: prefix("fd00::7/64"), Flags: unix.IFA_F_PERMANENT | unix.IFA_F_NODAD, Target: rtnl.Here,
		}},
		{"neighbour", "020000000300000080000001080001000a0105090a0002000200000000090000080004000000000014000300" +
			"0000000000000000000000000000000005000c00ca000000", rtnl.Neighbour{
			Family: unix.AF_INET, Link: 3, State: unix.NUD_PERMANENT, Addr: addr("10.1.5.9"), MAC: mac(9), Protocol: 0xca,
		}},
		{"route", "02100000fcca00010000000008000f002c010000080001000a0200000800060005000000080005000a0105090800040003000000", rtnl.Route{
			Family: unix.AF_INET, Protocol: 0xca, Type: unix.RTN_UNICAST, Dst: prefix("10.2.0.0/16"), Table: 300, Metric: 5,
			Hop: rtnl.Hop{Link: 3, Gateway: addr("10.1.5.9")},
		}},
		{"route", "02100000feca00010000000008000f00fe000000080001000a030000" +
			"240009001000040003000000080005000a0105091000000003000000080005000a01050a", rtnl.Route{
			Family: unix.AF_INET, Protocol: 0xca, Type: unix.RTN_UNICAST, Dst: prefix("10.3.0.0/16"), Table: unix.RT_TABLE_MAIN,
			Hops: []rtnl.Hop{{Link: 3, Gateway: addr("10.1.5.9"), Onlink: true}, {Link: 3, Gateway: addr("10.1.5.10")}},
		}},
		{"route", "02100000fe0300010000000008000f00fe000000080001000a040000" +
			"160012000a00fd00000000000000000000000000000900000800040003000000", rtnl.Route{
			Family: unix.AF_INET, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST, Dst: prefix("10.4.0.0/16"), Table: unix.RT_TABLE_MAIN,
			Hop: rtnl.Hop{Link: 3, Gateway: addr("fd00::9")},
		}},
		{"route", "0a400000fe0300010000000008000f00fe00000014000100fd01000000000000000000000000000014000700fd000000000000000000000000000007" +
			"0c0008000800020014050000080006000004000014000500fd000000000000000000000000000009080004000300000024000c00" +
			"0000000000000000000000000000000000000000000000000000000000000000" + "0500140000000000", rtnl.Route{
			Family: unix.AF_INET6, Protocol: unix.RTPROT_BOOT, Type: unix.RTN_UNICAST, Dst: prefix("fd01::/64"), Table: unix.RT_TABLE_MAIN,
			Metric: 1024, Source: addr("fd00::7"), Hop: rtnl.Hop{Link: 3, Gateway: addr("fd00::9")}, More: true,
		}},
		{"rule", "02100000fc0000010000000008000f002d01000008000e0000000000050015000000000008000600e903000008000a0000010000" +
			"080010000001000008000d0007000000080001000a060000", rtnl.Rule{
			Family: unix.AF_INET, Src: prefix("0.0.0.0/0"), Dst: prefix("10.6.0.0/16"), Table: 301, Action: 1, Priority: 1001,
			Mark: 0x100, Mask: 0x100, SuppressGroup: 7,
		}},
		{"rule", "0a000000ff0000010000000008000f00ff00000008000e00ffffffff0500150002000000", rtnl.Rule{
			Family: unix.AF_INET6, Src: prefix("::/0"), Dst: prefix("::/0"), Table: unix.RT_TABLE_LOCAL, Action: 1,
			Protocol: unix.RTPROT_KERNEL, Suppress: rest, SuppressGroup: rest,
		}},
	}
}

func (r recorded) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(r.message)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodersReadWhatLinuxSends(t *testing.T) {
	for i, r := range records() {
		t.Run(fmt.Sprint(i, " ", r.kind), func(t *testing.T) {
			g := NewWithT(t)
			have, err := decoders()[r.kind].decode(r.bytes(t))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(have).To(Equal(r.want))
		})
	}
}

// TestDecodersInventNothing cuts messages at each byte. The decoder fails, or each field has the
// value of the whole message or of a message without attributes.
func TestDecodersInventNothing(t *testing.T) {
	for i, r := range records() {
		t.Run(fmt.Sprint(i, " ", r.kind), func(t *testing.T) {
			d, b := decoders()[r.kind], r.bytes(t)
			bare, _ := d.decode(b[:d.header]) // the error is that of a missing address
			for n := range b {
				have, err := d.decode(b[:n])
				switch {
				case n < d.header && err == nil:
					t.Errorf("%d bytes are less than a header of %d, and decode as %+v", n, d.header, have)
				case err != nil:
					continue
				}
				for _, f := range reflect.VisibleFields(reflect.TypeOf(have)) {
					field := func(of any) any { return reflect.ValueOf(of).FieldByIndex(f.Index).Interface() }
					if f.Anonymous || f.Name == "Prefix" {
						continue // before IFA_LOCAL has come, IFA_ADDRESS counts: the other end here
					}
					lacking := f.Name != "Dst" && f.Name != "Src" && reflect.DeepEqual(field(have), field(bare))
					if !lacking && !reflect.DeepEqual(field(have), field(r.want)) {
						t.Errorf("%d bytes have %s %v, all have %v", n, f.Name, field(have), field(r.want))
					}
				}
			}
		})
	}
}

// FuzzDecode decodes damaged messages: none ends the process, and what is decoded is valid.
func FuzzDecode(f *testing.F) {
	for _, r := range records() {
		f.Add(r.bytes(f))
	}
	f.Add([]byte{20, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	fits := func(family byte, p netip.Prefix) bool {
		return p.IsValid() && (family != unix.AF_INET || p.Addr().Is4()) && (family != unix.AF_INET6 || p.Addr().Is6())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for kind, d := range decoders() {
			have, err := d.decode(b)
			if err != nil {
				continue
			}
			valid := true
			switch x := have.(type) {
			case rtnl.Address:
				valid = x.Prefix.IsValid()
			case rtnl.Route:
				valid = fits(x.Family, x.Dst) && len(x.Hops) <= len(b)/unix.SizeofRtNexthop
			case rtnl.Rule:
				valid = fits(x.Family, x.Src) && fits(x.Family, x.Dst)
			}
			if !valid {
				t.Errorf("%x decodes as the %s %+v", b, kind, have)
			}
		}
		_ = rtnl.Messages(b, func(uint16, uint16, uint32, []byte) (bool, error) { return true, nil })
	})
}

// made is a namespace as a person makes it.
const made = `link add v0 address 02:00:00:00:00:01 mtu 1400 type veth peer name v1
link set v0 addrgenmode none
link set v1 addrgenmode none
link set v0 group 7 alias cadastre:x up
link set v1 up
addr add 10.1.5.7/24 dev v0
addr add 10.9.0.1 peer 10.9.0.2/32 dev v0
addr add fd00::7/64 dev v0 nodad
neigh add 10.1.5.9 lladdr 02:00:00:00:00:09 dev v0
neigh add fd00::9 lladdr 02:00:00:00:00:0a dev v0
route add 10.2.0.0/16 via 10.1.5.9 dev v0 proto 202 metric 5 table 300
route add 10.3.0.0/16 via 10.1.5.9 dev v0 onlink src 10.9.0.1
route add fd01::/64 via fd00::9 dev v0 src fd00::7
route add blackhole 10.5.0.0/16
rule add from 10.1.5.7 iif v0 lookup 300 pref 1000
rule add to 10.6.0.0/16 fwmark 0x100/0x100 suppress_prefixlength 0 lookup 301 pref 1001
`

// TestDecodersAgreeWithIP compares what the decoders read of a namespace with what ip shows.
func TestDecodersAgreeWithIP(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("NOT RUN: there is no program ip (Debian's package iproute2)")
	}
	err := rtnl.Apart(func() error {
		g := NewWithT(t)
		if _, err := ip(made, "-batch", "-"); err != nil {
			return err
		}
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		names := map[uint32]string{}
		for _, l := range read(t, s, "link", rtnl.DecodeLink) {
			names[l.Index] = l.Name
		}
		for what, lists := range map[string][2][]string{
			"link": {texts(read(t, s, "link", rtnl.DecodeLink), func(l rtnl.Link) string {
				up := l.Flags&unix.IFF_UP != 0
				return fmt.Sprintln(l.Index, l.Name, net.HardwareAddr(l.MAC), l.MTU, l.Alias, l.Kind, up)
			}), shown(t, "-d", "link")},
			"address": {texts(read(t, s, "address", rtnl.DecodeAddress), func(a rtnl.Address) string {
				return fmt.Sprintln(names[a.Link], a.Prefix)
			}), shown(t, "address")},
			"neighbour": {texts(read(t, s, "neighbour", rtnl.DecodeNeighbour), func(n rtnl.Neighbour) string {
				if n.State != unix.NUD_PERMANENT {
					return ""
				}
				return fmt.Sprintln(names[n.Link], n.Addr, net.HardwareAddr(n.MAC))
			}), shown(t, "neighbour", "show", "nud", "permanent")},
			"route": {texts(read(t, s, "route", rtnl.DecodeRoute), func(r rtnl.Route) string {
				if r.Table == unix.RT_TABLE_LOCAL || r.Type == unix.RTN_MULTICAST {
					return ""
				}
				dst := r.Dst.String()
				if r.Dst.IsSingleIP() {
					dst = r.Dst.Addr().String()
				}
				return fmt.Sprintln(dst, valid(r.Gateway), names[r.Link], r.Metric, valid(r.Source), r.Onlink)
			}), append(shown(t, "-4", "-N", "route", "show", "table", "all"), shown(t, "-6", "-N", "route", "show", "table", "all")...)},
			"rule": {texts(read(t, s, "rule", rtnl.DecodeRule), func(r rtnl.Rule) string {
				if r.Family != unix.AF_INET && r.Family != unix.AF_INET6 {
					return ""
				}
				mark := ""
				if r.Mark != 0 {
					mark = fmt.Sprintf("%#x", r.Mark)
				}
				return fmt.Sprintln(r.Priority, r.Src.Addr(), r.Table, r.In, mark)
			}), append(shown(t, "-4", "-N", "rule"), shown(t, "-6", "-N", "rule")...)},
		} {
			g.Expect(lists[0]).To(ConsistOf(lists[1]), what)
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs the program ip with a standard input.
func ip(input string, args ...string) ([]byte, error) {
	command := exec.Command("ip", args...)
	command.Stdin = strings.NewReader(input)
	out, err := command.Output()
	if failed := (&exec.ExitError{}); errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	return out, err
}

// shown returns the objects that "ip -j" shows, each as a text.
func shown(t *testing.T, args ...string) (all []string) {
	t.Helper()
	out, err := ip("", append([]string{"-j"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var objects []struct {
		Index uint32 `json:"ifindex"`
		Name  string `json:"ifname"`
		MAC   string `json:"address"`
		MTU   uint32
		Alias string `json:"ifalias"`
		Info  struct {
			Kind string `json:"info_kind"`
		} `json:"linkinfo"`
		Flags     []string
		Addresses []struct {
			Local  string
			Length int `json:"prefixlen"`
		} `json:"addr_info"`
		Dst, Dev, LLAddr, Gateway, PrefSrc, Type, Table, Src, IIF, FWMark string
		Metric, Priority                                                  uint32
	}
	if err := json.Unmarshal(out, &objects); err != nil {
		t.Fatalf("ip %v: %v in %s", args, err, out)
	}
	for _, o := range objects {
		v6 := slices.Contains(args, "-6")
		switch {
		case slices.Contains(args, "link"):
			all = append(all, fmt.Sprintln(o.Index, o.Name, o.MAC, o.MTU, o.Alias, o.Info.Kind, slices.Contains(o.Flags, "UP")))
		case slices.Contains(args, "address"):
			for _, a := range o.Addresses {
				all = append(all, fmt.Sprintln(o.Name, fmt.Sprintf("%s/%d", a.Local, a.Length)))
			}
		case slices.Contains(args, "neighbour"):
			all = append(all, fmt.Sprintln(o.Dev, o.Dst, o.LLAddr))
		case slices.Contains(args, "route") && o.Table != "255":
			onlink := slices.Contains(o.Flags, "onlink")
			all = append(all, fmt.Sprintln(o.Dst, o.Gateway, o.Dev, o.Metric, o.PrefSrc, onlink))
		case slices.Contains(args, "rule"):
			src := map[bool]string{false: "0.0.0.0", true: "::"}[v6]
			if o.Src != "all" {
				src = o.Src
			}
			all = append(all, fmt.Sprintln(o.Priority, src, o.Table, o.IIF, o.FWMark))
		}
	}
	return all
}

// read returns the objects of a kind.
func read[T any](t *testing.T, s *rtnl.Socket, kind string, decode func([]byte) (T, error)) (all []T) {
	t.Helper()
	err := s.Dump(kind, decoders()[kind].kind, make([]byte, decoders()[kind].header), func() { all = nil }, func(b []byte) {
		o, err := decode(slices.Clone(b))
		if err != nil {
			t.Error(err)
		}
		all = append(all, o)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// texts returns objects as texts, without those whose text is empty.
func texts[T any](all []T, text func(T) string) (written []string) {
	for _, o := range all {
		if s := text(o); s != "" {
			written = append(written, s)
		}
	}
	return written
}

// valid returns an address as text, "" if there is none.
func valid(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
