// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import "github.com/cadastre/cadastre/controller"

// ClaimChange says that a claim of this node came to be held, stopped being held, or
// waits for another node than before. Handlers ask the Claimer how their claims stand.
type ClaimChange struct{}

// GetName returns "Claim Change".
func (ev *ClaimChange) GetName() string { return "Claim Change" }

// String describes the event.
func (ev *ClaimChange) String() string { return ev.GetName() }

// Method returns Update.
func (ev *ClaimChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns BestEffort.
func (ev *ClaimChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction returns Forward.
func (ev *ClaimChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns false.
func (ev *ClaimChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *ClaimChange) Done(error) {}
