// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"strings"
)

// maxHidden limits the namespaces that a text names.
const maxHidden = 4

// hidden collects the namespaces that exist and cannot be read.
type hidden struct {
	first []string
	more  int
}

func (h *hidden) add(what string, err error) {
	if len(h.first) == maxHidden {
		h.more++
		return
	}
	h.first = append(h.first, fmt.Sprintf("%s: %v", what, err))
}

// String returns the text for people, "" if nothing is hidden.
func (h *hidden) String() string {
	all := strings.Join(h.first, "; ")
	if h.more > 0 {
		all += fmt.Sprintf("; and %d more", h.more)
	}
	return all
}
