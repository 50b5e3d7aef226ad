// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// pageOf returns an operator whose store has one pool and 1000 nodes.
func pageOf(t *testing.T, g Gomega) *operator {
	t.Helper()
	store := mem.New()
	t.Cleanup(func() { g.Expect(store.Close()).To(Succeed()) })
	put := func(key string, m proto.Message) {
		value, err := proto.Marshal(m)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	put(kv.PoolKey("default"), &kv.Pool{
		Name: "default", Network: "default", Generation: 1, Origin: "contiv.conf",
		Ranges: []*kv.PoolRange{{Cidr: "10.0.0.0/14", OneNodePrefixLen: 24}},
	})
	for id := uint32(1); id <= 1000; id++ {
		name, instance := fmt.Sprintf("worker-%04d", id), fmt.Sprint(id)
		put(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: instance, Generation: 1})
		put(kv.BeatKey(id), &kv.NodeBeat{
			Id: id, Instance: instance, At: 1, Pools: []*kv.PoolUse{{Pool: "default", Generation: 1, Open: true, Leases: 250}},
		})
	}
	return &operator{store: store}
}

func askPage(p *operator, url string) *httptest.ResponseRecorder {
	mux, w := http.NewServeMux(), httptest.NewRecorder()
	p.routePage(mux)
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

func TestMapOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	const base = "http://127.0.0.1:10261"
	w := askPage(p, base+"/v1/map?pool=default&prefix=10.0.0.0/14")
	g.Expect(w.Code).To(Equal(http.StatusOK), w.Body.String())
	g.Expect(w.Body.Len()).To(BeNumerically("<", 160<<10))
	var part localapi.MapPart
	g.Expect(json.Unmarshal(w.Body.Bytes(), &part)).To(Succeed())
	g.Expect(part.Cells).To(HaveLen(1000))
	g.Expect(part.Counts).To(Equal(localapi.AddressCounts{Other: 256_000, OtherHeld: 250_000}))
	g.Expect(part.Cells[4].Cell).To(Equal(5))
	g.Expect(part.Cells[4].Node).To(Equal("worker-0005"))
	t.Logf("1000 nodes: %d bytes", w.Body.Len())

	var m localapi.Map
	g.Expect(json.Unmarshal(askPage(p, base+"/v1/map").Body.Bytes(), &m)).To(Succeed())
	g.Expect(m.Scope).To(Equal("cluster"))
	var hits localapi.MapHits
	g.Expect(json.Unmarshal(askPage(p, base+"/v1/map/search?q=worker-0777").Body.Bytes(), &hits)).To(Succeed())
	g.Expect(hits.Hits).To(HaveLen(1))
	g.Expect(hits.Hits[0].Prefix.String()).To(Equal("10.3.9.0/24"))
	g.Expect(askPage(p, base+"/page/").Body.String()).To(ContainSubstring("Cadastre"))
	g.Expect(askPage(p, base+"/v1/map?pool=x&prefix=10.0.0.0/14").Code).To(Equal(http.StatusBadRequest))
}

func TestMapOfTheClusterIsForCallersWithACertificate(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	for _, path := range []string{"/page/", "/v1/map", "/v1/map/search?q=worker"} {
		g.Expect(askPage(p, "http://rebound.example.org"+path).Code).To(Equal(http.StatusMisdirectedRequest), path)
		g.Expect(askPage(p, "http://localhost:10261"+path).Code).To(Equal(http.StatusOK), path)
	}
	p.options.tls = httpserver.Files{ClientCA: "ca.pem"}
	for _, path := range []string{"/page/", "/v1/map", "/v1/map/search?q=worker"} {
		g.Expect(askPage(p, "http://localhost:10261"+path).Code).To(Equal(http.StatusForbidden), path)
	}
}
