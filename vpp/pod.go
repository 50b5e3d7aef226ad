// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// pods is the kind of pods: a pair of kernel's links, one end of which VPP reads. The pair is a
// wire of package southbound/linux with a bare host end.
type pods struct {
	*kind
	wires *southbound.Descriptor
}

// pods returns the kind of pods.
func (s *shared) pods() southbound.Kind[value] {
	p := &pods{kind: s.podKind(), wires: s.wires}
	s.own(p.kind)
	all := p.of()
	all.Delete, all.Retrieve, all.Inspect = p.remove, p.retrieve, p.inspect
	all.Watch, all.Sweep, all.Close = p.watch, p.wires.Sweep, p.wires.Close
	return all
}

// watch tells of changes of the kernel's links too.
func (p *pods) watch(ctx context.Context, changed func(key string)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() {
		defer stop() // the scheduler starts both again
		done <- p.wires.Watch(ctx, changed)
	}()
	err := p.watchFor(ctx, changed)
	stop()
	return errors.Join(err, <-done)
}

// remove removes a pod from VPP and detaches its links. A key of the kernel alone has nothing
// in VPP.
func (p *pods) remove(ctx context.Context, key string, was southbound.Made[value]) error {
	err := p.kind.remove(ctx, key, was)
	if key == p.restKey() || err != nil && !errors.Is(err, southbound.ErrAway) {
		return err
	}
	return errors.Join(err, p.wires.Delete(ctx, key, was.Message))
}

// inspect compares a pod with the kernel and with VPP.
func (p *pods) inspect(ctx context.Context, key string, want value) error {
	if err := p.wires.Inspect(ctx, key, want); err != nil {
		return err
	}
	return p.kind.inspect(ctx, key, want)
}

// retrieve returns the pods that are complete in the kernel and in VPP.
func (p *pods) retrieve(ctx context.Context, wanted []southbound.Wanted[value]) ([]controller.Value, error) {
	inVPP, err := p.kind.retrieve(ctx, wanted)
	if err != nil {
		return inVPP, err
	}
	var values []controller.Value
	for _, w := range wanted {
		values = append(values, controller.Value{Key: w.Key, Message: w.Message})
	}
	inKernel, err := p.wires.Retrieve(ctx, values)
	if err != nil {
		return nil, err
	}
	messages, kernel := map[string]proto.Message{}, map[string]proto.Message{}
	for _, v := range wanted {
		messages[v.Key] = v.Message
	}
	for _, v := range inKernel {
		kernel[v.Key] = v.Message
	}
	var all []controller.Value
	for _, v := range inVPP {
		m, found := kernel[v.Key]
		delete(kernel, v.Key)
		wants := messages[v.Key]
		switch {
		case v.Key == p.restKey(), found && wants != nil && proto.Equal(m, wants):
			all = append(all, v)
		case found:
			all = append(all, controller.Value{Key: v.Key, Message: m})
		default:
			all = append(all, controller.Value{Key: v.Key, Message: &kv.PodNetwork{}})
		}
	}
	for key, m := range kernel {
		if wants := messages[key]; wants != nil && proto.Equal(m, wants) {
			m = remains(m) // VPP lacks it
		}
		all = append(all, controller.Value{Key: key, Message: m})
	}
	return all, nil
}

// remains returns what the kernel has of a pod that VPP lacks.
func remains(m proto.Message) proto.Message {
	pod, _ := m.(*kv.PodNetwork)
	return &kv.PodNetwork{Wire: &kv.Wire{HostIfName: pod.GetWire().GetHostIfName()}}
}

// podKind returns what the kind of pods does in VPP.
func (s *shared) podKind() *kind {
	return &kind{
		shared: s,
		name:   "vpp pod",
		prefix: kv.SinkPodPrefix,
		roles:  roles(rolePod),
		routes: ofPod,
		plan: func(key string, value proto.Message, live bool) (*plan, error) {
			m, err := message[*kv.PodNetwork](value)
			if err != nil {
				return nil, err
			}
			if err := s.wires.Validate(key, value); err != nil && !live {
				return nil, err
			}
			p, err := s.planner.podPlan(key, m, 0)
			if err != nil || p == nil || !live {
				return p, err
			}
			return p, s.findHosts(p)
		},
		dependencies: func(value proto.Message) []string {
			m, _ := value.(*kv.PodNetwork)
			if m.GetWire() == nil {
				return nil
			}
			if m.GetWire().GetTable() == 0 {
				return []string{kv.SinkNode}
			}
			return []string{kv.SinkNode, kv.SinkNetworkPrefix + m.GetWire().GetPool()}
		},
		before: s.makeWire,
		ready:  s.offloadsOff,
	}
}

// makeWire makes the kernel's links of a pod.
func (s *shared) makeWire(ctx context.Context, key string, was, value proto.Message) error {
	m, err := message[*kv.PodNetwork](value)
	if err != nil || m.GetWire() == nil {
		return err
	}
	if was == nil {
		err = s.wires.Create(ctx, key, value)
	} else {
		err = s.wires.Update(ctx, key, was, value)
	}
	if err != nil {
		return err
	}
	return inPod(m, func() error { return disableOffloads(m.GetIfName()) })
}

// offloadsOff reports whether the pod's kernel computes its checksums.
func (s *shared) offloadsOff(value proto.Message) (off bool, err error) {
	m, _ := value.(*kv.PodNetwork)
	if m.GetWire() == nil {
		return true, nil
	}
	unread := inPod(m, func() (err error) { off, err = offloadsDisabled(m.GetIfName()); return err })
	// A namespace or link that is gone is a difference, not an error.
	return off && unread == nil, nil
}

// inPod calls f in the network namespace of a pod.
func inPod(m *kv.PodNetwork, f func() error) error {
	ns, err := rtnl.Open(m.GetWire().GetNetns())
	if err != nil {
		return err
	}
	err = ns.Do(f)
	if err != nil {
		err = fmt.Errorf("in %s: %w", m.GetWire().GetNetns(), err)
	}
	return errors.Join(err, ns.Close())
}

// ofPod reports whether a route is that of a pod's address.
func ofPod(at place, p path, role string) bool {
	return role != roleHost && at.dst.IsSingleIP() && (p.via == at.dst.Addr() || p.other)
}
