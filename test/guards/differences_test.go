// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

// contivDifferences returns how symbols differ here from "Contiv-VPP: the IPAM plugin", by published name.
func contivDifferences() map[string]string {
	return map[string]string{
		"DefaultPlugin":               "without dependencies; `NewPlugin(UseDeps(...))` makes one that has them",
		"NewPlugin":                   "published as the constructor of `DefaultPlugin`",
		"API":                         "exactly the methods that follow",
		"API.NodeIPAddress":           "an ID that does not fit is an error, never another node's address",
		"API.HostInterconnectIPInVPP": "nil before the first resync, like all answers without an error",
		"API.PodSubnetThisNode":       "nil while external IPAM has given this node none",
		"API.PodSubnetOtherNode":      "with external IPAM what the other node has on record, not what would follow from its ID",
		"API.PodGatewayIP":            "the first address: 10.1.5.1",
		"API.NatLoopbackIP":           "the last address before the broadcast address: 10.1.5.254; so pods end at 10.1.5.253",
		"API.AllocatePodIP":           "Refuses a namespace or a name that Kubernetes would refuse, like `ReleasePodIP`. It is durable when it returns; leases one address of each family and answers the first. External data is checked, not trusted. During the pod's own `AddPod` a handler behind ipam gets what the event has staged",
		"API.GetPodIP":                "the mask is that of one host; of the main attachment of the pod's newest container; during the pod's own `AddPod` what the event has staged",
		"API.ReleasePodIP":            "Durable when it returns; a pod without an address is not an error. During the pod's own `AddPod` it does nothing, since the event's revert decides. Called by a handler it leaves the lease of a sandbox to that sandbox's `DeletePod`",
		"Deps":                        "has more fields than the published one, see below",
		"Deps.EventLoop":              "for producers outside of the loop; the plugin's own follow-ups go through the transaction",
		"IPAM":                        "implements `API`, `FamilyAPI` and `controller.EventHandler`",
		"IPAM.Close":                  "leases outlive the process",
		"IPAM.HandlesEvent":           "every resync; `NodeUpdate` with external IPAM; `AddPod` and `DeletePod` as an extension",
		"IPAM.Init":                   "fails if `NodeSync`, `ContivConf` or `ServiceLabel` is missing, and names it; opens a ledger with the null journal if it is given none",
		"IPAM.Resync":                 "applies a difference: forgets no lease, quarantines addresses that are used without one",
		"IPAM.Revert":                 "published as never called; here gives back what an `AddPod` has taken, and only that",
		"IPAM.Update":                 "`NodeUpdate` may end in `PodCIDRChange`; `AddPod` and `DeletePod` stage, the loop commits",
		"PodCIDRChange":               "pushed if the value has changed, not whenever the node has; with `Deps.Claims` once, when the claims of the podCIDRs are held; never for podCIDRs that are refused",
		"PodCIDRChange.LocalPodCIDR":  "of the first family; nil if there is none any more",
		"PodCIDRChange.GetName":       "\"Pod CIDR Change\"",
		"PodCIDRChange.IsBlocking":    "false",
		"PodCIDRChange.Method":        "`UpstreamResync`",
	}
}

