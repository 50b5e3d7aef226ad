// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// ofNode distinguishes the host end in errors.
const ofNode = "of the node"

// inspect compares a wire with the kernel, at both ends, and changes nothing. Its error
// names each difference.
func (w *wires) inspect(ctx context.Context, _ string, p *wirePlan) error {
	if p == nil {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s, err := w.ns.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // it was only read
	host, found, err := getLink(s, p.hostName)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("the node has no link %s", p.hostName)
	}
	rules, err := listRules(s)
	if err != nil {
		return err
	}
	outside, err := readObjects(s, host.index)
	if err != nil {
		return err
	}
	return w.compare(s, p, host, hostObjects(host.linkID, outside[host.index], rules))
}

// compare compares a plan with the host end of a wire, and then with the end of the pod. Its
// error names each difference. s is a socket that no other goroutine uses.
func (w *wires) compare(s *rtnl.Socket, p *wirePlan, host hostLink, have *linkObjects) error {
	errs := []error{
		p.hostPlan().differences(host, ofNode),
		p.host.differences(have).err(ofNode),
		w.comparePod(s, p, host),
	}
	if host.name != p.hostName {
		errs = append(errs, fmt.Errorf("link %s of the node is that of %s", host.name, p.hostName))
	}
	return errors.Join(errs...)
}

// comparePod compares a plan with the end of the pod. It reads into the memory of a socket.
func (w *wires) comparePod(memory *rtnl.Socket, p *wirePlan, host hostLink) error {
	ns, err := openPod(p)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // it was only read
	s, err := ns.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	s.Share(memory)
	if err := w.differs(p, ns, s); err != nil {
		return err
	}
	pod, found, err := getLink(s, p.podName)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("%s has no link %s", p.netns, p.podName)
	case pod.index != host.peer || pod.peer != host.index:
		return fmt.Errorf("link %s of %s is not the other end of %s", p.podName, p.netns, p.hostName)
	}
	inside, err := readObjects(s, pod.index)
	if err != nil {
		return err
	}
	return errors.Join(
		p.podPlan().differences(pod, "of "+p.netns),
		p.pod.differences(inside[pod.index]).err("of "+p.netns),
	)
}

// err returns an error that names the changes, nil if there are none.
func (d difference) err(where string) error {
	var errs []error
	for _, o := range d.add {
		errs = append(errs, fmt.Errorf("%s %s is missing", o, where))
	}
	for _, o := range d.replace {
		errs = append(errs, fmt.Errorf("%s %s is another one", o, where))
	}
	for _, o := range d.remove {
		errs = append(errs, fmt.Errorf("%s %s is left over", o, where))
	}
	return errors.Join(errs...)
}
