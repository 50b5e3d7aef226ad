// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"time"
)

// cloud compares the blocks of the ledger with the interfaces in the cloud.
func (c *comparison) cloud() {
	x := c.book.Cloud
	if x == nil {
		return
	}
	for _, b := range x.Blocks {
		if b.On == b.Interface {
			continue
		}
		number := numCloudMissing
		text := fmt.Sprintf("block %s of interface %s is on no interface of machine %s in the cloud",
			b.Prefix, b.Interface, x.Machine)
		if b.On != "" {
			number, text = numCloudElsewhere, fmt.Sprintf("block %s of interface %s is on interface %s in the cloud",
				b.Prefix, b.Interface, b.On)
		}
		c.add(number, Subject{Pool: b.Pool, Prefix: b.Prefix, Object: b.Interface}, text,
			said(CloudReading, fmt.Sprintf("%s, read at %s", x.Name, x.Read.UTC().Format(time.RFC3339))), b.On)
	}
}
