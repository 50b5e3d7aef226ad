// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import "net/http"

// accept answers with what a database in doubt may not know, and without dryRun
// trusts it from then on.
func (p *RESTAPI) accept(dryRun bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		report, err := p.Accept(r.Context(), dryRun)
		if err != nil {
			writeError(w, statusOf(err, http.StatusInternalServerError), err)
			return
		}
		report.Leases, report.Unleased = present(report.Leases), present(report.Unleased)
		_ = writeJSON(w, http.StatusOK, report)
	}
}
