// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import "github.com/cadastre/cadastre/witness"

// Sources of evidence that are not witnesses.
const (
	Ledger        witness.Name = "ledger"
	Configuration witness.Name = "configuration"
	CloudReading  witness.Name = "cloud"
)

// Actions of "cadastre repair".
const (
	RepairReclaim       = "reclaim"        // the lease becomes pending and is released after the time for an undo
	RepairQuarantine    = "quarantine"     // the address gets a quarantine, so that no pod gets it
	RepairEndQuarantine = "end-quarantine" // the address of a quarantine may be allocated again
	RepairRelease       = "release"        // the lease is released
)

// MissingAddress is the number of a finding that a person may repair for all leases at once:
// see WhyKept.
const MissingAddress = "C206"

// Kind describes the findings of one number. docs/findings.md has the same table.
type Kind struct {
	Number  string
	Name    string
	Meaning string
	Witness string // the witnesses that show it
	Repair  string // action of "cadastre repair"; "": by hand
	Fix     string
}

// Numbers of the findings of one node: C1xx the ledger itself, C2xx leases against
// witnesses, C3xx the network, C4xx configuration and pools.
const (
	numContradiction    = "C101"
	numLeaked           = "C201"
	numUnknown          = "C202"
	numOutside          = "C203"
	numDuplicate        = "C204"
	numElsewhere        = "C205"
	numMissingAddress   = MissingAddress
	numPodWithoutLease  = "C207"
	numUnusedQuarantine = "C208"
	numEndedPod         = "C209"
	numWitness          = "C210"
	numHostAddress      = "C211"
	numNotTheirOwn      = "C212"
	numUnidentified     = "C213"
	numDefaultRoute     = "C301"
	numGateway          = "C302"
	numRouteInside      = "C303"
	numRouteAround      = "C304"
	numLinkAround       = "C305"
	numOverlap          = "C401"
	numDockerOverlap    = "C402"
	numDockerUnknown    = "C403"
	numDockerUnused     = "C404"
	numSubnet           = "C405"
	numConfiguration    = "C406"
	numCloudMissing     = "C407"
	numCloudElsewhere   = "C408"
)

