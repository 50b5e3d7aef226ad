// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"slices"
	"strings"
)

// Result holds the prevResult of a configuration.
type Result struct {
	Interfaces []Interface `json:"interfaces"`
	IPs        []IP        `json:"ips"`
}

// Interface holds one interface of a result.
type Interface struct {
	Name    string `json:"name"`
	MAC     string `json:"mac,omitempty"`
	MTU     int    `json:"mtu,omitempty"`     // since 1.1.0
	Sandbox string `json:"sandbox,omitempty"` // path of the network namespace; "": the node's
}

// IP holds one address of a result.
type IP struct {
	Version   string `json:"version,omitempty"`   // before 1.0.0: "4" or "6"
	Interface *int   `json:"interface,omitempty"` // index in Interfaces
	Address   string `json:"address"`             // with its prefix length
	Gateway   string `json:"gateway,omitempty"`
}

// Print returns the output for a reply to ADD in a version of the specification.
func (r Reply) Print(version string, dns DNS) ([]byte, error) {
	out := struct {
		CNIVersion string      `json:"cniVersion"`
		Interfaces []Interface `json:"interfaces,omitempty"`
		IPs        []IP        `json:"ips"`
		Routes     []Route     `json:"routes,omitempty"`
		DNS        DNS         `json:"dns"`
	}{version, slices.Clone(r.Interfaces), slices.Clone(r.IPs), r.Routes, dns}
	if version != "1.1.0" {
		for i := range out.Interfaces {
			out.Interfaces[i].MTU = 0
		}
	}
	if strings.HasPrefix(version, "0.") {
		for i := range out.IPs {
			out.IPs[i].Version = "4"
			if strings.Contains(out.IPs[i].Address, ":") {
				out.IPs[i].Version = "6"
			}
		}
	}
	return json.MarshalIndent(out, "", "    ")
}

// of returns the interface of a container, nil if the result does not have it, and its
// addresses. An address without an index counts as one of them.
func (r *Result) of(netns, ifName string) (link *Interface, addresses []string) {
	at := slices.IndexFunc(r.Interfaces, func(i Interface) bool {
		return i.Name == ifName && i.Sandbox == netns
	})
	if at >= 0 {
		link = &r.Interfaces[at]
	}
	for _, ip := range r.IPs {
		if ip.Interface == nil || *ip.Interface == at {
			addresses = append(addresses, ip.Address)
		}
	}
	return link, addresses
}
