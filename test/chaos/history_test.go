// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// at is an op of key a between two times.
func at(call, back int64, v Verb, f Fate, addr string) Op {
	return Op{Key: key("a"), Verb: v, Fate: f, Addr: addr, Call: call, Back: back}
}

// connected is an op whose client was connected at a time.
func connected(at int64, op Op) Op { op.Connected = at; return op }

// of makes it one of another key.
func of(id string, op Op) Op { op.Key = key(id); return op }

func TestHistoriesOfOneKey(t *testing.T) {
	for name, c := range map[string]struct {
		ok  bool
		ops []Op
	}{
		"ADD, ADD, DEL, ADD":             {true, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, Add, Answered, "1"), at(5, 6, Del, Answered, ""), at(7, 8, Add, Answered, "2")}},
		"a repeated ADD answers another": {false, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, Add, Answered, "2")}},
		"unless a DEL may come between":  {true, []Op{at(1, 2, Add, Answered, "1"), at(1, 9, Del, Answered, ""), at(3, 4, Add, Answered, "2")}},
		"but only one does":              {false, []Op{at(1, 2, Add, Answered, "1"), at(1, 9, Del, Answered, ""), at(3, 4, Add, Answered, "2"), at(5, 6, Add, Answered, "3")}},
		"CHECK sees what is there":       {true, []Op{at(1, 2, Check, Refused, ""), at(3, 4, Add, Answered, "1"), at(5, 6, Check, Answered, "1"), at(7, 8, Check, Answered, "")}},
		"CHECK sees what is gone":        {false, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, Del, Answered, ""), at(5, 6, Check, Answered, "")}},
		"CHECK does not see it":          {false, []Op{at(1, 2, Add, Answered, "1"), at(5, 6, Check, Refused, "")}},
		"CHECK sees another":             {false, []Op{at(1, 2, Add, Answered, "1"), at(5, 6, Check, Answered, "2")}},
		"an abandoned ADD is seen, then taken back": {true, []Op{
			at(1, 50, Add, Abandoned, ""), at(3, 4, Check, Answered, ""), at(1, 50, release, "", ""), at(51, 52, read, Answered, "")}},
		"it stays":                       {false, []Op{at(1, 50, Add, Abandoned, ""), at(1, 50, release, "", ""), at(51, 52, read, Answered, "1")}},
		"it stays for the one who asked": {true, []Op{at(1, 50, Add, Abandoned, ""), at(3, 4, Add, Answered, "1"), at(1, 50, release, "", ""), at(51, 52, read, Answered, "1")}},
		"it is taken from that one":      {false, []Op{at(1, 50, Add, Abandoned, ""), at(3, 4, Add, Answered, "1"), at(1, 50, release, "", ""), at(51, 52, read, Answered, "")}},
		"a repeat that is abandoned":     {false, []Op{at(1, 2, Add, Answered, "1"), at(3, 50, Add, Abandoned, ""), at(3, 50, release, "", ""), at(51, 52, read, Answered, "")}},
		"a GC frees":                     {false, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, GC, Answered, ""), at(5, 6, Check, Refused, "")}},
		"a DEL without its client frees": {true, []Op{at(1, 2, Add, Answered, "1"), connected(4, at(3, forever, Del, Abandoned, "")), at(5, 6, Check, Refused, "")}},
		"it frees a later ADD, too":      {false, []Op{connected(2, at(1, forever, Del, Abandoned, "")), connected(4, at(3, 5, Add, Answered, "1")), at(6, 7, Check, Refused, "")}},
		"one that may be later frees it": {true, []Op{connected(4, at(1, forever, Del, Abandoned, "")), connected(4, at(3, 5, Add, Answered, "1")), at(6, 7, Check, Refused, "")}},
		"an ADD takes after a later DEL": {false, []Op{connected(2, at(1, 9, Add, Answered, "1")), at(3, 4, Del, Answered, ""), at(5, 6, Check, Refused, ""), at(7, 8, Check, Answered, "1")}},
		"a GC frees nothing":             {true, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, GC, Answered, ""), at(5, 6, Check, Answered, "")}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := newHistory()
			for _, op := range c.ops {
				h.record(op)
			}
			if err := h.checkKeys(searchLimit); c.ok {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(errNoOrder))
			}
		})
	}
}

func TestHistoriesOfAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		ok, whole bool
		ops       []Op
	}{
		"one after the other": {true, true, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, Del, Answered, ""), of("b", at(5, 6, Add, Answered, "1"))}},
		"while it is freed":   {true, true, []Op{at(1, 2, Add, Answered, "1"), at(3, 9, Del, Answered, ""), of("b", at(4, 6, Add, Answered, "1"))}},
		"at once":             {false, false, []Op{at(1, 2, Add, Answered, "1"), of("b", at(3, 4, Add, Answered, "1"))}},
		"side by side":        {false, false, []Op{at(1, 4, Add, Answered, "1"), of("b", at(2, 3, Add, Answered, "1"))}},
		"the DEL is refused":  {false, false, []Op{at(1, 2, Add, Answered, "1"), at(3, 4, Del, Refused, ""), of("b", at(5, 6, Add, Answered, "1"))}},
		"only an order of all shows it": {true, false, []Op{
			at(1, 2, Add, Answered, "1"), at(3, 20, Del, Answered, ""), of("b", at(4, 5, Add, Answered, "1")), at(6, 7, Check, Answered, "1")}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := newHistory()
			for _, op := range c.ops {
				h.record(op)
			}
			g.Expect(h.checkKeys(searchLimit)).To(Succeed(), "of each key alone")
			g.Expect(h.checkAddresses() == nil).To(Equal(c.ok))
			g.Expect(h.checkWhole(searchLimit) == nil).To(Equal(c.whole))
		})
	}
}