// Kinds returns the kinds of findings of one node, by number.
func Kinds() []Kind {
	return []Kind{
		{
			numContradiction,
			"ledger-contradiction",
			"The ledger contradicts itself or its file.",
			"ledger",
			"",
			"restart the agent, which reads the file again; if the finding stays, keep a copy (`cadastre backup`) and report it",
		},
		{
			numLeaked, "leaked-lease",
			"The owner of a lease is gone: its sandbox or endpoint, and its address.",
			"kernel and runtime, or kernel and engine", RepairReclaim,
			"`cadastre release --ip ADDRESS`",
		},
		{
			numUnknown, "unknown-address",
			"An address of a block is in use and has no lease.", "kernel, engine", RepairQuarantine,
			"remove the address from the link, or end the container that has it",
		},
		{
			numOutside, "address-outside-blocks",
			"A pod of this node has an address of the pod network that is in no block of this node.",
			"kernel", "",
			"start the pod again, so that it gets an address of this node",
		},
		{
			numDuplicate, "duplicate-address",
			"Several network namespaces have the same address of a block.", "kernel", "",
			"end all of its users except the one that the lease names",
		},
		{
			numElsewhere, "lease-elsewhere",
			"Another network namespace than that of the lease has its address.", "kernel", "",
			"end the container that uses the address, then start the pod of the lease again",
		},
		{
			numMissingAddress, "missing-address",
			"The address of a lease is on no link, and its owner is not proven to be gone.",
			"kernel; runtime or engine, if present", "",
			"start the pod again; if its container has ended, `cadastre release --ip ADDRESS`; " +
				"on a node without a container runtime `cadastre repair C206 --all`",
		},
		{
			numPodWithoutLease, "pod-without-lease",
			"A pod uses an address of a block and has no lease.", "runtime or cluster, and kernel", RepairQuarantine,
			"start the pod again, so that it gets a lease",
		},
		{
			numUnusedQuarantine, "unused-quarantine",
			"No witness shows a use of a quarantined address any more.", "kernel; engine, if present",
			RepairEndQuarantine, "`cadastre release --ip ADDRESS --quarantined`",
		},
		{
			numEndedPod, "ended-pod",
			"The cluster has no pod for a lease, its address is on no link, and the runtime cannot be asked.",
			"cluster and kernel", RepairRelease, "`cadastre release --ip ADDRESS`",
		},
		{
			numWitness, "witness-missing",
			"A witness that the leases of this node need cannot be asked.", "the missing one", "",
			"see its reason in `cadastre status`",
		},
		{
			numHostAddress, "host-address",
			"The host itself has an address of a block of pods and has no lease of it.", "kernel", "",
			"remove the address from the host (`ip address del`)",
		},
		{
			numNotTheirOwn, "addresses-not-its-own",
			"A pod or process has addresses of a block that are not its own. They do not answer there.", "kernel", "",
			"remove the addresses from its links, or end it; other pods keep and get these addresses",
		},
		{
			numUnidentified,
			"unidentified-namespace",
			"Whether the namespace at the path of a lease is still the pod's cannot be told: nothing is repaired or reclaimed.",
			"kernel",
			"",
			"start the pod again; Linux 5.14 or newer and CAP_SYS_ADMIN make namespaces certain",
		},
		{
			numDefaultRoute, "missing-default-route",
			"A pod has no default route, and other pods of its network have one.", "kernel", "",
			"start the pod again",
		},
		{
			numGateway, "missing-gateway",
			"No link of the host has the gateway of pods that are attached to the host.", "kernel", "",
			"add the gateway to the bridge of the pods (`ip address add`), or start a pod: the bridge plugin adds it",
		},
		{
			numRouteInside, "route-inside-block",
			"A route of the host leads addresses of a block away from its pods.", "kernel", "",
			"`ip route del`, or stop the program that makes the route, such as a VPN",
		},
		{
			numRouteAround, "route-around-block",
			"Packets of the host for a block take a route of another network, such as a VPN.", "kernel", "",
			"keep the pod network out of the routes of that network",
		},
		{
			numLinkAround, "link-around-block",
			"The network of a link of the host contains a block of pods.", "kernel", "",
			"choose a pod network or a network of the link that do not overlap",
		},
		{
			numOverlap, "overlapping-pools",
			"Two pools overlap.", "ledger, configuration", "",
			"drain one of them (`cadastre apply`), or end Docker's pool (`cadastre docker pools release`)",
		},
		{
			numDockerOverlap, "docker-network-overlap",
			"A Docker network of another IPAM driver overlaps a pool.", "engine", "",
			"create the Docker network again with another subnet",
		},
		{
			numDockerUnknown, "docker-subnet-unknown",
			"Docker has a network of the driver whose subnet the driver does not know.", "engine", "",
			"create the Docker network again",
		},
		{
			numDockerUnused, "docker-pool-unused",
			"The driver has a pool that no network of Docker uses.", "engine", "",
			"`cadastre docker pools release ID`",
		},
		{
			numSubnet, "subnet-differs",
			"The blocks of the ledger, or the prefix of a gateway on the host, differ from the subnets of this node.",
			"ledger, configuration, kernel", "",
			"`cadastre resync`; for a gateway correct its prefix length (`ip address`)",
		},
		{
			numConfiguration, "configuration-differs",
			"`contiv.conf` differs from the pools of the cluster.", "configuration", "",
			"write the ranges of the cluster's pools into `contiv.conf`, or change the pools with `cadastre apply`",
		},
		{
			numCloudMissing,
			"cloud-lacks-block",
			"The cloud has a block of the ledger on no interface of this machine: packets of its pods get lost.",
			"ledger, cloud",
			"",
			"start the pods with its addresses again, so that they get others, or assign the block to the interface again",
		},
		{
			numCloudElsewhere,
			"cloud-has-block-elsewhere",
			"The cloud has a block of the ledger on another interface of this machine than the one that its packets take.",
			"ledger, cloud",
			"",
			"assign the block to its former interface again, or start the pods with its addresses again",
		},
	}
}

// kindOf returns the kind of a number.
func kindOf(number string) Kind {
	for _, k := range Kinds() {
		if k.Number == number {
			return k
		}
	}
	panic("findings: no kind has number " + number)
}
