// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// FuzzMessages decodes damaged messages: each gives an error or a value, and none ends
// the process.
func FuzzMessages(f *testing.F) {
	link := rtnl.Message(make([]byte, unix.SizeofIfInfomsg)).U32(unix.IFLA_LINK, 7)
	f.Add([]byte(link))
	f.Add([]byte(rtnl.Message(make([]byte, unix.SizeofRtMsg)).U32(unix.RTA_OIF, 3)))
	f.Add([]byte{20, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = parseLink(b)
		_, _, _, _ = parseAddr(b)
		_, _ = parseRoute(b)
		_, _, _ = parseNeighbour(b)
		_ = parseID(b)
		_ = nextHops(witness.Route{}, b)
		_ = rtnl.Messages(b, func(uint16, uint16, uint32, []byte) (bool, error) { return true, nil })
	})
}

// A kernel that does not know the ID of a namespace in a request answers for the host.
func TestTheAnswerOfAnOldKernelIsRefused(t *testing.T) {
	g := NewWithT(t)
	_, nsid, err := parseLink(make([]byte, unix.SizeofIfInfomsg))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(confirm(7, nsid)).To(MatchError(ContainSubstring("not 7 (Linux 4.20")))
	_, nsid, err = parseLink(rtnl.Message(make([]byte, unix.SizeofIfInfomsg)).U32(unix.IFLA_TARGET_NETNSID, 7))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(confirm(7, nsid)).To(Succeed())
}
