// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"strings"
	"time"
)

// Request holds what a runtime asks of the agent.
type Request struct {
	Command     string
	Network     string
	ContainerID string
	IfName      string
	Netns       string
	Main        bool   // the agent makes the interface; otherwise another plugin does
	MAC         string // main ADD: wanted for the pod's interface
	Pod         Pod
	Pool        string
	Wanted      []string
	Previous    []string     // addresses of prevResult, main: those of the interface
	Link        *Interface   // main: the interface in prevResult
	Routes      []Route      // nil: a default route per family with the default pool, none with another
	Attachments []Attachment // GC: nil frees nothing
}

// Reply holds the agent's answer.
type Reply struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route

	Claim  uint64        // the claim of this ADD, 0 if it repeated an earlier one
	Ticket time.Duration // of this ADD
}

// NewRequest returns the request for an invocation.
func NewRequest(inv Invocation, c *Config) (Request, *Error) {
	args, err := ParseArgs(inv.Args)
	if err != nil && inv.Command == "ADD" {
		return Request{}, err
	}
	r := Request{
		Command:     inv.Command,
		Network:     c.Name,
		ContainerID: inv.ContainerID,
		IfName:      inv.IfName,
		Netns:       inv.Netns,
		Pod:         args.Pod,
		Pool:        c.Pool,
		Wanted:      c.Wanted,
		Main:        c.Main,
		Routes:      c.Routes,
		Attachments: c.Attachments,
	}
	switch {
	case c.Previous != nil && c.Main:
		r.Link, r.Previous = c.Previous.of(inv.Netns, inv.IfName)
	case c.Previous != nil:
		for _, ip := range c.Previous.IPs {
			r.Previous = append(r.Previous, ip.Address)
		}
	}
	if inv.Command != "ADD" {
		r.Wanted = nil
		// Like JSON, replace bad bytes, so that a name is the same in every encoding. CheckNames
		// refuses an ADD with such bytes.
		for _, name := range []*string{&r.ContainerID, &r.IfName, &r.Netns, &r.Pod.Namespace, &r.Pod.Name, &r.Pod.UID} {
			*name = string([]rune(*name))
		}
	} else if err := r.CheckNames(); err != nil {
		return Request{}, err
	} else if len(r.Wanted) == 0 && args.IP != "" {
		r.Wanted = strings.Split(args.IP, ",")
	}
	if mac := cmp.Or(c.MAC, args.MAC); mac != "" && r.Main && inv.Command == "ADD" {
		if r.MAC, err = parseMAC(mac); err != nil {
			return Request{}, err
		}
	}
	for i, w := range r.Wanted {
		if r.Wanted[i], err = parseWanted(w); err != nil {
			return Request{}, err
		}
	}
	return r, nil
}

// parseWanted returns the address of "10.1.5.9" or "10.1.5.9/24".
func parseWanted(text string) (string, *Error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().String(), nil
	}
	if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
		return "", Errorf(CodeInvalidConfig,
			"requested address %q is not an IP address: write one such as 10.1.5.9 or 10.1.5.9/24", text)
	}
	return text, nil
}

// PrintVersions returns the output of VERSION.
func PrintVersions() ([]byte, error) {
	return json.MarshalIndent(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{"1.1.0", Versions()}, "", "    ")
}
