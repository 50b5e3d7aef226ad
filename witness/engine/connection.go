// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/client"
)

// connection is the engine's API for one view.
type connection struct {
	api *client.Client
	raw *http.Client // for networks, which api cannot decode: see gateway
}

func connect(ctx context.Context, address string) (*connection, error) {
	api, err := client.New(client.WithHost(address))
	if err != nil {
		return nil, err
	}
	dial := api.Dialer()
	c := &connection{api: api, raw: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}}
	if _, err := api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *connection) close() {
	c.raw.CloseIdleConnections()
	_ = c.api.Close()
}

// entrypoint is the program of our managed plugin.
const entrypoint = "cadastre-docker-plugin"

// managed returns the names of our managed plugins, with and without the tag "latest".
func (c *connection) managed(ctx context.Context) (map[string]bool, error) {
	list, err := c.api.PluginList(ctx, client.PluginListOptions{})
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, p := range list.Items {
		if len(p.Config.Entrypoint) > 0 && path.Base(p.Config.Entrypoint[0]) == entrypoint {
			names[p.Name], names[strings.TrimSuffix(p.Name, ":latest")] = true, true
		}
	}
	return names, nil
}

// network is a network in the engine's words.
type network struct {
	ID, Name, Driver, Scope string
	IPAM                    struct {
		Driver  string
		Options map[string]string
		Config  []struct {
			Subnet             netip.Prefix
			IPRange            netip.Prefix
			Gateway            gateway
			AuxiliaryAddresses map[string]netip.Addr
		}
	}
	Containers map[string]struct { // only of our driver
		Name, EndpointID, MacAddress string
		IPv4Address, IPv6Address     netip.Prefix
	}
}

// gateway is an address that some engines write as a prefix (fd00::1/64), which the
// client of the engine's API does not decode.
type gateway struct{ netip.Addr }

// UnmarshalText accepts an address, a prefix and the empty text.
func (g *gateway) UnmarshalText(text []byte) error {
	a, _, _ := strings.Cut(string(text), "/")
	return g.Addr.UnmarshalText([]byte(a))
}

// errVanished is returned for a network that was removed after it was listed.
var errVanished = errors.New("the network is gone")

// networks returns all networks by ID, those of our drivers with their endpoints.
func (c *connection) networks(ctx context.Context, ours map[string]bool) ([]network, error) {
	var all []network
	if err := c.get(ctx, "/networks", &all); err != nil {
		return nil, err
	}
	kept := all[:0]
	for _, n := range all {
		if ours[n.IPAM.Driver] {
			var whole network
			err := c.get(ctx, "/networks/"+n.ID, &whole)
			if errors.Is(err, errVanished) {
				continue // the next reading does not list it
			}
			if err != nil {
				return nil, err
			}
			n = whole
		}
		kept = append(kept, n)
	}
	slices.SortFunc(kept, func(a, b network) int { return strings.Compare(a.ID, b.ID) })
	return kept, nil
}

// maxAnswer is far above the size of any answer.
const maxAnswer = 256 << 20

func (c *connection) get(ctx context.Context, path string, out any) error {
	url := "http://docker/v" + c.api.ClientVersion() + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.raw.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return errVanished
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	return nil
}

// partOfSwarm reports whether the engine is, or may soon be, a node of a swarm.
func partOfSwarm(state swarm.LocalNodeState) bool {
	return state != swarm.LocalNodeStateInactive && state != ""
}