// double is a simple server of the same API, with a fault.
type double struct {
	mu    sync.Mutex
	fault string
	next  netip.Addr
	held  map[Key]netip.Addr
	adds  int
}

func (d *double) serve(_ context.Context, req cni.Request) (cni.Reply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := Key{req.Network, req.ContainerID, req.IfName}
	switch Verb(req.Command) {
	case Add:
		return cni.Reply{IPs: []cni.IP{{Address: d.add(k).String() + "/24"}}}, nil
	case Del:
		if d.adds++; d.fault != "forgets a DEL" || d.adds%2 != 0 {
			delete(d.held, k)
		}
	case Check:
		a, ok := d.held[k]
		switch {
		case !ok:
			return cni.Reply{}, cni.Errorf(cni.CodeUnknown, "unknown")
		case len(req.Previous) > 0 && req.Previous[0] != a.String()+"/24":
			return cni.Reply{}, cni.Errorf(cni.CodeDiffers, "differs")
		}
	case GC:
		valid := map[Key]bool{}
		for _, a := range req.Attachments {
			valid[Key{req.Network, a.ContainerID, a.IfName}] = true
		}
		for k := range d.held {
			if k.Network == req.Network && !valid[k] && d.fault == "a GC that frees at once" {
				delete(d.held, k)
			}
		}
	}
	return cni.Reply{}, nil
}

func (d *double) add(k Key) netip.Addr {
	d.adds++
	a, ok := d.held[k]
	switch {
	case ok && d.fault == "another address for a repeated ADD" && d.adds%7 == 0:
	case ok:
		return a
	case d.fault == "one address twice" && d.adds%5 == 0:
		for _, a := range d.held {
			d.held[k] = a
			return a
		}
	}
	d.next = d.next.Next()
	d.held[k] = d.next
	return d.next
}

func (d *double) cni(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	call, cerr := cni.ParseCall(body)
	req, conf, refusal := call.Request()
	if err = errors.Join(err, cerr); err != nil || refusal != nil {
		http.Error(w, fmt.Sprint(err, refusal), http.StatusBadRequest)
		return
	}
	answer, err := d.serve(r.Context(), req)
	out, exit := []byte(nil), "0"
	if !errors.As(err, &refusal) {
		out, refusal = cni.Output(req, answer, conf)
	}
	if refusal != nil {
		out, exit = refusal.Print(conf), "1"
	}
	w.Header().Set(cni.HeaderExit, exit)
	_, _ = w.Write(out)
}

func (d *double) leases(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := []localapi.Lease{}
	for k, a := range d.held {
		all = append(all, localapi.Lease{IP: a.String(), State: ledger.Held.String(), Purpose: "pod", Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName})
	}
	_ = json.NewEncoder(w).Encode(all)
}

// listen serves a double on a socket.
func (d *double) listen(t *testing.T) (socket string) {
	t.Helper()
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "cc")
	g.Expect(err).NotTo(HaveOccurred())
	socket = filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+cni.Path, d.cni)
	mux.HandleFunc("GET "+localapi.PathLeases, d.leases)
	s := &http.Server{Handler: mux}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		_ = s.Close()
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return socket
}

// TestDoubles lets the same clients ask servers that are wrong, which must be
// found out, and one that is right.
func TestDoubles(t *testing.T) {
	for _, fault := range []string{"", "one address twice", "another address for a repeated ADD", "forgets a DEL", "a GC that frees at once"} {
		t.Run(fmt.Sprintf("%q", fault), func(t *testing.T) {
			g := NewWithT(t)
			s := effort.Seed(t)
			d := &double{fault: fault, next: netip.MustParseAddr("10.9.0.1"), held: map[Key]netip.Addr{}}
			r := &rally{socket: d.listen(t), keys: 4, clients: 4, each: 15, mu: &sync.Mutex{}, counts: map[string]int{}}
			var found error
			for epoch := range 20 {
				h, err := r.run(epoch, random(s, epoch))
				g.Expect(err).NotTo(HaveOccurred())
				found = errors.Join(found, h.checkKeys(searchLimit), h.checkWhole(searchLimit))
				if fault == "one address twice" {
					found = h.checkAddresses() // by itself
				}
				if found != nil {
					break
				}
			}
			if fault == "" {
				g.Expect(found).NotTo(HaveOccurred())
				return
			}
			g.Expect(found).To(HaveOccurred(), "the wrong server was not found out")
			g.Expect(errors.Is(found, errNotChecked)).To(BeFalse())
		})
	}
}
