// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// The program allocates addresses of a node's NetResourceSet. It calls only published
// functions of package ipam, and NewSource. It reads commands from its input, one a line:
// "add OWNER", "release OWNER or ADDRESS", "vpc", "metrics".
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// settings is the configuration of a node in mode vpc-eni with IPv4.
type settings struct{}

func (settings) IPv4Enabled() bool                    { return true }
func (settings) IPv6Enabled() bool                    { return false }
func (settings) IPAMMode() string                     { return "vpc-eni" }
func (settings) HealthCheckingEnabled() bool          { return false }
func (settings) UnreachableRoutesEnabled() bool       { return false }
func (settings) SetIPv4NativeRoutingCIDR(*ipam.CIDR)  {}
func (settings) GetIPv4NativeRoutingCIDR() *ipam.CIDR { return nil }
func (settings) GetCCEEndpointGC() time.Duration      { return time.Minute }
func (settings) GetFixedIPTimeout() time.Duration     { return time.Minute }
func (settings) GetDeviceMTU() int                    { return 1500 }
func (settings) IPv4() ipam.NodeAddressingFamily      { return settings{} }
func (settings) IPv6() ipam.NodeAddressingFamily      { return settings{} }
func (settings) AllocationCIDR() *ipam.CIDR           { return ipam.NewCIDR(netip.Prefix{}) }

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

func run(kubeconfig, node string) error {
	store, err := apistore.Open(apistore.Config{Kubeconfig: kubeconfig, Node: node, NetResources: true})
	if err != nil {
		return err
	}
	defer store.Close()
	metrics := ipam.NewMetrics()
	source, err := ipam.NewSource(context.Background(), ipam.SourceDeps{Store: store, Node: node, Metrics: metrics})
	if err != nil {
		return err
	}
	defer source.Close()
	m := ipam.NewIPAM(node, settings{}, settings{}, source, source, settings{})
	m.RestoreFinished()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		command, arg, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(answer(m, metrics, command, arg))
	}
	return nil
}

func answer(m *ipam.IPAM, metrics *ipam.Metrics, command, arg string) string {
	switch command {
	case "add":
		r, _, err := m.AllocateNext("", arg)
		if err != nil {
			return "error " + err.Error()
		}
		return fmt.Sprintf("ok %s %s %s %s %s", r.IP, r.InterfaceNumber, r.PrimaryMAC, r.GatewayIP, strings.Join(r.CIDRs, ","))
	case "release":
		if err := m.ReleaseIPString(arg); err != nil {
			return "error " + err.Error()
		}
		return "ok"
	case "vpc":
		return fmt.Sprint("ok ", m.GetVpcCIDRs())
	case "metrics":
		r := prometheus.NewPedanticRegistry()
		if err := r.Register(metrics); err != nil {
			return "error " + err.Error()
		}
		all, err := r.Gather()
		if err != nil {
			return "error " + err.Error()
		}
		text := "ok"
		for _, f := range all {
			text += " " + f.GetName()
		}
		return text
	}
	return "error unknown command " + command
}
