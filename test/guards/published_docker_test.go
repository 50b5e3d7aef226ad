// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

// dockerContract returns the symbols in the documentation of libnetwork's package ipamapi.
func dockerContract() []symbol {
	return []symbol{
		{"PluginEndpointType", "const string"},
		{"RequestAddressType", "const string"},
		{"Prefix", "const string"},
		{"AllocSerialPrefix", "const string"},
		{"ErrInvalidAddressSpace", "var error"},
		{"ErrInvalidPool", "var error"},
		{"ErrInvalidSubPool", "var error"},
		{"ErrNoAvailableIPs", "var error"},
		{"ErrNoIPReturned", "var error"},
		{"ErrIPAlreadyAllocated", "var error"},
		{"ErrIPOutOfRange", "var error"},
		{"ErrPoolOverlap", "var error"},
		{"ErrBadPool", "var error"},
		{"AllocatedPool", "type struct"},
		{"AllocatedPool.PoolID", "field string"},
		{"AllocatedPool.Pool", "field netip.Prefix"},
		{"AllocatedPool.Meta", "field map[string]string"},
		{"Capability", "type struct"},
		{"Capability.RequiresMACAddress", "field bool"},
		{"Capability.RequiresRequestReplay", "field bool"},
		{"Ipam", "type interface"},
		{"Ipam.GetDefaultAddressSpaces", "func() (string, string, error)"},
		{"Ipam.RequestPool", "func(req ipamapi.PoolRequest) (ipamapi.AllocatedPool, error)"},
		{"Ipam.ReleasePool", "func(poolID string) error"},
		{"Ipam.RequestAddress", "func(string, net.IP, map[string]string) (*net.IPNet, map[string]string, error)"},
		{"Ipam.ReleaseAddress", "func(string, net.IP) error"},
		{"Ipam.IsBuiltIn", "func() bool"},
		{"PoolRequest", "type struct"},
		{"PoolRequest.AddressSpace", "field string"},
		{"PoolRequest.Pool", "field string"},
		{"PoolRequest.SubPool", "field string"},
		{"PoolRequest.Options", "field map[string]string"},
		{"PoolRequest.V6", "field bool"},
		{"Registerer", "type interface"},
		{"Registerer.RegisterIpamDriver", "func(name string, driver ipamapi.Ipam) error"},
		{"Registerer.RegisterIpamDriverWithCapabilities", "func(name string, driver ipamapi.Ipam, capability *ipamapi.Capability) error"},
	}
}
