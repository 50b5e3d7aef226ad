// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Versions returns the supported versions of the specification.
func Versions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// PluginType is the type by which a configuration names this plugin.
const PluginType = "cadastre-cni"

// DefaultPool is the pool of a configuration without ipam.pool.
const DefaultPool = "default"

// Config holds the part of a network configuration that this plugin reads.
type Config struct {
	CNIVersion  string
	Name        string
	Main        bool         // the type of the network is PluginType: the agent makes the interface
	Pool        string       // ipam.pool
	Routes      []Route      // ipam.routes; nil: not given
	Wanted      []string     // requested addresses, of any convention
	MAC         string       // requested MAC address, of any convention but CNI_ARGS
	DNS         DNS          // passed on to the result of a main plugin
	Previous    *Result      // prevResult
	Attachments []Attachment // cni.dev/valid-attachments; nil: not given
}

// Route holds a route of a result.
type Route struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AdvMSS   int    `json:"advmss,omitempty"`
	Priority int    `json:"priority,omitempty"`
	Table    *int   `json:"table,omitempty"`
	Scope    *int   `json:"scope,omitempty"`
}

// DNS holds the DNS settings of a configuration and of a result.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Attachment identifies one attachment of one container.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// rawConfig holds the JSON of a network configuration.
type rawConfig struct {
	CNIVersion    string                     `json:"cniVersion"`
	Name          string                     `json:"name"`
	Type          string                     `json:"type"`
	DNS           DNS                        `json:"dns"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
		MAC string   `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
			MAC string   `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	PrevResult *Result      `json:"prevResult"`
	Valid      []Attachment `json:"cni.dev/valid-attachments"`
	Legacy     []Attachment `json:"cni.dev/attachments"`
}

// ParseConfig reads a network configuration for a command.
func ParseConfig(stdin []byte, command string) (*Config, *Error) {
	var raw rawConfig
	if err := json.Unmarshal(stdin, &raw); err != nil {
		return nil, Errorf(CodeDecode, "error unmarshall network config: %v", err)
	}
	c := &Config{
		CNIVersion: raw.CNIVersion,
		Name:       raw.Name,
		Main:       raw.Type == PluginType,
		Pool:       DefaultPool,
		DNS:        raw.DNS,
		Previous:   raw.PrevResult,
	}
	if c.Name == "" {
		return c, Errorf(CodeInvalidConfig, "missing network name")
	}
	if !validName(c.Name) {
		return c, Errorf(
			CodeInvalidConfig,
			"network name %q is invalid: it must begin with a letter or a digit, and letters, digits, '_', '.' and '-' may follow",
			c.Name,
		)
	}
	if err := checkVersion(raw.CNIVersion, command); err != nil {
		return c, err
	}
	if err := c.readIPAM(raw.IPAM); err != nil && command != "DEL" && command != "GC" {
		return c, err // DEL and GC still work for attachments of an earlier, valid configuration
	}
	c.Wanted = raw.RuntimeConfig.IPs
	if len(c.Wanted) == 0 {
		c.Wanted = raw.Args.CNI.IPs
	}
	c.MAC = raw.RuntimeConfig.MAC
	if c.MAC == "" {
		c.MAC = raw.Args.CNI.MAC
	}
	if c.Main && command == "ADD" && c.Previous != nil {
		return c, Errorf(
			CodeInvalidConfig,
			"prevResult is not empty: type %s makes the interface, so it must be the first plugin of the list",
			PluginType,
		)
	}
	if c.Attachments = raw.Valid; c.Attachments == nil {
		c.Attachments = raw.Legacy
	}
	return c, nil
}

func checkVersion(version, command string) *Error {
	known := slices.Index(Versions(), version)
	if known < 0 {
		return &Error{Code: CodeVersion, Msg: "incompatible CNI versions",
			Details: "config is \"" + version + "\", plugin supports " + strings.Join(Versions(), ", ")}
	}
	needs := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	if known < slices.Index(Versions(), needs) {
		return Errorf(CodeVersion, "config version does not allow %s: it is %s, %s needs %s",
			command, version, command, needs)
	}
	return nil
}

func (c *Config) readIPAM(keys map[string]json.RawMessage) *Error {
	var kind, socket string // the plugin has read the socket
	known := map[string]any{"type": &kind, "socket": &socket, "pool": &c.Pool, "routes": &c.Routes}
	var bad *Error // the first one; the remaining keys are read nevertheless
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		into, ok := known[k]
		if !ok {
			if bad == nil {
				bad = Errorf(CodeInvalidConfig, "unknown key ipam.%s: type, socket, pool and routes are known", k)
			}
			continue
		}
		d := json.NewDecoder(bytes.NewReader(keys[k]))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil && bad == nil {
			bad = Errorf(CodeInvalidConfig, "ipam.%s: %v", k, err)
		}
	}
	if bad != nil {
		return bad
	}
	if c.Main {
		if err := c.checkMain(kind); err != nil {
			return err
		}
	}
	if c.Pool == "" {
		return Errorf(CodeInvalidConfig, "ipam.pool is empty: leave it out for pool %q", DefaultPool)
	}
	for _, r := range c.Routes {
		if p, err := netip.ParsePrefix(r.Dst); err != nil || p != p.Masked() {
			return Errorf(CodeInvalidConfig, "ipam.routes: dst %q is not a network such as 10.0.0.0/8", r.Dst)
		}
		if _, err := netip.ParseAddr(r.GW); r.GW != "" && err != nil {
			return Errorf(CodeInvalidConfig, "ipam.routes: gw %q is not an IP address", r.GW)
		}
	}
	return nil
}

// checkMain refuses what an ipam section cannot have beside the plugin's own type.
func (c *Config) checkMain(ipam string) *Error {
	if ipam != "" && ipam != PluginType {
		return Errorf(CodeInvalidConfig,
			"ipam.type %q: type %s gives addresses of its own: leave ipam.type out, or use another main plugin",
			ipam, PluginType)
	}
	if c.Routes != nil {
		return Errorf(CodeInvalidConfig,
			"ipam.routes: with type %s the agent makes the routes of the pod: leave them out", PluginType)
	}
	return nil
}
