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
	errs := []error{p.inspectLink(ofNode, host, p.hostMAC), p.differences(p.host, have).err(ofNode)}
	switch {
	case host.name != p.hostName:
		errs = append(errs, fmt.Errorf("link %s of the node is that of %s", host.name, p.hostName))
	case host.alias != aliasPrefix+p.key:
		errs = append(
			errs,
			fmt.Errorf("link %s of the node has alias %q, not %q", p.hostName, host.alias, aliasPrefix+p.key),
		)
	case host.group != wireGroup:
		errs = append(errs, fmt.Errorf("link %s of the node has group %#x, not %#x", p.hostName, host.group, wireGroup))
	case p.isolated() && host.filter != 0:
		errs = append(errs, fmt.Errorf(
			"link %s of the node checks sources: net.ipv4.conf.%s.rp_filter is not 0", p.hostName, p.hostName,
		))
	}
	return errors.Join(append(errs, w.comparePod(s, p, host))...)
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
		p.inspectLink("of "+p.netns, pod, p.podMAC),
		p.differences(p.pod, inside[pod.index]).err("of "+p.netns),
	)
}

// inspectLink compares the attributes of one end.
func (p *wirePlan) inspectLink(where string, link hostLink, mac hardware) error {
	switch {
	case !link.up:
		return fmt.Errorf("link %s %s is down", link.name, where)
	case link.mac != mac:
		return fmt.Errorf("link %s %s has MAC address %s, not %s", link.name, where, link.mac, mac)
	case where == ofNode && link.routers:
		return fmt.Errorf("link %s %s obeys router advertisements of the pod: net.ipv6.conf.%s.accept_ra is not 0",
			link.name, where, link.name)
	case p.mtu != 0 && link.mtu != p.mtu:
		return fmt.Errorf("link %s %s has MTU %d, not %d", link.name, where, link.mtu, p.mtu)
	}
	return nil
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
