// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"errors"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// Reason classifies refusals of ADD. An event on the pod has it as its reason.
type Reason string

// The reasons.
const (
	NoAddress             Reason = "NoAddress"             // the pool has no free address
	AddressRefused        Reason = "AddressRefused"        // the wanted address is taken or cannot be allocated
	InvalidAddressRequest Reason = "InvalidAddressRequest" // the request can never be served, such as one for an unknown pool
	AddressNotServed      Reason = "AddressNotServed"      // the node cannot serve it now; the runtime tries again
	InternalError         Reason = "InternalError"         // the agent has a defect
)

// class is a row of the table of refusals.
type class struct {
	Reason
	label  string  // in metrics
	code   uint    // of the class's errors
	errors []error // of the ledger
	codes  []uint  // further ones
}

// classes returns the table of refusals: what an error is for a runtime (code), for the pod
// (reason) and in metrics (label). Every code of the plugin is in one row.
func classes() []class {
	return []class{
		{NoAddress, "no_address", cni.CodeFull, []error{ledger.ErrExhausted}, nil},
		{
			AddressRefused, "address_refused", cni.CodeRefused,
			[]error{ledger.ErrTaken, ledger.ErrOutside, ledger.ErrKeyHeld}, nil,
		},
		{
			InvalidAddressRequest, "invalid_request", cni.CodeInvalidConfig,
			[]error{ledger.ErrNoPool},
			[]uint{
				cni.CodeVersion, cni.CodeUnsupported, cni.CodeUnknown, cni.CodeEnvironment, cni.CodeDecode,
				cni.CodeDiffers,
			},
		},
		{AddressNotServed, "not_ready", cni.CodeTryAgain, nil, []uint{cni.CodeNotAvailable}},
		{InternalError, "internal", cni.CodeInternal, nil, []uint{cni.CodeIO}},
	}
}

// Reasons returns all reasons.
func Reasons() (all []Reason) {
	for _, c := range classes() {
		all = append(all, c.Reason)
	}
	return all
}

// ReasonOf returns the reason of a code of the plugin. A code without a row is a defect.
func ReasonOf(code uint) Reason {
	for _, c := range classes() {
		if c.code == code || slices.Contains(c.codes, code) {
			return c.Reason
		}
	}
	return InternalError
}

// Label returns the reason as metrics have it.
func (r Reason) Label() string {
	for _, c := range classes() {
		if c.Reason == r {
			return c.label
		}
	}
	return string(r)
}

// codeOf returns the code of an error. The runtime repeats a request whose error has no row.
func codeOf(err error) uint {
	for _, c := range classes() {
		if slices.ContainsFunc(c.errors, func(e error) bool { return errors.Is(err, e) }) {
			return c.code
		}
	}
	return cni.CodeTryAgain
}
