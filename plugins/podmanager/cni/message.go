// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"net/netip"
	"strings"
)

// Path is the path of requests on the agent's socket.
const Path = "/v1/cni"

// Request holds a request of the executable to the agent.
type Request struct {
	Command     string        `json:"command"`
	Network     string        `json:"network"`
	ContainerID string        `json:"containerID,omitempty"`
	IfName      string        `json:"ifName,omitempty"`
	Netns       string        `json:"netns,omitempty"`
	Pod         Pod           `json:"pod"`
	Pool        string        `json:"pool,omitempty"`
	Wanted      []string      `json:"wanted,omitempty"`
	Previous    []string      `json:"previous,omitempty"`
	Routes      *[]Route      `json:"routes,omitempty"`      // absent: a default route per family with the default pool, none with another
	Attachments *[]Attachment `json:"attachments,omitempty"` // GC: absent frees nothing
}

// Reply holds the agent's answer.
type Reply struct {
	IPs    []IP    `json:"ips,omitempty"`
	Routes []Route `json:"routes,omitempty"`
	// Waiting says for each address that GC found to be garbage what its release waits for.
	Waiting []string `json:"waiting,omitempty"`

	// In the agent only: the claim of this ADD, 0 if it repeated an earlier one, and its
	// ticket.
	Claim  uint64 `json:"-"`
	Ticket uint64 `json:"-"`
}

// IP holds one address of a result.
type IP struct {
	Version string `json:"version,omitempty"` // before 1.0.0: "4" or "6"
	Address string `json:"address"`           // with its prefix length
	Gateway string `json:"gateway,omitempty"`
}

// result holds the output of ADD for the runtime.
type result struct {
	CNIVersion string   `json:"cniVersion"`
	IPs        []IP     `json:"ips"`
	Routes     []Route  `json:"routes,omitempty"`
	DNS        struct{} `json:"dns"`
}

// NewRequest returns the request for an invocation.
func NewRequest(inv Invocation, c *Config) (Request, *Error) {
	pod, ip, err := ParseArgs(inv.Args)
	if err != nil && inv.Command == "ADD" {
		return Request{}, err
	}
	r := Request{
		Command:     inv.Command,
		Network:     c.Name,
		ContainerID: inv.ContainerID,
		IfName:      inv.IfName,
		Netns:       inv.Netns,
		Pod:         pod,
		Pool:        c.Pool,
		Wanted:      c.Wanted,
		Previous:    c.Previous,
	}
	if inv.Command != "ADD" {
		r.Wanted = nil
		// Like JSON, replace bad bytes, so that an attachment has one name in every encoding.
		r.ContainerID, r.IfName = string([]rune(r.ContainerID)), string([]rune(r.IfName))
	} else if err := r.CheckNames(); err != nil {
		return Request{}, err
	} else if len(r.Wanted) == 0 && ip != "" {
		r.Wanted = strings.Split(ip, ",")
	}
	for i, w := range r.Wanted { // "10.1.5.9" or "10.1.5.9/24"
		a, _, _ := strings.Cut(w, "/")
		if _, err := netip.ParseAddr(a); err != nil {
			return Request{}, Errorf(CodeInvalidConfig, "requested address %q is not an IP address", w)
		}
		r.Wanted[i] = a
	}
	if c.HasRoutes {
		r.Routes = &c.Routes
	}
	if c.HasList {
		r.Attachments = &c.Attachments
	}
	return r, nil
}

// Print returns the output for a reply to ADD in a version of the specification.
func (r Reply) Print(version string) ([]byte, error) {
	res := result{CNIVersion: version, IPs: r.IPs, Routes: r.Routes}
	if strings.HasPrefix(version, "0.") {
		res.IPs = append([]IP(nil), r.IPs...)
		for i := range res.IPs {
			res.IPs[i].Version = "4"
			if strings.Contains(res.IPs[i].Address, ":") {
				res.IPs[i].Version = "6"
			}
		}
	}
	return json.MarshalIndent(res, "", "    ")
}

// PrintVersions returns the output of VERSION.
func PrintVersions() ([]byte, error) {
	return json.MarshalIndent(struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{"1.1.0", Versions()}, "", "    ")
}
