// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import "github.com/cadastre/cadastre/plugins/contivconf/yamldoc"

// Rule names the rule that a configuration breaks. testdata/bad has a file for each
// of these and of those of package yamldoc.
type Rule = yamldoc.Rule

// The rules.
const (
	RuleSameFamily   Rule = "same-family"   // two networks of one family
	RuleFamily       Rule = "family"        // networks that disagree about the families
	RuleContivCIDR   Rule = "contiv-cidr"   // too small for the networks that are taken from it
	RuleNoRoom       Rule = "no-room"       // a shared network without room for one node
	RuleOverlap      Rule = "overlap"       // two networks share addresses
	RuleReserved     Rule = "reserved"      // a network of special purpose: loopback, link-local, multicast
	RuleCollision    Rule = "collision"     // an address that something else has
	RuleAllowOverlap Rule = "allow-overlap" // not a pair of networks
	RuleGateway      Rule = "gateway"       // not a host of the node network
	RuleNodeID       Rule = "node-id"       // a pinned ID that does not fit every network
	RuleExternalIPAM Rule = "external-ipam" // useExternalIPAM contradicts podBlocks
	RuleStaticBlocks Rule = "static-blocks" // staticPodCIDRs and podBlocks do not fit
	RuleNetResource  Rule = "net-resource"  // netResource, podBlocks and kvdb do not fit
	RuleInterfaces   Rule = "interfaces"    // interfaces and podBlocks do not fit
	RuleEnum         Rule = "enum"          // not one of the allowed words
	RuleRange        Rule = "range"         // a number or duration out of range
	RuleKVDB         Rule = "kvdb"          // a store that could not be reached as described
	RuleMetrics      Rule = "metrics"       // a listener for metrics without address or TLS
	RuleREST         Rule = "rest"          // a listener without address or TLS
	RuleTraces       Rule = "traces"        // a collector that could not be reached as described
	RuleWitness      Rule = "witness"       // a source of evidence that could not be read as described
	RuleDataplane    Rule = "dataplane"     // a key that only another dataplane or transport uses
	RuleUnderlay     Rule = "underlay"      // an interface or networks that name no underlay
	RuleCNI          Rule = "cni"           // a CNI list that could not be written as described
)

// tolerable reports whether an agent that has leases already starts with a
// configuration that breaks the rule: refusing it would not make its leases better.
// See LoadInUse.
func tolerable(p yamldoc.Problem) bool { return p.Rule == RuleReserved || p.Rule == RuleCollision }
