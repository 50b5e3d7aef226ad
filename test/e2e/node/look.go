// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// pod is a pod as the API server has it.
type pod struct {
	Metadata struct{ Name, Namespace, UID string }
	Spec     struct {
		NodeName    string
		HostNetwork bool
		Affinity    struct {
			NodeAffinity struct {
				Required struct {
					NodeSelectorTerms []struct {
						MatchFields []struct{ Values []string }
					}
				} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
			}
		}
	}
	Status struct {
		Phase string
		PodIP string
	}
}

func (p pod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// wantedNode returns the node for which a DaemonSet has made the pod.
func (p pod) wantedNode() (string, error) {
	for _, term := range p.Spec.Affinity.NodeAffinity.Required.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if len(field.Values) == 1 {
				return field.Values[0], nil
			}
		}
	}
	return "", fmt.Errorf("%s is not for one node: it is not of a DaemonSet", p.name())
}

// scene holds the pods and leases of one moment.
type scene struct {
	pods   []pod
	leases []localapi.Lease // of pods
	links  []wire           // of pods
}

// wire is a link of an agent to a pod, or its route to an address, of which it may lack
// the other one.
type wire struct{ node, address, link string }

// compare finds what does not fit: each pod runs, and has the one lease of its
// address; there are no other leases.
func (s scene) compare() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	leases := map[string][]localapi.Lease{}
	for _, l := range s.leases {
		leases[l.PodNamespace+"/"+l.PodName] = append(leases[l.PodNamespace+"/"+l.PodName], l)
	}
	for _, p := range s.pods {
		has := leases[p.name()]
		delete(leases, p.name())
		switch {
		case p.Status.Phase != "Running" || p.Status.PodIP == "":
			wrong("%s is %s with address %q", p.name(), p.Status.Phase, p.Status.PodIP)
		case len(has) != 1:
			wrong("%s has %d leases", p.name(), len(has))
		case has[0].State != "held":
			wrong("%s of %s is %s", has[0].IP, p.name(), has[0].State)
		case has[0].IP != p.Status.PodIP:
			wrong("%s has the address %s and a lease of %s", p.name(), p.Status.PodIP, has[0].IP)
		}
	}
	errs = append(errs, s.compareLinks())
	for _, name := range slices.Sorted(maps.Keys(leases)) {
		for _, l := range leases[name] {
			wrong("%s is %s for %s, which is not there", l.IP, l.State, name)
		}
	}
	return errors.Join(errs...)
}

