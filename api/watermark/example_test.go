// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package watermark_test

import (
	"fmt"

	"github.com/cadastre/cadastre/api/watermark"
)

// 8 addresses are to be free, and 16 there at least; 9 of 16 are in use.
func Example() {
	marks := watermark.Marks{Pre: 8, Min: 16}
	fmt.Println(marks.Needed(watermark.Level{Total: 16, Used: 9}))
	fmt.Println(marks.Excess(watermark.Level{Total: 32, Used: 9}))
	// Output:
	// 1
	// 15
}
