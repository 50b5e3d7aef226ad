// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/openstack"
	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

// TestForeignChanges changes ports behind the provider's back, as another client does.
func TestForeignChanges(t *testing.T) {
	server := neutrontest.New(t, neutrontest.Options{})
	for _, x := range []struct {
		name string
		run  func(*site)
	}{
		{"tags are removed from a port with addresses for pods", tagsRemoved},
		{"the description of a port with addresses for pods is replaced", descriptionReplaced},
		{"the description of a reservation is replaced", reservationRenamed},
		{"two writers fill a port with blocks", blocksOfTwoWriters},
		{"an old reading of the port lacks the block that is removed", removedByOldReading},
	} {
		t.Run(x.name, func(t *testing.T) {
			at := newSite(t, server, "10.0.0.0/24")
			at.network.Subnets = append(at.network.Subnets,
				server.Subnet(t, at.network.ID, "fd00::/64", pool("fd00::2", "fd00::ffff")))
			x.run(at)
		})
	}
}

// describe replaces the description of a port.
func (s *site) describe(id, text string) {
	s.t.Helper()
	s.g.Expect(ports.Update(s.t.Context(), s.Client(), id, ports.UpdateOpts{Description: &text}).Err).To(Succeed())
}

// withPods creates a machine whose two ports have addresses for pods, and returns the machine.
func (s *site) withPods() *cloud.Instance {
	s.t.Helper()
	s.assign("m1", s.boot("m1"), cloud.Want{Count: 2})
	_, err := s.cloud.CreateInterface(s.t.Context(), "m1", cloud.NewInterface{Device: 1, Want: cloud.Want{Count: 2}})
	s.g.Expect(err).NotTo(HaveOccurred())
	m := s.machine("m1")
	for _, i := range m.Interfaces {
		s.g.Expect(given(i)).To(HaveLen(2))
	}
	return m
}

// unchanged checks that a machine still has the same own addresses and the same ones for
// pods, and that those can be changed.
func (s *site) unchanged(before *cloud.Instance) {
	s.t.Helper()
	now := s.machine("m1")
	for at, i := range before.Interfaces {
		s.g.Expect(now.Interfaces[at].Blocks).To(ConsistOf(i.Blocks), "interface %d", at)
		more := s.assign("m1", i.ID, cloud.Want{Count: 1})
		s.g.Expect(s.cloud.Unassign(s.t.Context(), "m1", i.ID, append(more, given(i)...))).To(Succeed())
		s.g.Expect(given(s.machine("m1").Interfaces[at])).To(BeEmpty())
	}
}

func tagsRemoved(s *site) {
	before := s.withPods()
	for _, i := range before.Interfaces {
		s.g.Expect(attributestags.DeleteAll(s.t.Context(), s.Client(), "ports", i.ID).Err).To(Succeed())
	}
	s.unchanged(before)
}

func descriptionReplaced(s *site) {
	before := s.withPods()
	for _, i := range before.Interfaces {
		s.describe(i.ID, "mine")
	}
	s.unchanged(before)
}

func reservationRenamed(s *site) {
	first := s.boot("m1")
	s.boot("m2")
	blocks := append(s.assign("m1", first, cloud.Want{Count: 1, Prefixes: true}),
		s.assign("m1", first, cloud.Want{Count: 1, Prefixes: true, IPv6: true})...)
	for _, text := range []string{"", "mine", "10.0.0.0/24", "fd00::/64"} {
		for _, p := range s.ours() {
			if p.DeviceOwner == "cadastre:block" {
				s.describe(p.ID, text)
			}
		}
		s.g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(blocks), text)
		s.g.Expect(given(s.machine("m2").Interfaces[0])).To(BeEmpty())
	}
	gone, err := s.cloud.DeleteOrphans(s.t.Context(), "", 0)
	s.g.Expect(gone, err).To(BeEmpty())
	s.g.Expect(s.cloud.Unassign(s.t.Context(), "m1", first, blocks)).To(Succeed())
	s.g.Expect(s.ours()).To(HaveLen(2))
}

// created records the ports that Neutron says it has created.
type created struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (c *created) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || r.Method != http.MethodPost || answer.StatusCode != http.StatusCreated {
		return answer, err
	}
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	var p struct{ Port struct{ ID string } }
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[p.Port.ID] = true
	return answer, nil
}

// blocksOfTwoWriters lets processes add blocks to one port at once: it never has more than
// its limit, and no reservation that a process knows of is left. Neutron repeats a creation
// after a deadlock of its database; a port that it has created before it refused the
// repetition is an orphan.
func blocksOfTwoWriters(s *site) {
	first := s.boot("m1")
	made := &created{ids: map[string]bool{first: true}}
	var all sync.WaitGroup
	for range 4 {
		c := s.open(func(c *openstack.Config) { c.MaxAddresses, c.Transport = 3, made })
		all.Go(func() {
			_, _ = c.Assign(s.t.Context(), "m1", first, cloud.Want{Count: 2, Prefixes: true}) // some find it full
		})
	}
	all.Wait()
	var pairs, known, reserved []string
	for _, p := range s.port(first).AllowedAddressPairs {
		pairs = append(pairs, p.IPAddress)
	}
	for _, p := range s.ours() {
		if made.ids[p.ID] && p.ID != first {
			known = append(known, p.Description)
		}
	}
	s.g.Expect(pairs).To(HaveLen(3))
	s.g.Expect(known).To(ConsistOf(pairs), "reservations of the pairs")
	_, err := s.cloud.DeleteOrphans(s.t.Context(), "", 0)
	s.g.Expect(err).NotTo(HaveOccurred())
	for _, p := range s.ours() {
		if p.ID != first {
			reserved = append(reserved, p.Description)
		}
	}
	s.g.Expect(reserved).To(ConsistOf(pairs), "reservations after the orphans are gone")
}

// late answers the first reading of a port with an older answer.
type late struct {
	path string
	body []byte
	once sync.Once
}

func (l *late) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, l.path) {
		l.once.Do(func() {
			answer = &http.Response{
				StatusCode: http.StatusOK,
				Header:     http.Header{"Content-Type": {"application/json"}},
				Body:       io.NopCloser(bytes.NewReader(l.body)),
				Request:    r,
			}
		})
	}
	if answer == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	return answer, nil
}

// removedByOldReading: a block without a reservation would be given to another port too.
func removedByOldReading(s *site) {
	first := s.boot("m1")
	l := &late{path: "/ports/" + first}
	got, err := http.Get(s.Client().ServiceURL("ports", first))
	s.g.Expect(err).NotTo(HaveOccurred())
	l.body, err = io.ReadAll(got.Body)
	s.g.Expect(errors.Join(err, got.Body.Close())).To(Succeed())
	blocks := s.assign("m1", first, cloud.Want{Count: 1, Prefixes: true})
	c := s.open(func(c *openstack.Config) { c.Transport = l })
	s.g.Expect(c.Unassign(s.t.Context(), "m1", first, blocks)).To(Succeed())
	s.g.Expect(s.port(first).AllowedAddressPairs).To(BeEmpty())
	s.g.Expect(s.ours()).To(HaveLen(1))
}
