// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// A machine is set up anew under its name, and its predecessor ran the last version,
// which has no claims to inherit. The blocks of its record are the new machine's
// once the predecessor has stopped by itself.
func TestAPredecessorWithoutClaims(t *testing.T) {
	for what, x := range map[string]struct {
		age     time.Duration // of the predecessor's last beat
		stopped bool
		target  claims.Target
		held    bool
	}{
		"it may still allocate":           {fresh + time.Second, false, wide(), false},
		"its time is over":                {expire, false, wide(), true},
		"it has stopped":                  {time.Second, true, wide(), true},
		"another block":                   {fresh + time.Second, false, block("10.1.78.0/24"), true},
		"a node address is not allocated": {fresh + time.Second, false, address("192.168.16.77"), true},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.put(kv.NodeRecordKey(1), &kv.NodeRecord{
				Id: 1, Name: "a", Instance: "i-a", Generation: 1, SupersededBy: 3, PodCidrs: []string{wide().Prefix.String()}, IpAddresses: []string{"192.168.16.77/24"},
			})
			w.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "i-a", At: w.now.Add(-x.age).UnixNano(), Stopped: x.stopped})
			again := w.joins(claims.Node{Name: "a", Instance: "i-a2", ID: 3})
			o, err := w.register(w.store).Ask(context.Background(), again, x.target, w.now)
			w.g.Expect(err).NotTo(HaveOccurred())
			w.g.Expect(o.Held).To(Equal(x.held))
		})
	}
}
