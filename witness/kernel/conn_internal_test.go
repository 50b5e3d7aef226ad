// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// A kernel that does not know the ID of a namespace in a request answers for the host.
func TestTheAnswerOfAnOldKernelIsRefused(t *testing.T) {
	g := NewWithT(t)
	l, err := rtnl.DecodeLink(make([]byte, unix.SizeofIfInfomsg))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(confirm(7, l.Target)).To(MatchError(ContainSubstring("not 7 (Linux 4.20")))
	l, err = rtnl.DecodeLink(rtnl.Message(make([]byte, unix.SizeofIfInfomsg)).U32(unix.IFLA_TARGET_NETNSID, 7))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(confirm(7, l.Target)).To(Succeed())
}
