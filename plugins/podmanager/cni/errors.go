// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import "fmt"

// Codes of the specification, and Cadastre's own from 100 on. docs/errors.md has the
// causes and cures.
const (
	CodeVersion       = 1
	CodeUnsupported   = 2
	CodeUnknown       = 3 // container unknown
	CodeEnvironment   = 4
	CodeIO            = 5
	CodeDecode        = 6
	CodeInvalidConfig = 7
	CodeTryAgain      = 11 // the agent is away, starts, or is not ready
	CodeNotAvailable  = 50 // STATUS: ADD cannot be served
	CodeInternal      = 999
	CodeDiffers       = 100 // CHECK: the address is not the one of prevResult
	CodeRefused       = 101 // ADD: the requested address is not available
	CodeFull          = 102 // ADD: no address is free
)

// Error holds an error as CNI prints it.
type Error struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Code       uint   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func (e *Error) Error() string {
	if e.Details != "" {
		return e.Msg + "; " + e.Details
	}
	return e.Msg
}

// Errorf returns an Error.
func Errorf(code uint, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}
