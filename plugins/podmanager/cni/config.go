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

// DefaultPool is the pool of a configuration without ipam.pool.
const DefaultPool = "default"

// Config holds the part of a network configuration that this plugin reads.
type Config struct {
	CNIVersion  string
	Name        string
	Socket      string // ipam.socket
	Pool        string // ipam.pool
	Routes      []Route
	HasRoutes   bool         // ipam.routes is given, also if it is empty
	Wanted      []string     // requested addresses, of any convention
	Previous    []string     // addresses of prevResult
	Attachments []Attachment // cni.dev/valid-attachments
	HasList     bool         // that list is given
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

// Attachment identifies one attachment of one container.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// rawConfig holds the JSON of a network configuration.
type rawConfig struct {
	CNIVersion    string                     `json:"cniVersion"`
	Name          string                     `json:"name"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig struct {
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
	PrevResult *struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	} `json:"prevResult"`
	Valid  *[]Attachment `json:"cni.dev/valid-attachments"`
	Legacy *[]Attachment `json:"cni.dev/attachments"`
}

// ParseConfig reads a network configuration for a command.
func ParseConfig(stdin []byte, command string) (*Config, *Error) {
	var raw rawConfig
	if err := json.Unmarshal(stdin, &raw); err != nil {
		return nil, Errorf(CodeDecode, "error unmarshall network config: %v", err)
	}
	c := &Config{CNIVersion: raw.CNIVersion, Name: raw.Name, Pool: DefaultPool}
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
	if raw.PrevResult != nil {
		for _, ip := range raw.PrevResult.IPs {
			c.Previous = append(c.Previous, ip.Address)
		}
	}
	if raw.Valid == nil {
		raw.Valid = raw.Legacy
	}
	if raw.Valid != nil {
		c.Attachments, c.HasList = *raw.Valid, true
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
	known := map[string]any{"type": new(string), "socket": &c.Socket, "pool": &c.Pool, "routes": &c.Routes}
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
	_, c.HasRoutes = keys["routes"]
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
