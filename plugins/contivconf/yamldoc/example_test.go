// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc_test

import (
	"fmt"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

func ExampleDecoder() {
	var conf struct {
		Name    string        `json:"name"`
		Timeout time.Duration `json:"timeout"`
	}
	d := yamldoc.NewDecoder(yamldoc.Options{
		Example: "name: a",
		Unknown: func(string, string, []string) string { return "is unknown" },
	})
	d.Decode([]byte("name: a\nname: b\ntimeout: soon\n"), &conf)
	fmt.Println(d.Err())
	// Output:
	// name: is given twice, the second time in line 2: keep one
	// timeout: "soon" is not a duration: write a number with its unit, such as "5s" or "1m30s"
}
