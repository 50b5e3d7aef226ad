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

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// pod is a pod as the API server has it.
type pod struct {
	Metadata struct{ Name, Namespace, UID string }
	Spec     struct {
		NodeName    string
		HostNetwork bool
	}
	Status struct {
		Phase string
		PodIP string
	}
}

func (p pod) name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// scene holds the pods and leases of one moment.
type scene struct {
	pods   []pod
	leases []localapi.Lease // of pods
}

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
	for _, name := range slices.Sorted(maps.Keys(leases)) {
		for _, l := range leases[name] {
			wrong("%s is %s for %s, which is not there", l.IP, l.State, name)
		}
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
	all, _, err := t.Leases(ctx)
	if err != nil {
		return s, err
	}
	for _, l := range all {
		if l.Purpose == "pod" {
			s.leases = append(s.leases, l)
		}
	}
	_, err = t.CLI(ctx, "check", "--ledger")
	return s, errors.Join(s.compare(), err)
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
		all[i] = p.Metadata.Name + " " + p.Status.PodIP
	}
	if n == 0 {
		t.Say("There are no pods, and no leases of pods.")
		return s, nil
	}
	t.Say("Pods: %s. The ledger has a lease for each, and no others.", strings.Join(all, ", "))
	return s, nil
}

// create creates a pod that sleeps.
func (t *scenario) create(ctx context.Context, name string) error {
	_, err := t.plane.feed(ctx, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`"},"spec":{
		"nodeName":"`+nodeName+`","terminationGracePeriodSeconds":1,"automountServiceAccountToken":false,"enableServiceLinks":false,"dnsPolicy":"Default",
		"containers":[{"name":"main","image":"`+image+`","imagePullPolicy":"Never"}]}}`, "create", "--filename=-")
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

// reach fails unless each pod has its address, and every other answers it.
func (t *scenario) reach(ctx context.Context, pods []pod) error {
	for _, from := range pods {
		has, err := t.inside(ctx, from.Metadata.Name, "ip", "-4", "-o", "addr", "show", "dev", "eth0")
		if err != nil {
			return err
		}
		if !strings.Contains(has, " "+from.Status.PodIP+"/") {
			return fmt.Errorf("%s has not %s inside: %s", from.Metadata.Name, from.Status.PodIP, has)
		}
		for _, to := range pods {
			if to.Status.PodIP == from.Status.PodIP {
				continue
			}
			err := t.eventually(ctx, "a ping is answered", func(ctx context.Context) error {
				// an address without a cool-down may be known for another pod's MAC for seconds
				_, err := t.inside(ctx, from.Metadata.Name, "ping", "-c", "2", "-W", "5", to.Status.PodIP)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	t.Say("Each has its address inside, and they reach each other.")
	return nil
}
