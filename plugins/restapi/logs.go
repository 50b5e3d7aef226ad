// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"io"
	"net/http"
	"strings"
)

// Logs shows the last lines of the agent's log.
type Logs interface {
	Lines() []string // the oldest first
}

// logs writes the lines as plain text.
func (p *RESTAPI) logs(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, strings.Join(append(p.Logs.Lines(), ""), "\n"))
}