// compareLinks finds pods without the link and the route of their node, and links and
// routes of no pod.
func (s scene) compareLinks() error {
	var errs []error
	left := slices.Clone(s.links)
	for _, p := range s.pods {
		i := slices.IndexFunc(left, func(w wire) bool {
			return w.node == p.Spec.NodeName && w.address == p.Status.PodIP && w.link != ""
		})
		if i < 0 {
			errs = append(errs, fmt.Errorf("%s has no link to %s on %s", p.name(), p.Status.PodIP, p.Spec.NodeName))
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, w := range left {
		errs = append(errs, fmt.Errorf("%s has a link %q with the route to %q of no pod", w.node, w.link, w.address))
	}
	return errors.Join(errs...)
}

// changed says which leases are not as they were.
func changed(before, after []localapi.Lease) error {
	var errs []error
	for _, l := range before {
		if !slices.Contains(after, l) {
			errs = append(errs, fmt.Errorf("%s of %s is gone or has changed", l.IP, l.PodName))
		}
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			errs = append(errs, fmt.Errorf("%s of %s is new or has changed", l.IP, l.PodName))
		}
	}
	return errors.Join(errs...)
}

// look sees what there is, compares it, and asks the ledger whether it is sound.
func (t *scenario) look(ctx context.Context) (s scene, err error) {
	var list struct{ Items []pod }
	if err := t.plane.read(ctx, &list, "pods", "--all-namespaces"); err != nil {
		return s, err
	}
	for _, p := range list.Items {
		if !p.Spec.HostNetwork { // the agent's
			s.pods = append(s.pods, p)
		}
	}
	for _, n := range t.nodes {
		all, _, err := n.agent.Leases(ctx)
		if err != nil {
			return s, err
		}
		for _, l := range all {
			if l.Purpose == "pod" {
				s.leases = append(s.leases, l)
			}
		}
		if _, err := n.agent.CLI(ctx, "check", "--ledger"); err != nil {
			return s, err
		}
		if s.links, err = n.wires(s.links); err != nil {
			return s, err
		}
	}
	return s, s.compare()
}

// expect looks until n pods run and everything fits.
func (t *scenario) expect(ctx context.Context, n int) (s scene, err error) {
	err = t.eventually(ctx, fmt.Sprintf("%d pods and the leases agree", n), func(ctx context.Context) error {
		if s, err = t.look(ctx); err == nil && len(s.pods) != n {
			err = fmt.Errorf("there are %d pods", len(s.pods))
		}
		return err
	})
	if err != nil {
		return s, err
	}
	all := make([]string, len(s.pods))
	for i, p := range s.pods {
		all[i] = p.Metadata.Name + " " + p.Status.PodIP + " on " + p.Spec.NodeName
	}
	if n == 0 {
		t.Say("There are no pods, and no leases and links of pods.")
		return s, nil
	}
	t.Say("Pods: %s. The ledgers have a lease for each, and no others, and the kernel a link.", strings.Join(all, ", "))
	return s, nil
}

// wires appends the routes of the agent to pods of this node, with their links, and the
// links without a route.
func (n *node) wires(all []wire) ([]wire, error) {
	err := n.ns.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		ours := map[int]string{}
		for _, l := range links {
			if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, "cadastre:") {
				ours[l.Attrs().Index] = l.Attrs().Name
			}
		}
		routes, err := netlink.RouteListFiltered(
			netlink.FAMILY_V4,
			&netlink.Route{Protocol: routeProtocol, Scope: netlink.SCOPE_LINK},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_SCOPE,
		)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if ones, _ := r.Dst.Mask.Size(); ones == 32 {
				all = append(all, wire{n.name, r.Dst.IP.String(), ours[r.LinkIndex]})
				delete(ours, r.LinkIndex)
			}
		}
		for _, name := range ours {
			all = append(all, wire{node: n.name, link: name})
		}
		return nil
	})
	return all, err
}

// routeProtocol is the mark of the agent's routes.
const routeProtocol = 202

// create creates a pod on a node that serves a page, which the kubelet asks for.
func (t *scenario) create(ctx context.Context, n *node, name string) error {
	return t.createWithPorts(ctx, n, name, "")
}

// createWithPorts creates such a pod; ports are those of its container, in JSON.
func (t *scenario) createWithPorts(ctx context.Context, n *node, name, ports string) error {
	_, err := t.plane.feed(ctx, `{"apiVersion":"v1","kind":"Pod",
		"metadata":{"name":"`+name+`","labels":{"app":"page","pod":"`+name+`"}},"spec":{
		"nodeName":"`+n.name+`","terminationGracePeriodSeconds":1,"automountServiceAccountToken":false,"enableServiceLinks":false,"dnsPolicy":"Default",
		"containers":[{"name":"main","image":"`+image+`","imagePullPolicy":"Never",
			"command":["/inside","serve",":`+pagePort+`"],"ports":[`+ports+`],
			"readinessProbe":{"httpGet":{"port":`+pagePort+`},"periodSeconds":1}}]}}`, "create", "--filename=-")
	return err
}

// remove deletes pods, and waits until kubelet has let go of them.
func (t *scenario) remove(ctx context.Context, names ...string) error {
	_, err := t.plane.kubectl(ctx, append([]string{"delete", "pod", "--timeout=" + patience.String()}, names...)...)
	return err
}

// inside runs busybox in a pod, by way of API server, kubelet and containerd.
func (t *scenario) inside(ctx context.Context, name string, args ...string) (string, error) {
	return t.plane.kubectl(ctx, append([]string{"exec", name, "--", "/bin/busybox"}, args...)...)
}

// fetch returns what a URL answers to a pod.
func (t *scenario) fetch(ctx context.Context, from, url string) (string, error) {
	return t.plane.kubectl(ctx, "exec", from, "--", "/inside", "fetch", url)
}

// fetch returns what a URL answers to the node.
func (n *node) fetch(ctx context.Context, url string) (string, error) {
	return output(ctx, n.command(ctx, n.agent.Program("inside"), "fetch", url))
}
