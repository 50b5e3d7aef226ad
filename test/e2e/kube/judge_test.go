// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// holder is a Node object as it was last seen.
type holder struct {
	name  string
	cidrs []netip.Prefix
}

// judge watches all Node objects for as long as a test runs.
type judge struct {
	mu       sync.Mutex
	alive    map[types.UID]holder
	numbered map[types.UID]time.Time // when its podCIDRs were first seen
	doubts   [][2]types.UID          // pairs whose CIDRs overlapped as the events came
	wrong    []error
	changed  chan struct{} // closed and made anew with every event
}

// newJudge is a judge that says at the end of the test what was wrong.
func newJudge(c *cluster) *judge {
	j := blank()
	factory := informers.NewSharedInformerFactory(c.client, 0)
	informer := factory.Core().V1().Nodes().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(x any) { j.saw(x.(*v1.Node)) },
		UpdateFunc: func(_, x any) { j.saw(x.(*v1.Node)) },
		DeleteFunc: func(x any) { j.lost(x) },
	})
	c.g.Expect(err).NotTo(HaveOccurred())
	stop := make(chan struct{})
	factory.Start(stop)
	c.t.Cleanup(func() {
		close(stop)
		factory.Shutdown()
		if err := j.verdict(c.liveCIDRs); err != nil {
			c.t.Errorf("the judge: %v", err)
		}
	})
	c.g.Eventually(informer.HasSynced, patience, pace).Should(BeTrue())
	return j
}

func blank() *judge {
	return &judge{alive: map[types.UID]holder{}, numbered: map[types.UID]time.Time{}, changed: make(chan struct{})}
}

// saw is told every version of a node.
func (j *judge) saw(n *v1.Node) {
	now := holder{name: n.Name}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			now.cidrs = append(now.cidrs, p.Masked())
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	before := j.alive[n.UID]
	switch {
	case len(before.cidrs) == 0 && len(now.cidrs) > 0:
		j.numbered[n.UID] = time.Now()
		for uid, other := range j.alive {
			if uid != n.UID && overlap(now.cidrs, other.cidrs) {
				j.doubts = append(j.doubts, [2]types.UID{uid, n.UID})
			}
		}
	case !slices.Equal(before.cidrs, now.cidrs):
		j.wrong = append(j.wrong, fmt.Errorf("the podCIDRs of %s have changed from %v to %v", n.Name, before.cidrs, now.cidrs))
	}
	j.alive[n.UID] = now
	j.tell()
}

// lost is told every node that is gone.
func (j *judge) lost(x any) {
	if unknown, ok := x.(cache.DeletedFinalStateUnknown); ok {
		x = unknown.Obj
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if n, ok := x.(*v1.Node); ok {
		delete(j.alive, n.UID)
	}
	j.tell()
}

func (j *judge) tell() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// overlap reports whether any two of them do.
func overlap(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(x netip.Prefix) bool { return slices.ContainsFunc(b, x.Overlaps) })
}

// verdict returns the errors. After a relist a deletion may be told late, so that
// of two nodes that seem to overlap one may be gone: live says who is there.
func (j *judge) verdict(live func() (map[types.UID]holder, error)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	errs := j.wrong
	for _, pair := range j.doubts {
		a, b := j.alive[pair[0]], j.alive[pair[1]]
		if overlap(a.cidrs, b.cidrs) {
			errs = append(errs, fmt.Errorf("%s has %v and %s has %v", a.name, a.cidrs, b.name, b.cidrs))
		}
	}
	there, err := live()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var seen []holder
	for _, x := range there {
		for _, other := range seen {
			if overlap(x.cidrs, other.cidrs) {
				errs = append(errs, fmt.Errorf("in the end %s has %v and %s has %v", x.name, x.cidrs, other.name, other.cidrs))
			}
		}
		seen = append(seen, x)
	}
	return errors.Join(errs...)
}

// liveCIDRs are those of all nodes, by the API server's word.
func (c *cluster) liveCIDRs() (map[types.UID]holder, error) {
	list, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	j := blank()
	for i := range list.Items {
		j.saw(&list.Items[i])
	}
	return j.alive, nil
}

// awaitAll waits until so many nodes have had podCIDRs, and answers when the
// last of them got his.
func (j *judge) awaitAll(ctx context.Context, n int) (last time.Time, err error) {
	for {
		j.mu.Lock()
		have, changed := len(j.numbered), j.changed
		j.mu.Unlock()
		if have >= n {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return last, fmt.Errorf("%d of %d nodes have podCIDRs: %w", have, n, ctx.Err())
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, at := range j.numbered {
		if at.After(last) {
			last = at
		}
	}
	return last, nil
}

// TestJudge: the judge finds what it is there for.
func TestJudge(t *testing.T) {
	node := func(uid, name string, cidrs ...string) *v1.Node {
		return newNode(name, func(n *v1.Node) { n.UID, n.Spec.PodCIDRs = types.UID(uid), cidrs })
	}
	for _, x := range []struct {
		what string
		tell func(*judge)
		want string
	}{
		{"two nodes", func(j *judge) { j.saw(node("1", "a", "10.0.0.0/24")); j.saw(node("2", "b", "10.0.1.0/24")) }, ""},
		{"one CIDR twice", func(j *judge) { j.saw(node("1", "a", "10.0.0.0/24")); j.saw(node("2", "b", "10.0.0.0/24")) }, "b has"},
		{"one within another", func(j *judge) { j.saw(node("1", "a", "10.0.0.0/23")); j.saw(node("2", "b", "10.0.1.0/24")) }, "b has"},
		{"of the second family", func(j *judge) {
			j.saw(node("1", "a", "10.0.0.0/24", "fd00::/64"))
			j.saw(node("2", "b", "10.0.1.0/24", "fd00::/64"))
		}, "b has"},
		{"after a deletion", func(j *judge) {
			j.saw(node("1", "a", "10.0.0.0/24"))
			j.lost(node("1", "a"))
			j.saw(node("2", "a", "10.0.0.0/24"))
		}, ""},
		{"a deletion told late", func(j *judge) {
			j.saw(node("1", "a", "10.0.0.0/24"))
			j.saw(node("2", "b", "10.0.0.0/24"))
			j.lost(cache.DeletedFinalStateUnknown{Obj: node("1", "a")})
		}, ""},
		{"another value", func(j *judge) { j.saw(node("1", "a", "10.0.0.0/24")); j.saw(node("1", "a", "10.0.1.0/24")) }, "have changed"},
		{"none any more", func(j *judge) { j.saw(node("1", "a", "10.0.0.0/24")); j.saw(node("1", "a")) }, "have changed"},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			j := blank()
			x.tell(j)
			err := j.verdict(func() (map[types.UID]holder, error) { return j.alive, nil })
			if x.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(x.want)))
		})
	}
}