// dockerDifferences returns how symbols differ here from "Docker: the IPAM driver contract", by published name.
func dockerDifferences() map[string]string {
	return map[string]string{
		"PluginEndpointType":               "`IpamDriver`",
		"RequestAddressType":               "`RequestAddressType`",
		"Prefix":                           "`com.docker.network`",
		"AllocSerialPrefix":                "`com.docker.network.ipam.serial`; only `true` counts",
		"ErrInvalidAddressSpace":           "class InvalidParameter, by a method, as in libnetwork",
		"ErrInvalidPool":                   "class InvalidParameter",
		"ErrInvalidSubPool":                "class InvalidParameter; also for a sub-pool that is not in its pool",
		"ErrNoAvailableIPs":                "class Unavailable",
		"ErrNoIPReturned":                  "class Unavailable; only over the socket",
		"ErrIPAlreadyAllocated":            "class Forbidden; also for network and broadcast addresses",
		"ErrIPOutOfRange":                  "class InvalidParameter",
		"ErrPoolOverlap":                   "class Forbidden; names what it overlaps and the option that allows it",
		"ErrBadPool":                       "class InvalidParameter; over the socket a release of an unknown pool succeeds",
		"AllocatedPool.PoolID":             "contains all that is needed to serve the pool, so it outlives a lost store",
		"AllocatedPool.Meta":               "empty: no gateway is reserved along with a pool",
		"Capability.RequiresMACAddress":    "the driver wants it, to tell endpoints apart",
		"Capability.RequiresRequestReplay": "the driver does not want it: it forgets nothing",
		"Ipam.RequestPool":                 "a named pool gives the same ID again and counts; without a prefix each call gives another pool",
		"Ipam.ReleasePool":                 "ends one request; the last one ends the pool with its leases",
		"Ipam.RequestAddress":              "durable when it returns; a named address is given again to the endpoint that has it, and any address to an endpoint that repeats its name and its MAC address",
		"Ipam.ReleaseAddress":              "durable when it returns; the release of an address that is not held succeeds",
		"Ipam.IsBuiltIn":                   "false",
		"PoolRequest.Pool":                 "an unspecified address (`0.0.0.0/24`) is a size",
		"PoolRequest.Options":              "`cadastre.group`, `cadastre.allow-overlap`; unknown ones are ignored",
		"PoolRequest.V6":                   "counts only if no prefix is given",
		"Registerer":                       "the engine implements it",
	}
}

// managerDifferences returns how symbols differ here from "CCE: the address manager", by published name.
func managerDifferences() map[string]string {
	return map[string]string{
		"Allocator.Release":                  "the release of an address that is not held succeeds, in every mode",
		"CNIIPAMServer":                      "`Server` implements it over the ledger",
		"IPAM.AllocateIPWithoutSyncUpstream": "also restores an owner, once, to its lease from an earlier process",
		"IPAM.AllocateNext":                  "both families or none, in one write; a family that is disabled is an error",
		"IPAM.AllocateNextWithExpiration":    "the lease is pending from its first write on",
		"IPAM.BlacklistIP":                   "durable; see `Exclude` and `Readmit`",
		"IPAM.Dump":                          "counts the addresses that can be allocated, not the edges",
		"IPAM.GetVpcCIDRs":                   "the primary one first",
		"IPAM.IPv4Allocator":                 "nil disables the family; another allocator in its place is called; whose its addresses are, the caller knows",
		"IPAM.IPv6Allocator":                 "likewise",
		"IPAM.ReleaseIP":                     "the release of an address that is not held succeeds",
		"IPAM.ReleaseIPString":               "all addresses of an owner or none",
		"IPAM.RestoreFinished":               "allows reports and the return of addresses",
		"IPAM.StartExpirationTimer":          "a field of the lease; needs an address that is held",
		"IPBlacklist":                        "reads the ledger at each call",
		"K8sEventRegister.K8sEventReceived":  "`cadastre.dev/v1alpha1::NetResourceSet`, `NetResourceSet`, then `create`, `update` or `delete`",
		"NewIPAM":                            "an unknown mode does not end the process: `Err` says it; the owner may be a `LedgerOwner`",
		"Owner.UpdateNetResourceSetResource": "called by `NewIPAM` after it has subscribed, and by `Sync`",
	}
}

// nodeIPAMDifferences returns how symbols differ here from "Kubernetes: node CIDRs", by published name.
func nodeIPAMDifferences() map[string]string {
	return map[string]string{
		"RangeAllocatorType":                 "\"RangeAllocator\"",
		"CloudAllocatorType":                 "\"CloudAllocator\"",
		"IPAMFromClusterAllocatorType":       "\"IPAMFromCluster\"; published without its type",
		"IPAMFromCloudAllocatorType":         "\"IPAMFromCloud\"; published without its type",
		"CIDRAllocator.AllocateOrOccupyCIDR": "waits for the API server",
		"CIDRAllocator.ReleaseCIDR":          "refused while the API server has the node",
		"CIDRAllocator.Run":                  "returns when all goroutines that it started have ended",
		"New":                                "one CIDR, as published; registers the informer, as all constructors and `Controller.Start` do; `NewAllocator` has several ranges and both families",
		"NewCIDRRangeAllocator":              "a bad node of the list is reported, and is not an error",
		"NewCloudCIDRAllocator":              "takes any `Cloud`, not only one",
		"Controller.Start":                   "returns when the nodes are read; `Close` ends it",
		"Timeout.Next":                       "the published formula, bit for bit",
	}
}

