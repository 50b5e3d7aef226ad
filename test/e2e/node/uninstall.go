// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// uninstalls is the name of the DaemonSet that uninstalls, and of its namespace.
const uninstalls = "cadastre-uninstall"

// uninstall takes the steps of k8s/README.md, and looks for what is left on the nodes.
func (t *scenario) uninstall(ctx context.Context) error {
	t.Step("Delete the manifests and apply k8s/uninstall: nothing of the agent is left on the nodes.")
	for _, n := range t.nodes { // or there would be nothing to see
		if left, err := n.traces(); err != nil || len(left) == 0 {
			return errors.Join(fmt.Errorf("%s has no traces of the agent", n.name), err)
		}
	}
	if err := t.manager.Stop(patience); err != nil { // its Deployment goes
		return err
	}
	t.forget(t.manager)
	t.manager = nil
	if _, err := t.plane.kubectl(
		ctx,
		"delete",
		"--kustomize="+t.plane.path("overlay"),
		"--timeout="+patience.String(),
	); err != nil {
		return err
	}
	dir := filepath.Join(t.place.Root, "k8s", "uninstall")
	if _, err := t.plane.kubectl(ctx, "apply", "--validate=strict", "--kustomize="+dir); err != nil {
		return err
	}
	if err := t.awaitUninstalled(ctx); err != nil {
		return err
	}
	for _, n := range t.nodes {
		left, err := n.traces()
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s still has %q", n.name, left)
		}
		if err != nil {
			return err
		}
	}
	_, err := t.plane.kubectl(ctx, "delete", "--kustomize="+dir, "--wait=false") // the room ends sooner
	t.Say("The CNI list, the plugin, links, routes, rules and the nftables table are gone.")
	return err
}

// awaitUninstalled waits until the pods that uninstall are ready.
func (t *scenario) awaitUninstalled(ctx context.Context) error {
	return t.eventually(ctx, "the agent is uninstalled", func(ctx context.Context) error {
		var list struct{ Items []pod }
		if err := t.plane.read(ctx, &list, "pods", "--namespace="+uninstalls); err != nil {
			return err
		}
		if len(list.Items) != len(t.nodes) {
			return fmt.Errorf("the DaemonSet has %d pods", len(list.Items))
		}
		for _, p := range list.Items {
			if p.Spec.NodeName == "" {
				return t.bind(ctx, p)
			}
			if p.Status.Phase != "Running" {
				return fmt.Errorf("%s is %s", p.name(), p.Status.Phase)
			}
		}
		return nil
	})
}

// traces returns what the agent and its installer have made on a node, but for the database.
func (n *node) traces() (all []string, err error) {
	for _, path := range []string{"/etc/cni/net.d/10-cadastre.conflist", "/opt/cni/bin/cadastre-cni"} {
		switch _, err := os.Lstat(n.host(path)); {
		case err == nil:
			all = append(all, path)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	err = n.ns.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if name := l.Attrs().Name; strings.HasPrefix(name, "cad") ||
				strings.HasPrefix(l.Attrs().Alias, "cadastre") {
				all = append(all, "link "+name)
			}
		}
		routes, err := netlink.RouteListFiltered(
			netlink.FAMILY_ALL,
			&netlink.Route{Protocol: routeProtocol},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE, // of all tables
		)
		if err != nil {
			return err
		}
		for _, r := range routes {
			all = append(all, "route "+r.String())
		}
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Protocol == routeProtocol {
				all = append(all, "rule "+r.String())
			}
		}
		tables, err := (&nftables.Conn{}).ListTables()
		if err != nil {
			return err
		}
		for _, table := range tables {
			if table.Name == "cadastre" {
				all = append(all, "nftables table")
			}
		}
		return nil
	})
	return all, err
}
