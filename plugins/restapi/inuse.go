// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// inUse reads one fresh round of every witness, and returns what find makes of it. Requests
// that end something ask it first: a look that a caller took earlier proves nothing.
func (p *RESTAPI) inUse(
	ctx context.Context,
	find func(findings.Book, *witness.World) []findings.Use,
) (localapi.InUse, error) {
	book, world, err := p.checks().Observe(ctx)
	if err != nil {
		return nothingInUse(), err
	}
	return inUseOf(find(book, world), world), nil
}

// inUseOf returns uses that a world shows as the API shows them.
func inUseOf(uses []findings.Use, world *witness.World) localapi.InUse {
	in := nothingInUse()
	for _, u := range uses {
		use := localapi.Use{IP: u.Addr, Pool: u.Pool, Pod: u.Pod, Text: u.Text, Evidence: []localapi.Evidence{}}
		for _, e := range u.Evidence {
			use.Evidence = append(use.Evidence, localapi.Evidence{Witness: string(e.Witness), Text: e.Text})
		}
		in.Uses = append(in.Uses, use)
	}
	in.Incomplete = append(in.Incomplete, world.Incomplete()...)
	return in
}

// nothingInUse returns an InUse without an entry. Its lists are not nil.
func nothingInUse() localapi.InUse {
	return localapi.InUse{Uses: []localapi.Use{}, Incomplete: []string{}}
}

// refuseInUse sets why a request needs force, and reports whether it does. nothing says what
// was not done.
func refuseInUse(in *localapi.InUse, nothing string) bool {
	var why []string
	for _, u := range in.Uses {
		why = append(why, u.Text)
	}
	for _, text := range in.Incomplete {
		why = append(why, "a witness cannot be read completely, and may not show a use: "+text)
	}
	if len(why) == 0 {
		return false
	}
	in.Refused = strings.Join(why, "; ") + ": " + nothing + `, and is only with "force"`
	return true
}

// writeRefused answers with what is in use, which v has.
func writeRefused(w http.ResponseWriter, v any) { writeJSON(w, http.StatusConflict, v) }