// datastoreDifferences returns how symbols differ here from "AWS: the interface datastore", by published name.
func datastoreDifferences() map[string]string {
	return map[string]string{
		"IPAlreadyInStoreError":              "also if another interface has the address",
		"UnknownENIError":                    "also if an address is added to a missing interface; published with another text there",
		"BackfillNetworkIface":               "no container runtime is read; entries that were copied from one are unassigned by their container ID",
		"CheckpointFormatVersion":            "`vpc-cni-ipam/1`",
		"CheckpointMigrationPhase":           "1; checkpoints are read and written in every phase",
		"ErrUnknownPod":                      "never wrapped",
		"AddressInfo":                        "a copy, like all returned values",
		"CheckpointData":                     "cooling addresses are in a further field, which other readers ignore",
		"CheckpointEntry":                    "with the fields of later versions of the format, and two of ours",
		"DataStore.CheckpointMigrationPhase": "below 2, a key that is not known is looked for under its placeholder",
		"DataStore.AddIPv4AddressToStore":    "restored assignments of the address move to the interface",
		"DataStore.AllocatedIPs":             "by address; not those of interfaces that are not attached, see `Unplaced`",
		"DataStore.AssignPodIPv4Address":     "lowest device first; a cooling address is never assigned; durable when it returns",
		"DataStore.DelIPv4AddressFromStore":  "nothing is removed if the write fails, also by force; published: removed, and logged",
		"DataStore.FreeableIPs":              "cooling addresses come last",
		"DataStore.GetENIInfos":              "a copy",
		"DataStore.GetENINeedsIP":            "the first by device; published: any",
		"DataStore.GetStats":                 "both families",
		"DataStore.ReadBackingStore":         "changes no file; an address of no attached interface is kept; after an error nothing is assigned",
		"DataStore.RemoveENIFromDataStore":   "as `DelIPv4AddressFromStore`",
		"DataStore.RemoveUnusedENIFromStore": "the interface with the highest device number; cooling addresses do not count as free",
		"DataStore.UnassignPodIPv4Address":   "either family; device -1 if the interface is not attached",
		"ENI.IPv4Addresses":                  "of a prefix, those that are assigned or cooling",
		"IPAMKey":                            "the key of a lease",
		"JSONFile":                           "Has a checksum, and keeps the previous generation after a release. A file has one store: a write over a file that another one has written fails, and a store writes no file that it has not read",
		"JSONFile.Restore":                   "refuses a damaged file, unless the previous generation is proven to be complete",
		"NewDataStore":                       "cool-down 30 s; `New` has all parameters",
		"NewTestCheckpoint":                  "nil: an empty checkpoint",
	}
}

// operatorDifferences returns how symbols differ here from "CCE: the operator's half", by published name.
func operatorDifferences() map[string]string {
	return map[string]string{
		"AllocationImplementation":                    "one call for a node at a time, also after a deadline; `Provider` is the contract of our own",
		"AllocationImplementation.CreateNetResource":  "nil: the node is refused",
		"AllocationImplementation.Resync":             "the zero time: nothing is changed until it succeeds",
		"MetricsAPI.SetNetResourceSets":               "a further category is `unknown`: nodes that could not be read from the provider",
		"NetResource.Ops":                             "nil if the manager has a `Provider`",
		"NetResource.Pool":                            "a copy; keys are addresses, or blocks as CIDRs",
		"NetResourceOperations.PrepareIPRelease":      "must choose the same again while nothing changes",
		"NetResourceOperations.ReleaseIPs":            "the release of a missing address succeeds",
		"NewNetResourceSetManager":                    "the defaults of `Config`; `New` takes them all",
		"NetResourceSetManager.Create":                "the same as `Update`",
		"NetResourceSetManager.Get":                   "nil for a node that is not known",
		"NetResourceSetManager.GetNames":              "sorted",
		"NetResourceSetManager.GetNodesByIPWatermark": "all nodes: deficits first, then none, then excesses, the largest first",
		"NetResourceSetManager.Start":                 "its goroutines end with ctx, or with `Close`, which waits",
	}
}
