// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package columns_test

import (
	"fmt"

	"github.com/cadastre/cadastre/internal/columns"
)

func Example() {
	rows := columns.Rows{{"POOL", "STATE"}}
	rows.Add("default", "")
	rows.Add("blue\x1b[2J", "änderung")
	fmt.Print(rows)
	// Output:
	// POOL      STATE
	// default   -
	// blue?[2J  änderung
}
