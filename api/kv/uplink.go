// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv

// The routing table of an Uplink is UplinkTables plus a number of 24 bits. No other table
// of Cadastre is in this range, so the routes and rules that an ended process has left are
// known by their table.
const (
	UplinkTables   = 0x0D000000
	uplinkTableMax = UplinkTables + 1<<24 - 1
)

// IsUplinkTable reports whether a routing table is that of an Uplink.
func IsUplinkTable(table uint32) bool { return table > UplinkTables && table <= uplinkTableMax }
