// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"fmt"
	"strings"
)

// Machine identifies the machine that an agent runs on. It does not include
// /etc/machine-id: machines made from one golden image share that.
type Machine struct {
	ProductUUID string `json:"productUUID,omitempty"` // of DMI; "": unknown
	BootID      string `json:"bootID,omitempty"`      // of the present boot; "": unknown
}

// Same reports whether m and other are known to be one machine: by their product
// UUIDs if both are known, otherwise by their boot IDs. Without product UUIDs a
// reboot cannot be told from another machine.
func (m Machine) Same(other Machine) bool {
	if m.ProductUUID != "" && other.ProductUUID != "" {
		return m.ProductUUID == other.ProductUUID
	}
	return m.BootID != "" && m.BootID == other.BootID
}

// String names the machine in a message.
func (m Machine) String() string {
	switch {
	case m.ProductUUID != "":
		return "product UUID " + m.ProductUUID
	case m.BootID != "":
		return fmt.Sprintf("boot ID %s (product UUID unknown)", m.BootID)
	}
	return "unknown"
}

// ParseProductUUID returns the product UUID that the text of DMI's file holds, in
// lower case. It returns "" for what vendors write instead of a UUID: such a
// value is the same on many machines.
func ParseProductUUID(text string) string {
	id := strings.ToLower(strings.TrimSpace(text))
	digits := strings.ReplaceAll(id, "-", "")
	if len(id) != 36 || len(digits) != 32 || strings.Trim(digits, "0123456789abcdef") != "" {
		return "" // "Not Settable", "To Be Filled By O.E.M."
	}
	if strings.Trim(digits, digits[:1]) == "" { // all zeros, all ff
		return ""
	}
	switch id {
	case "03000200-0400-0500-0006-000700080009",
		"00020003-0004-0005-0006-000700080009", // American Megatrends' default, in both byte orders
		"12345678-1234-5678-90ab-cddeefaabbcc",
		"11111111-2222-3333-4444-555555555555":
		return ""
	}
	return id
}
