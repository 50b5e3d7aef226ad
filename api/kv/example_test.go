// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"fmt"

	"github.com/cadastre/cadastre/api/kv"
)

func ExamplePodKey() {
	fmt.Println(kv.PodKey("node-a", kv.PodID{Name: "web-0", Namespace: "default"}))
	// Output: node/node-a/pod/default/web-0
}
