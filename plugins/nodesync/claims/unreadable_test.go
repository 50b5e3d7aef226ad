// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// The node of a record that cannot be read may be alive, and has the node address
// that its ID implies. It keeps other nodes from nothing else.
func TestARecordThatCannotBeRead(t *testing.T) {
	swapped, err := proto.Marshal(&kv.NodeRecord{Id: 9, Name: "c", Instance: "i-c"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for what, value := range map[string][]byte{"not a message": []byte("\xff"), "the record of another ID": swapped} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			a := w.joins(node("a", 1))
			put := func(id uint32) {
				_, err := w.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(id), value)})
				w.g.Expect(err).NotTo(HaveOccurred())
			}
			put(2)
			o, err := w.register(w.store).Ask(context.Background(), a, address("192.168.16.2"), w.now)
			w.g.Expect(err).NotTo(HaveOccurred())
			w.g.Expect(o.Held).To(BeFalse())
			w.g.Expect(o.Blocker.String()).To(HavePrefix("node ID 2 implies 192.168.16.2/32, and its record cannot be read"))
			o, err = w.register(w.store).Ask(context.Background(), a, address("192.168.16.9"), w.now)
			w.g.Expect(err).NotTo(HaveOccurred())
			w.g.Expect(o.Held).To(BeTrue())

			put(1)
			o, err = w.register(w.store).Ask(context.Background(), a, address("192.168.16.10"), w.now)
			w.g.Expect(err).NotTo(HaveOccurred())
			w.g.Expect(o.Held).To(BeTrue(), "its own record")
		})
	}
}
