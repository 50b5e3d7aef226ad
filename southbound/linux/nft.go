// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// nftTable is the name of our table of family inet. All that it has is ours.
	nftTable = "cadastre"
	// nftBuffer is the size of the socket's buffers in bytes. A batch is one message, and
	// the kernel acknowledges each of its parts.
	nftBuffer = 4 << 20
)

// nft reads and writes the nftables of one network namespace.
type nft struct {
	namespace *os.File // nil: the process's
}

// openNFT opens the namespace at path, "": the process's.
func openNFT(path string) (*nft, error) {
	if path == "" {
		return &nft{}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return &nft{file}, nil
}

func (n *nft) close() error {
	if n.namespace == nil {
		return nil
	}
	return n.namespace.Close()
}

// conn returns a connection for one batch, or for reading.
func (n *nft) conn() (*nftables.Conn, error) {
	buffers := nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(nftBuffer), c.SetWriteBuffer(nftBuffer))
	})
	if n.namespace == nil {
		return nftables.New(buffers)
	}
	return nftables.New(buffers, nftables.WithNetNSFd(int(n.namespace.Fd())))
}

// nftRule holds one rule. text is its comment, which names it.
type nftRule struct {
	chain string
	text  string
	exprs []expr.Any
}

// comment returns the userdata of the rule, which nft list ruleset shows as its comment.
func (r nftRule) comment() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, r.text)
}

// is reports whether a rule of the kernel is r.
func (r nftRule) is(have *nftables.Rule) bool {
	return nftText(have) == r.text && reflect.DeepEqual(have.Exprs, r.exprs)
}

// nftText returns the comment of a rule.
func nftText(r *nftables.Rule) string {
	text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return text
}

// nftChains returns the chains of our table, by name.
func nftChains(c *nftables.Conn) (map[string]*nftables.Chain, error) {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	found := map[string]*nftables.Chain{}
	for _, chain := range all {
		if chain.Table.Name == nftTable {
			chain.Table.Family = nftables.TableFamilyINet
			found[chain.Name] = chain
		}
	}
	return found, nil
}

// sameChain reports whether two chains have the same hook.
func sameChain(x, y *nftables.Chain) bool {
	if x.Hooknum == nil || y.Hooknum == nil {
		return x.Hooknum == nil && y.Hooknum == nil
	}
	return x.Type == y.Type && *x.Hooknum == *y.Hooknum && *x.Priority == *y.Priority &&
		(x.Policy == nil || *x.Policy == nftables.ChainPolicyAccept) &&
		(y.Policy == nil || *y.Policy == nftables.ChainPolicyAccept)
}

// matchFamily matches the packets of a family.
func matchFamily(a netip.Addr) []expr.Any {
	family := byte(unix.NFPROTO_IPV4)
	if a.Is6() {
		family = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
}

// matchPrefix matches the packets whose source, or destination, is in a prefix.
func matchPrefix(p netip.Prefix, source bool) []expr.Any {
	size := uint32(p.Addr().BitLen() / 8)
	offset := uint32(12) // of the source in an IPv4 header
	if p.Addr().Is6() {
		offset = 8
	}
	if !source {
		offset += size
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// matchLinks matches the packets that enter by (or leave through) a link whose name begins
// with prefix.
func matchLinks(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)},
	}
}
